"""IDX files, the format of MNIST: a short header, then bytes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from caldera.base.file_limit import check_asked
from caldera.data.sources.archives import BoundedReader
from caldera.errors import DataError
from caldera.io.files import PathLike, file_size, named, opened

_BYTES_OF_SIZE = 4
_UBYTE = 8
# Deflate cannot shrink anything further than this.
_LARGEST_COMPRESSION = 1032
_PIECE = 1 << 20


def read_idx(path: PathLike, axes: int) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes with this many axes, plain or compressed.

    What the header says is compared with the size of the file before memory is taken.

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
        if wanted > most:
            raise DataError.build(
                where,
                expected=f"{wanted} bytes for shape {shape}",
                got=f"a file of {stored} bytes",
                hint="the file is truncated or damaged",
            )
        check_asked(wanted, where, held=stored)
        array = np.empty(wanted, np.uint8)
        filled = 0
        while piece := contents.read(min(_PIECE, wanted - filled + 1)):
            if filled + len(piece) > wanted:
                raise DataError.build(
                    where, expected=f"{wanted} bytes for shape {shape}", got="more"
                )
            array[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        if filled < wanted:
            raise DataError.build(
                where,
                expected=f"{wanted} bytes for shape {shape}",
                got=str(filled),
                hint="the file is truncated",
            )
        return array.reshape(shape)


def map_idx(path: PathLike) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes; it stays in the file, unless that is compressed.

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
        if wanted != left:
            raise DataError.build(
                where,
                expected=f"{wanted} bytes for shape {shape}",
                got=str(left),
                hint="the file is truncated or damaged",
            )
        if not wanted:
            return np.zeros(shape, np.uint8)
        return np.memmap(file, np.uint8, "r", file.tell(), shape).view(np.ndarray)


def _read_header(contents: BoundedReader, axes: int, where: str) -> tuple[int, ...]:
    """The shape that the header gives."""
    magic = contents.read(_BYTES_OF_SIZE)
    if magic != bytes([0, 0, _UBYTE, axes]):
        raise DataError.build(
            where,
            expected=f"an IDX file of bytes with {axes} axes, magic 0000{_UBYTE:02x}{axes:02x}",
            got=f"magic {magic.hex()}" if magic else "an empty file",
        )
    sizes = contents.read(_BYTES_OF_SIZE * axes)
    if len(sizes) != _BYTES_OF_SIZE * axes:
        raise DataError.build(where, expected=f"{axes} sizes", got="the end of the file")
    return tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
