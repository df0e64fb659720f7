"""Arrays in a folder: each rank writes its parts, and an index says what lies where.

A folder has `index.json`, and a safetensors file for each rank that holds something. Any number of
ranks can read it: each finds which of the parts have what it needs, and reads that alone. The index
is written last, in one step: until then what was saved there before is what counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.file_access import checked_file_name
from caldera.compiler.sharding.axis_split import positions
from caldera.compiler.sharding.layout import IndexBlock, ShardLayout
from caldera.core.tensor.dtype import canonical, complex128
from caldera.dmath.codec import decode, encode
from caldera.dmath.protocol import service
from caldera.dmath.rank import Rank
from caldera.dmath.sources import open_source, read_part
from caldera.errors import CalderaError, DataError
from caldera.io import map_safetensors, save_safetensors
from caldera.io.files import created, read_bounded

INDEX = "index.json"
MOST_INDEX_BYTES = 1 << 28
FORMAT, VERSION = "caldera arrays", 1


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
        json.dump(content, file)
    named = {file for each in arrays.values() for file in each.files.values()}
    for old in folder.glob("part-*.safetensors"):
        if old.name not in named:
            with suppress(OSError):
                old.unlink()


def read_index(folder: Path) -> dict[str, Saved]:
    """What a folder has."""
    where = f"dm.load {folder.name}"
    text = read_bounded(folder / INDEX, MOST_INDEX_BYTES, where)
    try:
        content = json.loads(text)
        made = content["format"], content["version"]
        if made == (FORMAT, VERSION):
            return {name: _saved(raw) for name, raw in content["arrays"].items()}
    except (CalderaError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataError.build(
            where, expected=f"an {INDEX} as dm.save writes it", got=repr(error)[:200]
        ) from None
    raise DataError.build(
        where, expected=f"{FORMAT!r}, version {VERSION}", got=f"{made[0]!r}, version {made[1]}"
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
def save_parts(rank: Rank, folder: str, mark: str, arrays: tuple[tuple[str, int], ...]) -> str:
    """Write this rank's parts of arrays, by name and number; the name of the file."""
    name = f"part-{mark}-{rank.communicator.rank:05}.safetensors"
    parts = {key: _storable(rank.part(number).numpy()) for key, number in arrays}
    if not parts:
        return ""
    save_safetensors(Path(folder) / name, parts)
    return name


@service
def load_parts(
    rank: Rank, folder: str, name: str, number: int, saved: tuple[Any, ...], target: ShardLayout
) -> None:
    """Read this rank's part of an array that was saved in whatever layout."""
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
            _block(flat, mine)[_index(mine, both)] = _block(stored, theirs)[_index(theirs, both)]
    rank.put(number, part)


@service
def load_source(rank: Rank, path: str, dataset: str, number: int, layout: ShardLayout) -> None:
    """Read this rank's part of an array in a file."""
    rank.put(number, read_part(open_source(path, dataset), layout, rank.communicator.rank))


def _shared(
    source: ShardLayout, other: int, target: ShardLayout, here: int
) -> Iterator[tuple[IndexBlock, IndexBlock, IndexBlock]]:
    """(piece in the file, piece of this rank, what is in both)."""
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
            hint="the file is not the one that the index was written with",
        )
    return stored.reshape(-1).view(dtype)


def _block(flat: np.ndarray, piece: IndexBlock) -> np.ndarray:
    return flat[piece.offset : piece.offset + piece.size].reshape(piece.shape)


def _index(piece: IndexBlock, wanted: IndexBlock) -> tuple[slice | np.ndarray, ...]:
    index = [positions(own, each) for own, each in zip(piece.axes, wanted.axes, strict=True)]
    if all(isinstance(each, slice) for each in index):
        return tuple(index)
    return np.ix_(*(np.arange(e.start, e.stop) if isinstance(e, slice) else e for e in index))


def _storable(part: np.ndarray) -> np.ndarray:
    """As safetensors files can have it: they know no complex128."""
    if part.dtype != complex128:
        return part
    return np.ascontiguousarray(part).view(np.float64).reshape(*part.shape, 2)
