"""Arrays in pieces: saved as one part per rank in a folder, or passed on block by block.

A folder contains `index.json` and a safetensors file for each rank with data. Any number of ranks
can read it: each finds the parts that overlap with its own and reads them whole, since each part
has a checksum. The index has a digest and is written last, in one step: until then the array saved
there before stays valid.

A source has a `shape`, a `dtype`, and returns the elements of a box; it may be larger than memory.
Blocks are for callers that process one at a time: Dask, pandas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from caldera.base.arguments import require, shown
from caldera.base.file_access import checked_file_name
from caldera.base.plain_data import is_sealed, sealed
from caldera.base.registry import optional_import
from caldera.comm.places.shared_folder import unseen
from caldera.compiler.sharding.layout import IndexBlock, ShardLayout
from caldera.core.tensor.dtype import DType, canonical, complex128
from caldera.core.tensor.shape import Shape
from caldera.dmath.codec import decode, encode
from caldera.dmath.protocol import service
from caldera.dmath.rank import Rank
from caldera.errors import CalderaError, ConfigError, DataError, ShapeError
from caldera.io import load_safetensors_metadata, map_npy, map_safetensors, save_safetensors
from caldera.io.files import bytes_of, created, read_bounded

BLOCK_BYTES = 64 << 20
"""Bytes per read, unless a row is larger."""
SUFFIXES = {".npy": "npy", ".h5": "hdf5", ".hdf5": "hdf5", ".zarr": "zarr"}


class FileArray(NamedTuple):
    """An array in a file: `elements` takes slices as NumPy's arrays do."""

    shape: Shape
    dtype: DType
    elements: Any


def open_source(path: str, dataset: str = "") -> FileArray:
    """Return the array of a file, without reading its values.

    `dataset` is its name where a file has several.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.npy"
    >>> np.save(path, np.arange(6.0).reshape(2, 3))
    >>> open_source(str(path)).shape
    (2, 3)
    """
    kind = SUFFIXES.get(Path(path).suffix.lower())
    require(
        kind is not None,
        "dm.load",
        "a folder of dm.save, or a file that ends in " + ", ".join(SUFFIXES),
        path,
    )
    if kind == "npy":
        array = map_npy(path)
        return FileArray(array.shape, canonical(array.dtype), array)
    where = f"dm.load {Path(path).name}"
    require(Path(path).exists(), where, f"a file at {path}", error=DataError)
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
    """Read only a rank's part of an array in a file."""
    part = np.zeros(layout.local_shape(rank), source.dtype)
    flat = part.reshape(-1)
    for piece in layout.pieces(rank):
        _read(source, piece, piece.view(flat))
    return part


def _read(source: FileArray, piece: IndexBlock, block: np.ndarray) -> None:
    """The elements of a piece, stretch by stretch: libraries take slices, and NumPy's are views."""
    if not block.ndim:
        block[...] = source.elements[()]
        return
    row = max(1, block.itemsize * prod(block.shape[1:]))
    steps = [max(1, BLOCK_BYTES // row), *block.shape[1:]]
    stretches = [
        [
            (first, min(end, first + step))
            for begin, end in axis
            for first in range(begin, end, step)
        ]
        for axis, step in zip(piece.axes, steps, strict=True)
    ]
    for box in product(*stretches):
        there = IndexBlock(tuple((stretch,) for stretch in box))
        block[piece.index_of(there)] = source.elements[tuple(slice(*each) for each in box)]


INDEX = "index.json"
MOST_INDEX_BYTES = 1 << 28
FORMAT, VERSION, WITHOUT_DIGEST = "caldera arrays", 2, 1


@dataclass(frozen=True)
class Saved:
    """An array of an index: its dtype, the layout it was saved in, and the file of each rank."""

    dtype: str
    layout: ShardLayout
    files: Mapping[int, str]


def write_index(folder: Path, arrays: Mapping[str, Saved]) -> None:
    """Make what ranks have written count; files that no index names any more are removed."""
    written = {
        name: {
            "dtype": each.dtype,
            "layout": json.loads(encode(each.layout)),
            "files": {str(rank): file for rank, file in each.files.items()},
        }
        for name, each in arrays.items()
    }
    content = {"format": FORMAT, "version": VERSION, "arrays": written}
    with created(folder / INDEX, "w", "dm.save") as file:
        json.dump(sealed(content), file)
    named = {file for each in arrays.values() for file in each.files.values()}
    for old in folder.glob("part-*.safetensors"):
        if old.name not in named:
            with suppress(OSError):
                old.unlink()


def read_index(folder: Path) -> dict[str, Saved]:
    """Return the arrays in a folder."""
    where = f"dm.load {folder.name}"
    text = read_bounded(folder / INDEX, MOST_INDEX_BYTES, where)
    try:
        content = json.loads(text)
        made = content["format"], content["version"]
        if made == (FORMAT, WITHOUT_DIGEST) or (made == (FORMAT, VERSION) and is_sealed(content)):
            return {name: _saved(raw) for name, raw in content["arrays"].items()}
    except (
        CalderaError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
    ) as error:
        raise DataError.build(
            where, expected=f"an {INDEX} as dm.save writes it", got=repr(error)[:200]
        ) from None
    raise DataError.build(
        where,
        expected=f"{FORMAT!r}, version {VERSION}, with its digest",
        got=f"{made[0]!r}, version {made[1]}"[:100],
        hint="the file is damaged, or a newer Caldera has written it",
    )


def _saved(raw: Any) -> Saved:
    layout = decode(json.dumps(raw["layout"]).encode())
    if not isinstance(layout, ShardLayout):
        raise TypeError(f"a layout that is {type(layout).__name__}")
    files = {
        int(rank): checked_file_name(name, f"dm.load {INDEX}")
        for rank, name in raw["files"].items()
    }
    return Saved(canonical(raw["dtype"]).name, layout, files)


# --- what ranks do


@service
def unseen_folder(rank: Rank, path: str, nonce: str) -> str:
    """Return the reason why a rank does not see the file of a proof; see `FolderProof`."""
    return unseen({"path": path, "nonce": nonce})


@service
def save_parts(rank: Rank, folder: str, mark: str, arrays: tuple[tuple[str, int], ...]) -> str:
    """Write this rank's parts of arrays, by name and number; the name of the file."""
    name = f"part-{mark}-{rank.communicator.rank:05}.safetensors"
    parts = {key: _storable(rank.part(number).numpy()) for key, number in arrays}
    if not parts:
        return ""
    sums = {key: str(crc32(bytes_of(part))) for key, part in parts.items()}
    save_safetensors(Path(folder) / name, parts, sums)
    return name


@service
def load_parts(
    rank: Rank, folder: str, name: str, number: int, target: ShardLayout, saved: tuple[Any, ...]
) -> None:
    """Read this rank's part of an array saved in any layout."""
    dtype, source, files = saved
    here = rank.communicator.rank
    part = np.zeros(target.local_shape(here), canonical(dtype))
    flat = part.reshape(-1)
    for other, file in files:
        wanted = list(_shared(source, other, target, here))
        if not wanted:
            continue
        stored = _part_in(Path(folder) / file, name, source.local_shape(other), part.dtype)
        for theirs, mine, both in wanted:
            mine.view(flat)[mine.index_of(both)] = theirs.view(stored)[theirs.index_of(both)]
    rank.put(number, part)


@service
def load_source(rank: Rank, path: str, dataset: str, number: int, layout: ShardLayout) -> None:
    """Read this rank's part of an array in a file."""
    rank.put(number, read_part(open_source(path, dataset), layout, rank.communicator.rank))


def _shared(
    source: ShardLayout, other: int, target: ShardLayout, here: int
) -> Iterator[tuple[IndexBlock, IndexBlock, IndexBlock]]:
    """Yield (block in the file, block of this rank, their intersection)."""
    for theirs in source.pieces(other):
        for mine in target.pieces(here):
            both = theirs.overlap(mine)
            if both is not None:
                yield theirs, mine, both


def _part_in(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    stored = map_safetensors(path).get(name)
    expected = (*shape, 2) if dtype == complex128 else shape
    kind = np.dtype(np.float64) if dtype == complex128 else dtype
    if stored is None or stored.shape != expected or stored.dtype != kind:
        got = "none" if stored is None else f"{stored.shape} {stored.dtype.name}"
        raise DataError.build(
            f"dm.load {path.name}",
            expected=f"a part {name!r} of {expected} {kind.name}",
            got=got,
            hint="the file and the index were not written together",
        )
    # Files of older versions have none.
    sums = load_safetensors_metadata(path)
    require(
        not sums or sums.get(name) == str(crc32(bytes_of(stored))),
        f"dm.load {path.name}",
        f"a part {name!r} that fits its checksum",
        "other bytes",
        hint="the file is damaged; restore it from a copy",
        error=DataError,
    )
    return stored.reshape(-1).view(dtype)


def _storable(part: np.ndarray) -> np.ndarray:
    """Return a part in a dtype of safetensors, which has no complex128."""
    if part.dtype != complex128:
        return part
    return np.ascontiguousarray(part).view(np.float64).reshape(*part.shape, 2)


Box = tuple[slice, ...]
MOST_BLOCKS = 4096
"""Of more than that, as small blocks dealt out in turns are, neighbours are taken together."""


def cuts_of_blocks(layout: ShardLayout) -> list[list[int]]:
    """Return the boundaries of a layout's blocks along each axis.

    >>> from caldera.compiler.sharding.distributions import Rows
    >>> cuts_of_blocks(Rows().of((5, 3), range(2)))
    [[0, 3, 5], [0, 3]]
    """
    cuts = [list(each) for each in layout.cuts]
    while np.prod([len(each) - 1 for each in cuts]) > MOST_BLOCKS:
        longest = max(range(len(cuts)), key=lambda axis: len(cuts[axis]))
        cuts[longest] = sorted({*cuts[longest][::2], cuts[longest][-1]})
    return cuts


def blocks_of(array: Any) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the position and elements of each block, gathered one at a time."""
    cuts = cuts_of_blocks(array.layout)
    for place in np.ndindex(*(len(each) - 1 for each in cuts)):
        box = tuple(slice(each[i], each[i + 1]) for each, i in zip(cuts, place, strict=True))
        yield box, array[box].numpy() if box else array.numpy()


class Elements:
    """Lazy elements of an array of this shape: `take` returns the elements of a box."""

    def __init__(self, shape: Shape, dtype: DType, take: Callable[[Any], np.ndarray]) -> None:
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self._take = take

    def __getitem__(self, box: Any) -> np.ndarray:
        return self._take(box)


def to_dask(array: Any) -> Any:
    """Return an array of Dask with the blocks of this one as its chunks."""
    dask_array = optional_import("dask.array", "dask", "dm.Array.to_dask")
    chunks = tuple(tuple(int(n) for n in np.diff(each)) for each in cuts_of_blocks(array.layout))
    # Sequentially: all blocks come from one session.
    elements = Elements(array.shape, np.dtype(array.dtype), lambda box: array[box].numpy())
    return dask_array.from_array(elements, chunks=chunks, asarray=False, fancy=False, lock=True)


def to_pandas(array: Any, columns: Sequence[Any] | None = None, index: Any = None) -> Any:
    """Return the whole array as a pandas frame; a vector becomes a series."""
    pandas = optional_import("pandas", "pandas", "dm.Array.to_pandas")
    require(
        array.ndim in (1, 2),
        "dm.Array.to_pandas",
        "a vector or a matrix",
        f"shape {array.shape}",
        hint="reshape it first",
        error=ShapeError,
    )
    if array.ndim == 1:
        require(columns is None, "dm.Array.to_pandas", "no columns for a vector", repr(columns))
        return _labelled(pandas.Series, array.numpy(), index=index)
    if columns is not None and len(columns) != array.shape[1]:
        raise ShapeError.build(
            "dm.Array.to_pandas",
            expected=f"{array.shape[1]} names of columns",
            got=f"{len(columns)}",
        )
    return _labelled(pandas.DataFrame, array.numpy(), index=index, columns=columns)


def _labelled(make: Callable[..., Any], values: np.ndarray, **labels: Any) -> Any:
    """Return a frame or a series with these labels, which pandas may refuse."""
    try:
        return make(values, **labels)
    except (TypeError, ValueError) as error:
        shown_labels = ", ".join(f"{name}={shown(each)}" for name, each in labels.items())
        raise ConfigError.build(
            "dm.Array.to_pandas", expected="labels for the rows", got=shown_labels
        ) from error
