"""Checks before file access: trusted owners, size limits and portable file names.

Content read from a cache is executed, so only this user may have written it. The rules are the same
as ssh's rules for keys: every folder on the path belongs to this user or to root, and no other user
may write to it. A folder such as /tmp, with the sticky bit, is safe on the path: others may write
there but only an owner may rename, and the entries inside are checked too. A group without other
members is safe as well: on systems with one group per user, folders are often writable by the
group. Links are followed explicitly, since their targets and the path to them need the same checks.

A small file can declare that it unpacks to terabytes. Before memory is allocated for a declared
size, it is compared with the size of the file. Up to a hundred times the file is common (compressed
masks, the activations of a network) and allowed, and `settings.file_limit` bytes always are.

A data set, class or host may have any name. A file name derived from it must not lead into another
folder, and must be accepted by all operating systems.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from caldera.base.config import settings
from caldera.base.formatting import bytes_text
from caldera.errors import ConfigError, DataError

_ROOT = 0
_MOST_LINKS = 40
_MAY_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Absent on Windows, where a user's folders are his own by other means.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def this_user() -> int:
    """Return the number of the user that this process acts for."""
    return os.geteuid()


def why_folder_is_unsafe(folder: Path) -> str:
    """Why others could have put something into a folder; empty if only this user could.

    A folder that is not there is safe if it can be made in a safe place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name).resolve()
    ...     before = why_folder_is_unsafe(folder / "new")
    ...     folder.chmod(0o777)
    ...     after = why_folder_is_unsafe(folder)
    >>> before, after.replace(str(folder), "FOLDER")
    ('', 'others may write to FOLDER (mode 0777)')
    """
    if os.name == "nt":
        return ""
    above_home = _above_home(this_user())
    place, found = "/", None
    try:
        for place, found in _way(str(folder.absolute())):
            # The owner of a folder above a user's home could act as that user anyway.
            reason = "" if place in above_home else _why_unsafe_on_the_way(place, found)
            if reason:
                return reason
    except (FileNotFoundError, NotADirectoryError):
        # This user makes it, in the last folder that was there, or cannot.
        return ""
    except OSError as problem:
        return f"{place} cannot be inspected ({problem.strerror})"
    assert found is not None
    return _why_unsafe(place, found)


def read_own_file(path: Path) -> bytes:
    """Return the content of a file that only this user can have written.

    Raises OSError if there is no such file; PermissionError gives the reason to reject a file that
    is there.
    """
    # The opened file itself is checked, so that it cannot be replaced between check and read.
    with os.fdopen(os.open(path, os.O_RDONLY | _NOFOLLOW), "rb") as file:
        found = os.fstat(file.fileno())
        reason = "" if os.name == "nt" else _why_unsafe(str(path), found)
        if not stat.S_ISREG(found.st_mode):
            reason = f"{path} is no plain file"
        if reason:
            raise PermissionError(errno.EPERM, reason, str(path))
        return file.read()


def read_secret_file(path: Path) -> bytes:
    """Return the content of a file that no other user can read or write, except root.

    Links are followed, since mounted secrets are links. Raises OSError if there is no such file;
    PermissionError states why a file was rejected.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"secret"); file.flush()
    ...     read_secret_file(Path(file.name))
    b'secret'
    """
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        # A file mounted by root may have a group, namely the group of its reader.
        kept_from = 0o037 if found.st_uid == _ROOT != this_user() else 0o077
        reason = ""
        if not stat.S_ISREG(found.st_mode):
            reason = f"{path} is no plain file"
        elif os.name != "nt" and found.st_uid not in (_ROOT, this_user()):
            reason = f"{path} belongs to user {found.st_uid}, not to user {this_user()}"
        elif os.name != "nt" and found.st_mode & kept_from:
            reason = f"others have access to {path} (mode {stat.S_IMODE(found.st_mode):04o})"
        if reason:
            raise PermissionError(errno.EPERM, reason, str(path))
        return file.read()


def _why_unsafe(name: str, found: os.stat_result) -> str:
    """Return the reason not to trust a file or a folder of files; empty if it is safe."""
    if found.st_uid != this_user():
        return f"{name} belongs to user {found.st_uid}, not to user {this_user()}"
    if _may_others_write(found):
        return f"others may write to {name} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _why_unsafe_on_the_way(place: str, found: os.stat_result) -> str:
    if found.st_uid not in (_ROOT, this_user()):
        return f"{place} belongs to user {found.st_uid}, neither to user {this_user()} nor to root"
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return ""
    if _may_others_write(found):
        return f"others may write to {place} (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _may_others_write(found: os.stat_result) -> bool:
    if not found.st_mode & _MAY_OTHERS_WRITE:
        return False
    return bool(found.st_mode & stat.S_IWOTH) or not _is_group_of_one(found.st_gid)


def _is_group_of_one(group: int) -> bool:
    """Return True if this user is the only member of a group."""
    import grp
    import pwd

    users = [each for each in pwd.getpwall() if each.pw_gid == group]
    try:
        names = {each.pw_name for each in users} | set(grp.getgrgid(group).gr_mem)
        return names == {pwd.getpwuid(this_user()).pw_name}
    except KeyError:
        # A user or group without a name, as in some containers: its members are unknown.
        return False


@cache
def _above_home(user: int) -> frozenset[str]:
    """Return the folders above the home of a user."""
    import pwd

    try:
        return frozenset(map(str, Path(pwd.getpwuid(user).pw_dir).resolve().parents))
    except KeyError:
        return frozenset()


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each folder and link on the way to a path, and the path itself, from the top."""
    here = "/"
    yield here, os.lstat(here)
    parts = path.split("/")[::-1]
    links = 0
    while parts:
        name = parts.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = f"{here.rstrip('/')}/{name}"
        found = os.lstat(there)
        yield there, found
        if not stat.S_ISLNK(found.st_mode):
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, "too many links", path)
        target = os.readlink(there)
        here = "/" if target.startswith("/") else here
        parts += target.split("/")[::-1]


_MOST_AXES = 64
_MOST_ELEMENTS = ((1 << 63) - 1) // 16
"""Maximum number of elements of the widest dtype, complex numbers of 16 bytes."""
USUAL_GROWTH = 100
"""Ratio of requested memory to file size that is always allowed."""


def check_asked(wanted: int, where: str, *, held: int = 0) -> None:
    """Raise if a file of `held` bytes requests `wanted` bytes of memory, and that is too much.

    >>> check_asked(5 << 30, "load_npz bomb.npz", held=1000)
    Traceback (most recent call last):
    caldera.errors.DataError: load_npz bomb.npz: expected a file that requires at most 1.0 GiB,
    got 5.0 GiB; if you trust it, set cd.settings.file_limit = 5368709120 (CALDERA_FILE_LIMIT)
    """
    allowed = max(settings.file_limit, USUAL_GROWTH * held)
    if wanted > allowed:
        raise DataError.build(
            where,
            expected=f"a file that requires at most {bytes_text(allowed)}",
            got=bytes_text(wanted),
            hint=f"if you trust it, set cd.settings.file_limit = {wanted} (CALDERA_FILE_LIMIT)",
        )


def check_shape(shape: Sequence[int], where: str) -> None:
    """Refuse a shape that no array has: its sizes are in a file, which may hold no element.

    >>> check_shape((0, 1 << 62, 1 << 62), "load_npy big.npy")
    Traceback (most recent call last):
    caldera.errors.DataError: load_npy big.npy: expected at most 64 sizes, whose product fits into
    64 bits, got 3 sizes, (0, 4611686018427387904, 46...; the file is damaged
    """
    # Axes of no elements do not count: NumPy takes room for one.
    if len(shape) > _MOST_AXES or math.prod(max(n, 1) for n in shape) > _MOST_ELEMENTS:
        raise DataError.build(
            where,
            expected=f"at most {_MOST_AXES} sizes, whose product fits into 64 bits",
            got=f"{len(shape)} sizes, {str(tuple(shape))[:30]}...",
            hint="the file is damaged",
        )


@dataclass
class Demand:
    """Total memory that a file of `held` bytes requests in several parts.

    >>> demand = Demand("table bomb.xlsx", held=1000)
    >>> demand.add(1 << 20)
    >>> demand.add(1 << 31)
    Traceback (most recent call last):
    caldera.errors.DataError: table bomb.xlsx: expected a file that requires at most 1.0 GiB,
    got 2.0 GiB; if you trust it, set cd.settings.file_limit = 2148532224 (CALDERA_FILE_LIMIT)
    """

    where: str
    held: int
    wanted: int = 0

    def add(self, wanted: int) -> None:
        """Add `wanted` bytes to the total."""
        self.wanted += wanted
        check_asked(self.wanted, self.where, held=self.held)


_ALLOWED = frozenset("._-+ ")
_LONGEST = 150
"""Bytes: less than any system takes, since endings are added."""
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *[f"{port}{n}" for port in ("com", "lpt") for n in range(10)]]
)
"""Device names on Windows, with any ending."""


def file_name(text: str) -> str:
    """Return a file name derived from any text; a valid file name is returned unchanged.

    >>> file_name("iris"), file_name("../up"), file_name("a/b: c?"), file_name("")
    ('iris', 'up', 'a-b- c', 'unnamed')
    """
    composed = unicodedata.normalize("NFC", text)
    kept = "".join(c if c.isalnum() or c in _ALLOWED else "-" for c in composed)
    # A leading dot would hide the file, a dash make it an option, a final dot or space be lost.
    name = kept.encode(errors="ignore")[:_LONGEST].decode(errors="ignore").strip(".- ") or "unnamed"
    return f"_{name}" if name.partition(".")[0].lower() in _DEVICES else name


def checked_file_name(text: str, where: str) -> str:
    """Return the text, which has to be fit for a file name.

    >>> checked_file_name("a/b", "cache")
    Traceback (most recent call last):
    caldera.errors.ConfigError: cache: expected a name that can be a file's, got 'a/b';
    for example 'a-b'
    """
    fit = file_name(text)
    if fit != text:
        raise ConfigError.build(
            where,
            expected="a name that can be a file's",
            got=repr(text)[:100],
            hint=f"for example {fit!r}",
        )
    return text


def output_file(
    path: str | os.PathLike[str], suffix: str, where: str, hint: str, *others: str
) -> Path:
    """Return the path of a file to write, which must end in `suffix` (or one of `others`) and be in
    a folder there is.

    >>> output_file("plan.txt", ".json", "trace", "open it in a browser")
    Traceback (most recent call last):
    caldera.errors.ConfigError: trace: expected a file name that ends in .json, got 'plan.txt';
    open it in a browser
    """
    target = Path(path)
    if target.suffix.lower() not in (suffix, *others):
        expected = f"a file name that ends in {suffix}"
        raise ConfigError.build(where, expected=expected, got=repr(str(path)), hint=hint)
    if not target.parent.is_dir():
        raise ConfigError.build(
            where,
            expected="a folder that exists",
            got=repr(str(target.parent)),
            hint="make it first, for example with Path.mkdir(parents=True)",
        )
    return target
