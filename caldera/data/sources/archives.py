"""Compressed files and archives, read without trust and without unpacking anything to disk.

What comes out is counted: a file that unpacks to more than it should is refused as soon as it does.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from caldera.errors import DataError
from caldera.io.files import PathLike, opened

_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_PIECE = 1 << 20
# What the decompressors raise for damage; MemoryError is for a dictionary of absurd size.
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)
_MOST_MEMBERS = 1_000_000


class BoundedReader:
    """The contents of an open file that may be compressed (gzip, xz), up to `limit` bytes.

    >>> import io
    >>> BoundedReader(io.BytesIO(gzip.compress(b"text")), limit=4, where="read").read(10)
    b'text'
    >>> BoundedReader(io.BytesIO(gzip.compress(b"text")), limit=3, where="read").read(10)
    Traceback (most recent call last):
    caldera.errors.DataError: read: expected at most 3 bytes of contents, got more;
    the file is damaged or hostile
    """

    def __init__(self, file: IO[bytes], limit: int, where: str) -> None:
        magic = file.read(len(_XZ_MAGIC))
        file.seek(0)
        self.is_compressed = True
        self._contents: Any
        if magic.startswith(_GZIP_MAGIC):
            self._contents = gzip.GzipFile(fileobj=file)
        elif magic == _XZ_MAGIC:
            self._contents = lzma.LZMAFile(file)  # noqa: SIM115 - the file is closed by its opener
        else:
            self._contents = file
            self.is_compressed = False
        self._left = limit
        self._limit = limit
        self._where = where

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        try:
            # One byte more than is allowed shows that there is more.
            data: bytes = self._contents.read(min(size, self._left + 1))
        except _DAMAGE as error:
            raise DataError.build(
                self._where,
                expected="a whole compressed file",
                got=str(error),
                hint="the file is truncated or damaged",
            ) from None
        if len(data) > self._left:
            raise DataError.build(
                self._where,
                expected=f"at most {self._limit} bytes of contents",
                got="more",
                hint="the file is damaged or hostile",
            )
        self._left -= len(data)
        return data

    def finish(self) -> None:
        """Read what is left: the checksum of a compressed file stands at its end."""
        while self.read(_PIECE):
            pass


class Member(NamedTuple):
    """A file of an archive."""

    name: PurePosixPath
    content: bytes


def archive_members(path: PathLike, limit: int, largest: int, where: str) -> Iterator[Member]:
    """The files of a tar archive (also gzip, xz), one after the other, in memory.

    The archive may hold `limit` bytes in all and `largest` in one file. Links, devices, and names
    that lead out of a folder are refused: no honest data set has them.
    """
    with opened(path, "rb", where) as file:
        contents = BoundedReader(file, limit, where)
        try:
            # As a stream: members are met in the order of their bytes, and none is read twice.
            with tarfile.open(fileobj=contents, mode="r|") as archive:  # type: ignore[call-overload]
                for count, info in enumerate(archive):
                    if count >= _MOST_MEMBERS:
                        raise _refused(where, f"more than {_MOST_MEMBERS} files")
                    name = checked_name(info, largest, where)
                    if not info.isdir():
                        yield Member(name, _content(archive, info, where))
        except DataError:
            raise
        except Exception as error:
            # The parser has a different exception for every kind of damage.
            raise DataError.build(
                where,
                expected="a tar archive",
                got=str(error) or type(error).__name__,
                hint="the file is truncated or damaged",
            ) from None
        contents.finish()


def checked_name(info: tarfile.TarInfo, largest: int, where: str) -> PurePosixPath:
    """The name of a member, unless what the archive says about it is reason to refuse it."""
    name = PurePosixPath(info.name)
    if name.is_absolute() or ".." in name.parts or "\\" in info.name or ":" in info.name:
        raise _refused(where, f"the path {info.name!r}")
    if info.isdir():
        return name
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise _refused(where, f"{info.name!r}, which is no plain file (type {info.type!r})")
    if not 0 <= info.size <= largest:
        raise _refused(where, f"{info.name!r} of {info.size} bytes")
    return name


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo, where: str) -> bytes:
    opened_member = archive.extractfile(info)
    content = opened_member.read() if opened_member else b""
    if len(content) != info.size:
        raise DataError.build(
            where,
            expected=f"{info.size} bytes of {info.name!r}",
            got=str(len(content)),
            hint="the file is truncated",
        )
    return content


def _refused(where: str, what: str) -> DataError:
    return DataError.build(
        where,
        expected="an archive of plain files of a fitting size",
        got=what,
        hint="nothing was unpacked; get the archive from a source you trust",
    )
