"""Writer for folders of shards; `shards.py` describes their contents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from caldera.base.arguments import checked, require
from caldera.base.file_cache import write_file
from caldera.base.plain_data import sealed
from caldera.data.sources.as_data import as_data
from caldera.data.sources.base import Arrays, Data
from caldera.data.sources.file_formats import Files
from caldera.data.sources.iterable_data import IterableData
from caldera.data.sources.shards import (
    FORMAT,
    INDEX,
    OFFSETS,
    SUMS,
    VERSION,
    ShardColumn,
    Shards,
    checksums,
)
from caldera.errors import DataError
from caldera.io import save_npy
from caldera.io.files import PathLike

_SAMPLES_AT_ONCE = 256


@checked
def write_shards(
    folder: PathLike,
    samples: Any,
    *,
    shard_bytes: int = 1 << 28,
    class_names: Sequence[str] = (),
) -> Shards:
    """Write samples into a new folder, in files of about `shard_bytes`, and return its data.

    `samples` is any object with samples. For encoded images the encoded bytes are written, for a
    pipeline the output of its stages.

    >>> import tempfile
    >>> from caldera import data
    >>> digits = data.digits()
    >>> data.write_shards(tempfile.mkdtemp(), digits.test, class_names=digits.class_names)
    Shards(359 samples in 1 shards: x float32 (1, 8, 8), y int64 ())
    """
    place = Path(folder).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError.build(
            "data.write_shards", expected=f"a folder at {place}", got=str(error.strerror)
        ) from None
    require(
        not any(place.iterdir()), "data.write_shards", "an empty folder", place, error=DataError
    )
    require(shard_bytes >= 1, "data.write_shards", "shard_bytes >= 1", shard_bytes)
    names = tuple(class_names)
    source = as_data(samples)
    if isinstance(source, Files) and not names:
        names = source.class_names
    columns: list[ShardColumn] = []
    counts: list[int] = []
    for shard in _shards(source, shard_bytes):
        columns = columns or _columns(shard[0])
        for column, values in zip(columns, zip(*shard, strict=True), strict=True):
            _write(place, column, len(counts), values)
        counts.append(len(shard))
    require(columns, "data.write_shards", "samples", error=DataError)
    index = {
        "format": FORMAT,
        "version": VERSION,
        "samples": counts,
        "arrays": [_entry(column) for column in columns],
        "class_names": list(names),
    }
    write_file(place / INDEX, json.dumps(sealed(index), indent=1), durable=True)
    return Shards(place)


def _shards(source: Data | IterableData, shard_bytes: int) -> Iterator[list[tuple[Any, ...]]]:
    """Iterate over all samples, in lists of about `shard_bytes` bytes."""
    held: list[tuple[Any, ...]] = []
    size = 0
    for arrays in _batches(source):
        for sample in zip(*arrays, strict=True):
            sample_bytes = sum(len(v) if isinstance(v, bytes) else v.nbytes for v in sample)
            if held and size + sample_bytes > shard_bytes:
                yield held
                held, size = [], 0
            held.append(sample)
            size += sample_bytes
    if held:
        yield held


def _batches(source: Data | IterableData) -> Iterator[Arrays]:
    if isinstance(source, IterableData):
        yield from source.read(_SAMPLES_AT_ONCE)
        return
    for start in range(0, len(source), _SAMPLES_AT_ONCE):
        yield source.raw_batch(np.arange(start, min(start + _SAMPLES_AT_ONCE, len(source))))


def _columns(sample: tuple[Any, ...]) -> list[ShardColumn]:
    """Return the description of each stored array: x, more inputs, and y last."""
    names = ["x", *[f"x{number}" for number in range(1, len(sample) - 1)], "y"]
    return [
        ShardColumn(name, None, ())
        if isinstance(value, bytes)
        else ShardColumn(name, value.dtype, value.shape)
        for name, value in zip(names, sample, strict=False)
    ]


def _entry(column: ShardColumn) -> dict[str, Any]:
    if column.dtype is None:
        return {"name": column.name, "encoded": True}
    return {"name": column.name, "dtype": column.dtype.name, "shape": list(column.shape)}


def _write(place: Path, column: ShardColumn, shard: int, values: Sequence[Any]) -> None:
    if column.dtype is not None:
        whole = np.stack(values)
        save_npy(place / column.file(shard), whole)
        save_npy(place / column.file(shard, SUMS), checksums(whole))
        return
    save_npy(place / column.file(shard, SUMS), np.array([*map(crc32, values)], np.uint32))
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
    save_npy(place / column.file(shard), np.frombuffer(b"".join(values), np.uint8))
    save_npy(place / column.file(shard, OFFSETS), ends)
