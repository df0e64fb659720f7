"""Storage of a study: a journal of lines in a folder, or a database with locks.

Optuna's own backend locks with a file, which a killed process leaves behind, so that the next
process waits half a minute. It also syncs the disk for every line. Here the kernel holds the lock,
which ends with its process. A line that a killed process left unfinished is removed, and the disk
is synced about once a second. Written lines survive their process in any case.

Optuna stores the trials. It does not provide mutual exclusion between programs, or a check whether
the program that runs a trial is still alive. Database locks provide both, since they end with the
connection of their owner. PostgreSQL has advisory locks, and MySQL has named locks. For SQLite,
which serves programs on one machine, the locks are files next to the database.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from caldera.base.arguments import require
from caldera.base.file_cache import write_error
from caldera.base.file_lock import file_lock, held_lock
from caldera.base.registry import optional_import
from caldera.errors import ConfigError, DataError, FileWriteError

_SYNC_EVERY_S = 1.0
_MOST_BYTES = 1 << 32


class Journal:
    """Backend for `optuna.storages.JournalStorage`.

    Each line ends with a checksum of itself and of all lines before it, as an additional key of its
    object, so that Optuna's own tools can read it too. Lines without a checksum, from older
    versions or from such tools, are accepted until the checksum of a later line contradicts them.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder) / "journal.log")
    ...     journal.append_logs([{"op": 1}, {"op": 2}])
    ...     list(Journal(Path(folder) / "journal.log").read_logs(1))
    [{'op': 2}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = [0]
        """Where each line begins, and where the last one ends."""
        self._chain = b""
        """The checksum of all lines up to there."""
        self._own: tuple[int, int, list[bytes]] = (0, 0, [])
        """The last lines that were written here: the number of the first, where the last ends."""
        self._last_sync = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with open(path, "r+b") as file, file_lock(file):
            self._settle(file)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the lines from this number on.

        One that is still being written is left for later.
        """
        number, end, lines = self._own
        if (number, end) == (log_number_from, os.stat(self.path).st_size):
            # Optuna reads after each line that it writes; the cache serves it if no other process
            # wrote.
            for line in lines:
                yield self._parsed(line, number)
            return
        number = min(log_number_from, len(self._offsets) - 1)
        with open(self.path, "rb") as file:
            file.seek(self._offsets[number])
            for line in file:
                if not line.endswith(b"\n"):
                    return
                if number + 1 == len(self._offsets):
                    self._follow(line)
                if number >= log_number_from:
                    yield self._parsed(line, number)
                number += 1

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Append lines, either all or none."""
        with open(self.path, "a+b") as file, file_lock(file):
            if os.fstat(file.fileno()).st_size != self._offsets[-1]:
                self._settle(file)
            number, lines = len(self._offsets) - 1, []
            chain = self._chain
            for log in logs:
                body = json.dumps(log, separators=(",", ":")).encode()[:-1]
                chain = _joined(chain, body)
                lines.append(body + _CHECK % chain.hex().encode())
            self._write(file.fileno(), b"".join(lines))
            self._offsets += [*accumulate(map(len, lines), initial=self._offsets[-1])][1:]
            self._chain = chain
            self._own = (number, self._offsets[-1], lines)

    def _write(self, file: int, content: bytes) -> None:
        """Append content, and sync the disk now and then; remove a partial write."""
        written = 0
        try:
            # In one call if possible: a process killed between two writes would leave a part.
            while written < len(content):
                written += os.write(file, content[written:])
            if time.monotonic() - self._last_sync > _SYNC_EVERY_S:
                os.fsync(file)
                self._last_sync = time.monotonic()
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file, self._offsets[-1])
            raise write_error(self.path, error) from error

    def _settle(self, file: BinaryIO) -> None:
        """Follow what others have written, and cut off what one that was killed left unfinished."""
        require(
            os.fstat(file.fileno()).st_size <= _MOST_BYTES,
            str(self.path),
            "a journal of a study",
            "a huge file",
            error=DataError,
        )
        file.seek(self._offsets[-1])
        rest = b""
        for line in file:
            rest = b"" if line.endswith(b"\n") else line
            if not rest:
                self._follow(line)
        if rest:
            # A line may be there but for its end.
            ended = [line for line in (rest + b"\n", rest[:-1] + b"\n") if self._is_next(line)]
            file.seek(self._offsets[-1])
            file.truncate()
            for line in ended[:1]:
                file.write(line)
                self._follow(line)

    def _is_next(self, line: bytes) -> bool:
        """Return True if a line ends with its correct checksum."""
        claimed = _CHECKED.fullmatch(line[-_CHECK_BYTES:])
        own = _joined(self._chain, line[:-_CHECK_BYTES]).hex().encode()
        return claimed is not None and claimed[1] == own

    def _follow(self, line: bytes) -> None:
        """Accept the next line of the file unless its checksum is wrong."""
        is_checked = self._is_next(line)
        if not is_checked and _LIKE_CHECKED.search(line[-2 * _CHECK_BYTES :]):
            raise self._damaged(
                len(self._offsets), "lines that agree with their checksums", "others"
            )
        content = line[:-_CHECK_BYTES] if is_checked else line
        self._chain = _joined(self._chain, content)
        self._offsets.append(self._offsets[-1] + len(line))

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        found = None
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
        if not isinstance(found, dict):
            expected = "an entry of a study's journal"
            raise self._damaged(number + 1, expected, repr(line[:60]))
        found.pop("check", None)
        return found

    def _damaged(self, line: int, expected: str, got: str) -> DataError:
        return DataError.build(
            f"{self.path}, line {line}",
            expected=expected,
            got=got,
            hint="the file is damaged there or shortly before; restore it from a copy, or "
            "remove this line and all later lines to continue with the earlier trials",
        )


_CHECK = b',"check":"%s"}\n'
"""The end of a line: the checksum as its last key."""
_CHECKED = re.compile(_CHECK % b"([0-9a-f]{16})")
_LIKE_CHECKED = re.compile(rb'"[^"]*":\s*"[^"]{16}"}\s*$')
"""Pattern of a damaged checksum: no other line of Optuna's ends with such a value."""
_CHECK_BYTES = len(_CHECK % bytes(16))


def _joined(chain: bytes, content: bytes) -> bytes:
    """Return the checksum of a line and all lines before it."""
    return hashlib.blake2b(chain + content, digest_size=8).digest()


_DRIVERS = {"psycopg": '"psycopg[binary]"', "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Packages that do not have the names of their modules."""
_EXAMPLES = "sqlite:///study.db, postgresql://user@host/database or mysql+pymysql://..."


class Locks(ABC):
    """Named locks of a database; each ends with the program that holds it."""

    @abstractmethod
    def acquire(self, name: str) -> None:
        """Wait for a lock."""

    @abstractmethod
    def release(self, name: str) -> None:
        """Release the lock."""

    @abstractmethod
    def is_held(self, name: str) -> bool:
        """Return True if another program holds the lock."""

    @abstractmethod
    def close(self) -> None:
        """Release all locks."""


class SessionLocks(Locks):
    """Locks that end with a connection to the database."""

    def __init__(self, engine: Any, text: Any) -> None:
        self._text = text
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        self._connection.close()


class PostgresLocks(SessionLocks):
    """Advisory locks of a session."""

    def _call(self, function: str, name: str) -> Any:
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
        return self._connection.execute(self._text(f"SELECT {function}(:key)"), {"key": key})

    def acquire(self, name: str) -> None:
        self._call("pg_advisory_lock", name).close()

    def release(self, name: str) -> None:
        self._call("pg_advisory_unlock", name).close()

    def is_held(self, name: str) -> bool:
        if self._call("pg_try_advisory_lock", name).scalar():
            self.release(name)
            return False
        return True


class MySQLLocks(SessionLocks):
    """Named locks of a session."""

    def _call(self, call: str, name: str) -> Any:
        key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self._connection.execute(self._text(f"SELECT {call}"), {"key": key}).scalar()

    def acquire(self, name: str) -> None:
        while self._call("GET_LOCK(:key, 60)", name) != 1:
            pass

    def release(self, name: str) -> None:
        self._call("RELEASE_LOCK(:key)", name)

    def is_held(self, name: str) -> bool:
        return self._call("IS_FREE_LOCK(:key)", name) == 0


class FileLocks(Locks):
    """Locks as files next to an SQLite database."""

    def __init__(self, database: str) -> None:
        self._database = Path(database).absolute()
        self._locked_files: dict[str, ExitStack] = {}

    def _path(self, name: str) -> Path:
        key = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        return self._database.with_name(f"{self._database.name}.{key}.lock")

    def acquire(self, name: str) -> None:
        with ExitStack() as stack:
            stack.enter_context(held_lock(self._path(name)))
            self._locked_files[name] = stack.pop_all()

    def release(self, name: str) -> None:
        self._locked_files.pop(name).close()

    def is_held(self, name: str) -> bool:
        path = self._path(name)
        if not path.exists():
            return False
        with held_lock(path, 0.0) as is_free:
            if is_free:
                # The owner was killed: a program that ends normally removes its file.
                path.unlink(missing_ok=True)
            return not is_free

    def close(self) -> None:
        for name in list(self._locked_files):
            # No program checks again whether a finished program is alive.
            with suppress(OSError):
                self._path(name).unlink()
            self.release(name)


class Database:
    """The storage of a study at an address, and this program's part in it."""

    def __init__(self, optuna: Any, address: str, study: str) -> None:
        self._alchemy = optional_import("sqlalchemy", "sqlalchemy", "search storage")
        self.address = _without_password(self._alchemy, address)
        self._turn = f"caldera turn {study}"
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        """Who has the trials that are begun here."""
        self._closing = ExitStack()
        with self._explained_errors():
            self._locks = self._open(address)
            self._closing.callback(self._locks.close)
            # Two programs that create the tables in parallel would collide.
            with self.turn():
                self.storage: Any = _ExplainedStorage(
                    optuna.storages.get_storage(address),
                    (self._alchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError),
                    self.address,
                )
            self._locks.acquire(self.owner)

    def _open(self, address: str) -> Locks:
        url = self._alchemy.engine.make_url(address)
        kind = url.get_backend_name()
        if kind == "sqlite":
            if not url.database or url.database == ":memory:":
                raise ValueError("a database in memory, which no other program can open")
            if not Path(url.database).absolute().parent.is_dir():
                raise ValueError(f"no folder {Path(url.database).absolute().parent}")
            return FileLocks(url.database)
        kinds: dict[str, Callable[[Any, Any], Locks]]
        kinds = {"postgresql": PostgresLocks, "mysql": MySQLLocks, "mariadb": MySQLLocks}
        if kind not in kinds:
            raise ValueError(f"a database of the kind {kind!r}")
        engine = self._alchemy.create_engine(url, poolclass=self._alchemy.pool.NullPool)
        self._closing.callback(engine.dispose)
        return kinds[kind](engine, self._alchemy.text)

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Convert a database's errors about an invalid address to a `ConfigError`."""
        try:
            yield
        except (ValueError, ImportError, self._alchemy.exc.SQLAlchemyError) as problem:
            self._closing.close()
            hint = ""
            if isinstance(problem, self._alchemy.exc.OperationalError):
                hint = "check that the server runs and that this user may open the database"
            elif isinstance(problem, ImportError):
                package = _DRIVERS.get(problem.name or "", problem.name)
                hint = f"install the driver of the database: pip install {package}"
            raise ConfigError.build(
                "search storage",
                expected=f"the address of a database such as {_EXAMPLES}",
                got=f"{self.address}: {str(problem).strip().splitlines()[0][:200]}",
                hint=hint,
            ) from None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude other programs from proposing or finishing trials within the block."""
        self._locks.acquire(self._turn)
        try:
            yield
        finally:
            self._locks.release(self._turn)

    def is_alive(self, owner: str | None) -> bool:
        """Return True if another program owns the trial and is still running."""
        return owner is not None and owner != self.owner and self._locks.is_held(owner)

    def close(self) -> None:
        """Close the study: this program runs no more trials."""
        self._closing.close()


class _ExplainedStorage:
    """A storage of Optuna whose errors of the database, such as a full disk, are ours."""

    def __init__(self, storage: Any, errors: tuple[type[Exception], ...], address: str) -> None:
        self._storage, self._errors, self._address = storage, errors, address

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)

        def call(*given: Any, **named: Any) -> Any:
            try:
                return method(*given, **named)
            except self._errors as problem:
                said = str(problem.__cause__ or problem).strip().splitlines()[0]
                raise FileWriteError.build(
                    f"search storage {self._address}",
                    expected="a database that can be read and written",
                    got=said[:200],
                    hint="its trials remain; continue the same study later",
                ) from problem

        return call


def _without_password(alchemy: Any, address: str) -> str:
    try:
        shown: str = alchemy.engine.make_url(address).render_as_string(hide_password=True)
    except alchemy.exc.SQLAlchemyError:
        return repr(address.partition("@")[2] or address)[:80]
    return shown
