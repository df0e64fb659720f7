"""Readers of IDX files (the format of MNIST), compressed files, tar archives and image files.

Archives are untrusted and never unpacked to disk. The unpacked bytes are counted: a file is
rejected as soon as it exceeds its limit. Images are read on access.
"""

from __future__ import annotations

import gzip
import lzma
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.file_access import check_asked, check_shape
from caldera.data.sources.base import SCALE, Array, Arrays, Data
from caldera.errors import DataError
from caldera.io.files import PathLike, file_size, named, opened, read_bounded

_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_PIECE = 1 << 20
# Exceptions of the decompressors for damage; MemoryError is for a dictionary of absurd size.
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
        """Return the next `size` bytes; fewer at the end."""
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
        require(
            len(data) <= self._left,
            self._where,
            f"at most {self._limit} bytes of contents",
            "more",
            hint="the file is damaged or hostile",
            error=DataError,
        )
        self._left -= len(data)
        return data

    def finish(self) -> None:
        """Read the remainder: a compressed file ends with its checksum."""
        while self.read(_PIECE):
            pass


class ArchiveMember(NamedTuple):
    """A file of an archive."""

    name: PurePosixPath
    content: bytes


def archive_members(
    path: PathLike, limit: int, largest: int, where: str
) -> Iterator[ArchiveMember]:
    """Iterate over the files of a tar archive (also gzip, xz), in memory.

    The archive may contain `limit` bytes in all and `largest` bytes in a file. Links, devices, and
    names that lead out of a folder are rejected: no honest data set has them.
    """
    with opened(path, "rb", where) as file:
        contents = BoundedReader(file, limit, where)
        hint = "the file is truncated or damaged"
        # As a stream: members are met in the order of their bytes, and none is read twice.
        with _tar_archive(where, "a tar archive", hint, mode="r|", fileobj=contents) as archive:
            for count, info in enumerate(archive):
                if count >= _MOST_MEMBERS:
                    raise _refused(where, f"more than {_MOST_MEMBERS} files")
                name = checked_name(info, largest, where)
                if not info.isdir():
                    yield ArchiveMember(name, _content(archive, info, where))
        contents.finish()


@contextmanager
def _tar_archive(where: str, expected: str, hint: str, **how: Any) -> Iterator[tarfile.TarFile]:
    """Open an archive and convert errors of its parser to `DataError`."""
    try:
        with tarfile.open(**how) as archive:
            yield archive
    except DataError:
        raise
    except Exception as error:
        # It has a different exception for every kind of damage.
        got = str(error) or type(error).__name__
        raise DataError.build(where, expected=expected, got=got, hint=hint) from None


def checked_name(info: tarfile.TarInfo, largest: int, where: str) -> PurePosixPath:
    """Return the name of a member; raise an error if its header is unacceptable."""
    name = PurePosixPath(info.name)
    if name.is_absolute() or ".." in name.parts or "\\" in info.name or ":" in info.name:
        raise _refused(where, f"the path {info.name!r}")
    if info.isdir():
        return name
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
        raise _refused(where, f"{info.name!r}, which is no plain file (type {info.type!r})")
    if not 0 <= info.size <= largest:
        raise _refused(where, f"{info.name!r} of {info.size} bytes")
    return name


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo, where: str) -> bytes:
    opened_member = archive.extractfile(info)
    content = opened_member.read() if opened_member else b""
    require(
        len(content) == info.size,
        where,
        f"{info.size} bytes of {info.name!r}",
        len(content),
        hint="the file is truncated",
        error=DataError,
    )
    return content


def _refused(where: str, what: str) -> DataError:
    return DataError.build(
        where,
        expected="an archive of plain files of a fitting size",
        got=what,
        hint="no file was unpacked; download the archive from a trusted source",
    )


_BYTES_OF_SIZE = 4
_UBYTE = 8
# Deflate cannot shrink anything further than this.
_LARGEST_COMPRESSION = 1032


def read_idx(path: PathLike, axes: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes with this many axes, plain or compressed.

    The header is compared with the size of the file before memory is allocated.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"abc")
    >>> read_idx(path, axes=1).tolist()
    [97, 98, 99]
    """
    where = named("read_idx", path)
    with opened(path, "rb", where) as file:
        stored = file_size(file)
        contents = BoundedReader(file, limit=stored * _LARGEST_COMPRESSION, where=where)
        shape = _read_header(contents, axes, where)
        header_bytes = _BYTES_OF_SIZE * (1 + axes)
        wanted = math.prod(shape)
        most = (
            stored if not contents.is_compressed else stored * _LARGEST_COMPRESSION
        ) - header_bytes
        require(
            wanted <= most,
            where,
            f"{wanted} bytes for shape {shape}",
            f"a file of {stored} bytes",
            hint="the file is truncated or damaged",
            error=DataError,
        )
        check_asked(wanted, where, held=stored)
        check_shape(shape, where)
        array = np.empty(wanted, np.uint8)
        filled = 0
        while piece := contents.read(min(_PIECE, wanted - filled + 1)):
            require(
                filled + len(piece) <= wanted,
                where,
                f"{wanted} bytes for shape {shape}",
                "more",
                error=DataError,
            )
            array[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        require(
            filled >= wanted,
            where,
            f"{wanted} bytes for shape {shape}",
            filled,
            hint="the file is truncated",
            error=DataError,
        )
        return array.reshape(shape)


def map_idx(path: PathLike) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, memory-mapped unless the file is compressed.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + b"abc")
    >>> map_idx(path).tolist()
    [97, 98, 99]
    """
    where = named("map_idx", path)
    with opened(path, "rb", where) as file:
        stored = file_size(file)
        contents = BoundedReader(file, limit=stored * _LARGEST_COMPRESSION, where=where)
        axes = max(contents.read(_BYTES_OF_SIZE)[3:], default=0)
        if contents.is_compressed:
            return read_idx(path, axes)
        file.seek(0)
        shape = _read_header(contents, axes, where)
        wanted, left = math.prod(shape), stored - file.tell()
        require(
            wanted == left,
            where,
            f"{wanted} bytes for shape {shape}",
            left,
            hint="the file is truncated or damaged",
            error=DataError,
        )
        check_shape(shape, where)
        if not wanted:
            return np.zeros(shape, np.uint8)
        return np.memmap(file, np.uint8, "r", file.tell(), shape).view(np.ndarray)


def _read_header(contents: BoundedReader, axes: int, where: str) -> tuple[int, ...]:
    """Return the shape in the header."""
    magic = contents.read(_BYTES_OF_SIZE)
    if magic != bytes([0, 0, _UBYTE, axes]):
        raise DataError.build(
            where,
            expected=f"an IDX file of bytes with {axes} axes, magic 0000{_UBYTE:02x}{axes:02x}",
            got=f"magic {magic.hex()}" if magic else "an empty file",
        )
    sizes = contents.read(_BYTES_OF_SIZE * axes)
    require(
        len(sizes) == _BYTES_OF_SIZE * axes,
        where,
        f"{axes} sizes",
        "the end of the file",
        error=DataError,
    )
    return tuple(int(size) for size in np.frombuffer(sizes, ">u4"))


SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
LARGEST_FILE = 1 << 28


class LabelledImage(NamedTuple):
    """An image that is not read yet, and its class."""

    name: str
    label: str
    read: Callable[[], bytes]


def class_names(images: Sequence[LabelledImage]) -> tuple[str, ...]:
    """Return the class names of images; their order defines the class numbers.

    >>> class_names([LabelledImage("1.png", "dog", bytes), LabelledImage("2.png", "cat", bytes)])
    ('cat', 'dog')
    """
    return tuple(sorted({image.label for image in images}))


class Files(Data):
    """Encoded images and the numbers of their classes; `Decode` converts them to arrays.

    `data.source` creates it from a folder or a tar archive. Files are read on access.

    >>> from caldera.data.sources.file_formats import Files, LabelledImage
    >>> files = Files([LabelledImage("a/1.png", "a", bytes), LabelledImage("b/1.png", "b", bytes)])
    >>> files.class_names, files.y.tolist(), files.name_of(1)
    (('a', 'b'), [0, 1], 'b/1.png')
    """

    scale = SCALE
    shape = ()
    dtype = np.dtype(object)

    def __init__(
        self, images: Sequence[LabelledImage], classes: Sequence[str] | None = None
    ) -> None:
        self._images = images
        self.class_names = class_names(images) if classes is None else tuple(classes)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        self._labels = np.array([numbers[image.label] for image in images], np.int64)

    def __len__(self) -> int:
        return len(self._images)

    def batch(self, indices: NDArray[np.integer]) -> Arrays:
        encoded = np.empty(len(indices), object)
        encoded[:] = [self._images[index].read() for index in indices]
        return encoded, self._labels[indices]

    @property
    def y(self) -> Array:
        return self._labels

    def name_of(self, index: int) -> str:
        return self._images[index].name

    def __repr__(self) -> str:
        return f"Files({len(self)} images of {len(self.class_names)} classes)"


def images_in_folder(folder: Path, where: str) -> list[LabelledImage]:
    """List the images of a folder that has one folder for each class, in the order of names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    found = [
        LabelledImage(
            f"{label.name}/{path.name}",
            label.name,
            partial(read_bounded, path, LARGEST_FILE, where),
        )
        for label in classes
        if not label.name.startswith(".")
        for path in sorted(label.iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    require(
        found,
        where,
        f"images in {folder}/<class>/",
        hint="make one folder for each class; known names end in " + ", ".join(sorted(SUFFIXES)),
        error=DataError,
    )
    return found


def images_in_archive(path: Path, where: str) -> list[LabelledImage]:
    """Return the images of a tar archive that is not compressed; its folders are the classes.

    The archive is read once from end to end for the places of its files, and stays open.
    """
    found = []
    # Closed when the last of its images is forgotten.
    file = _Opened(path, where)
    hint = "a compressed archive has no random access: unpack it, or write shards"
    with _tar_archive(where, f"a tar archive at {path}", hint, mode="r:", name=path) as archive:
        for info in archive:
            name = checked_name(info, LARGEST_FILE, where)
            if name.suffix.lower() not in SUFFIXES or name.name.startswith("."):
                continue
            if not name.parent.name:
                raise DataError.build(
                    where, expected="a folder for each class in the archive", got=str(name)
                )
            read = partial(file.read, info.offset_data, info.size, str(name))
            found.append(LabelledImage(str(name), name.parent.name, read))
    require(found, where, f"images in {path}", error=DataError)
    return found


class _Opened:
    """A file from which several threads may read."""

    def __init__(self, path: Path, where: str) -> None:
        self._where = where
        with opened(path, "rb", where) as file:
            self._number = os.dup(file.fileno())

    def read(self, start: int, size: int, name: str) -> bytes:
        content = os.pread(self._number, size, start)
        require(
            len(content) == size,
            f"{self._where} {name}",
            f"{size} bytes",
            len(content),
            hint="the archive is truncated",
            error=DataError,
        )
        return content

    def __del__(self) -> None:
        # Not there if the file could not be opened.
        if "_number" in self.__dict__:
            os.close(self._number)
