"""A study in a database that several programs work on at once, on one machine or on many.

Optuna keeps the trials. What it does not have is a way for two programs to take turns, and to know
whether the one that runs a trial still lives: databases have locks for that, which end with the
connection of whoever holds them. PostgreSQL's advisory locks, MySQL's named ones, and files beside
an SQLite database, which is for programs of one machine.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from caldera.base.registry import optional_import
from caldera.errors import ConfigError
from caldera.search.journal import held_lock

_DRIVERS = {"psycopg": '"psycopg[binary]"', "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Packages that do not have the names of their modules."""
_EXAMPLES = "sqlite:///study.db, postgresql://user@host/database or mysql+pymysql://..."


class Locks(ABC):
    """Named locks of a database; each ends with the program that holds it."""

    @abstractmethod
    def take(self, name: str) -> None:
        """Wait for a lock."""

    @abstractmethod
    def give_back(self, name: str) -> None:
        """Let others have it."""

    @abstractmethod
    def is_held(self, name: str) -> bool:
        """Whether another program has it."""

    @abstractmethod
    def close(self) -> None:
        """Give all of them back."""


class PostgresLocks(Locks):
    """Advisory locks of a session."""

    def __init__(self, engine: Any, text: Any) -> None:
        self._text = text
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def _call(self, function: str, name: str) -> Any:
        key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
        return self._connection.execute(self._text(f"SELECT {function}(:key)"), {"key": key})

    def take(self, name: str) -> None:
        self._call("pg_advisory_lock", name).close()

    def give_back(self, name: str) -> None:
        self._call("pg_advisory_unlock", name).close()

    def is_held(self, name: str) -> bool:
        if self._call("pg_try_advisory_lock", name).scalar():
            self.give_back(name)
            return False
        return True

    def close(self) -> None:
        self._connection.close()


class MySQLLocks(Locks):
    """Named locks of a session."""

    def __init__(self, engine: Any, text: Any) -> None:
        self._text = text
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def _call(self, call: str, name: str) -> Any:
        key = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self._connection.execute(self._text(f"SELECT {call}"), {"key": key}).scalar()

    def take(self, name: str) -> None:
        while self._call("GET_LOCK(:key, 60)", name) != 1:
            pass

    def give_back(self, name: str) -> None:
        self._call("RELEASE_LOCK(:key)", name)

    def is_held(self, name: str) -> bool:
        return self._call("IS_FREE_LOCK(:key)", name) == 0

    def close(self) -> None:
        self._connection.close()


class FileLocks(Locks):
    """Files beside an SQLite database."""

    def __init__(self, database: str) -> None:
        self._database = Path(database).absolute()
        self._held: dict[str, ExitStack] = {}

    def _path(self, name: str) -> Path:
        key = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        return self._database.with_name(f"{self._database.name}.{key}.lock")

    def take(self, name: str) -> None:
        with ExitStack() as stack:
            stack.enter_context(held_lock(self._path(name)))
            self._held[name] = stack.pop_all()

    def give_back(self, name: str) -> None:
        self._held.pop(name).close()

    def is_held(self, name: str) -> bool:
        path = self._path(name)
        if not path.exists():
            return False
        with held_lock(path, 0.0) as is_free:
            if is_free:
                # It was killed; who is asked for has no file once it has ended.
                path.unlink(missing_ok=True)
            return not is_free

    def close(self) -> None:
        for name in list(self._held):
            # Nobody asks for the life of a program again that has ended.
            with suppress(OSError):
                self._path(name).unlink()
            self.give_back(name)


class Database:
    """The storage of a study at an address, and this program's part in it."""

    def __init__(self, optuna: Any, address: str, study: str) -> None:
        self._alchemy = optional_import("sqlalchemy", "sqlalchemy", "search storage")
        self.address = _without_password(self._alchemy, address)
        self._turn = f"caldera turn {study}"
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        """Who has the trials that are begun here."""
        self._closing = ExitStack()
        with self._speaking():
            self._locks = self._open(address)
            self._closing.callback(self._locks.close)
            # Two that make tables at once would trip over each other.
            with self.turn():
                self.storage = optuna.storages.get_storage(address)
            self._locks.take(self.owner)

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
    def _speaking(self) -> Iterator[None]:
        """What a database says of an address that it does not know, as an error of ours."""
        try:
            yield
        except (ValueError, ImportError, self._alchemy.exc.SQLAlchemyError) as problem:
            self._closing.close()
            hint = ""
            if isinstance(problem, self._alchemy.exc.OperationalError):
                hint = "is the server there, and may this user open the database?"
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
        """While this lasts, no other program asks for a trial or finishes one."""
        self._locks.take(self._turn)
        try:
            yield
        finally:
            self._locks.give_back(self._turn)

    def is_alive(self, owner: str | None) -> bool:
        """Whether the program that has a trial is another one, and still runs."""
        return owner is not None and owner != self.owner and self._locks.is_held(owner)

    def close(self) -> None:
        """This program runs no more trials."""
        self._closing.close()


def _without_password(alchemy: Any, address: str) -> str:
    try:
        shown: str = alchemy.engine.make_url(address).render_as_string(hide_password=True)
    except alchemy.exc.SQLAlchemyError:
        return repr(address.partition("@")[2] or address)[:80]
    return shown
