"""Files that are read block by block, by each rank what it needs: they may be larger than memory.

A source has a `shape`, a `dtype`, and gives the elements of a box. NumPy's files are mapped into
memory; HDF5 and Zarr are read by their own libraries, where these are installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caldera.base.registry import optional_import
from caldera.compiler.sharding.layout import IndexBlock, ShardLayout
from caldera.core.tensor.dtype import DType, canonical
from caldera.core.tensor.shape import Shape
from caldera.errors import ConfigError, DataError
from caldera.io import map_npy

BLOCK_BYTES = 64 << 20
"""What is read at a time, unless a row is larger."""
SUFFIXES = {".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".zarr": "zarr"}


class FileArray(NamedTuple):
    """An array in a file: `elements` takes slices as NumPy's arrays do."""

    shape: Shape
    dtype: DType
    elements: Any


def open_source(path: str, dataset: str = "") -> FileArray:
    """The array of a file, which stays there; `dataset` is its name where a file has several.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.npy"
    >>> np.save(path, np.arange(6.0).reshape(2, 3))
    >>> open_source(str(path)).shape
    (2, 3)
    """
    kind = SUFFIXES.get(Path(path).suffix.lower())
    if kind is None:
        raise ConfigError.build(
            "dm.load",
            expected="a folder of dm.save, or a file that ends in " + ", ".join(SUFFIXES),
            got=path,
        )
    if kind == "npy":
        array = map_npy(path)
        return FileArray(array.shape, canonical(array.dtype), array)
    where = f"dm.load {Path(path).name}"
    if not Path(path).exists():
        raise DataError.build(where, expected=f"a file at {path}", got="none")
    package = "h5py" if kind == "hdf5" else "zarr"
    library = optional_import(package, package, where)
    try:
        opened = library.File(path, "r") if kind == "hdf5" else library.open(path, mode="r")
        found = opened[dataset] if dataset else opened
    except (OSError, KeyError, ValueError) as error:
        wanted = f" with a dataset {dataset!r}" if dataset else ""
        raise DataError.build(
            where, expected=f"a file of {package}{wanted}", got=str(error)
        ) from None
    if not hasattr(found, "dtype"):
        names = ", ".join(sorted(map(str, found)))
        raise ConfigError.build(where, expected=f"dataset= one of {names}", got=repr(dataset))
    return FileArray(tuple(found.shape), canonical(found.dtype), found)


def read_part(source: FileArray, layout: ShardLayout, rank: int) -> np.ndarray:
    """A rank's part of an array in a file: nothing else of it is read."""
    part = np.zeros(layout.local_shape(rank), source.dtype)
    flat = part.reshape(-1)
    for piece in layout.pieces(rank):
        block = flat[piece.offset : piece.offset + piece.size].reshape(piece.shape)
        _read(source, piece, block)
    return part


def _read(source: FileArray, piece: IndexBlock, block: np.ndarray) -> None:
    """The elements of a piece, stretch by stretch: libraries take slices, and NumPy's are views."""
    if not block.ndim:
        block[...] = source.elements[()]
        return
    places = [0] * block.ndim
    _stretches(source, piece, block, (), places)


def _stretches(
    source: FileArray,
    piece: IndexBlock,
    block: np.ndarray,
    box: tuple[slice, ...],
    places: list[int],
) -> None:
    axis = len(box)
    if axis == block.ndim:
        here = tuple(
            slice(place, place + own.stop - own.start)
            for place, own in zip(places, box, strict=True)
        )
        block[here] = source.elements[box]
        return
    places = list(places)
    row = max(1, block.itemsize * int(np.prod(block.shape[1:], dtype=np.int64)))
    for begin, end in piece.axes[axis]:
        step = max(1, BLOCK_BYTES // row) if axis == 0 else end - begin
        for first in range(begin, end, step):
            last = min(end, first + step)
            _stretches(source, piece, block, (*box, slice(first, last)), places)
            places[axis] += last - first
