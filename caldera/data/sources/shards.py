"""Samples in many files of moderate size, for data that are larger than memory.

A folder of shards has these files, each of which NumPy can read separately:

- `index.json`: `{"format": "caldera shards", "version": 2, "samples": [500, 500, 123], "arrays":
  [...], "class_names": [...], "digest": "..."}`. `samples` has the number of samples in each shard.
  `arrays` has for each array of a sample its name, and either `"dtype"` and `"shape"`, or
  `"encoded": true` for byte strings of any length, such as JPEG files.
- `00000.x.npy`, `00000.y.npy`, `00001.x.npy`, ...: for each shard and array, the samples along the
  first axis; for an encoded array, all byte strings concatenated as one array of uint8.
- `00000.x.offsets.npy`: for an encoded array, where each byte string begins, and the end: int64.
- `00000.x.sums.npy`: the CRC-32 of each sample of an array, compared whenever a sample is read.

The index is written last, so a folder without one is not finished. Folders of version 1, without
digest and checksums, are still read.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.base.plain_data import is_sealed
from caldera.core.tensor.dtype import DType, canonical
from caldera.data.random_draws import block_permutation
from caldera.data.sources.base import SCALE, Array, Arrays, RawData, checked_scale, scaled
from caldera.errors import CalderaError, DataError, IndexingError
from caldera.io import map_npy
from caldera.io.files import PathLike, bytes_of, opened

INDEX = "index.json"
OFFSETS = ".offsets"
FORMAT = "caldera shards"
SUMS = ".sums"
VERSION, WITHOUT_SUMS = 2, 1
_LARGEST_INDEX = 1 << 28
_MOST_OPEN = 128
"""Files that stay open, of perhaps thousands: a process may have 256 or 1024 of all kinds."""


@dataclass(frozen=True)
class ShardColumn:
    """One array of the samples; `dtype` is None for byte strings of any length."""

    name: str
    dtype: DType | None
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype or 'encoded'} {self.shape}"

    def file(self, shard: int, part: str = "") -> str:
        return f"{shard:05}.{self.name}{part}.npy"


class Shards(RawData):
    """Samples of a folder that `write_shards` made; they remain in their files.

    With `block` above 1, the order of an epoch keeps this number of neighbours together: blocks are
    in random order, and samples are mixed within some blocks. This is several times as fast on
    disks with slow random access, and on every disk with hundreds of shards: 128 files remain open,
    further files are reopened.

    >>> import tempfile
    >>> import numpy as np
    >>> from caldera import data
    >>> folder = tempfile.mkdtemp()
    >>> data.write_shards(folder, (np.arange(10), np.arange(10) * 2), shard_bytes=64)
    Shards(10 samples in 3 shards: x int64 (), y int64 ())
    >>> data.Shards(folder).batch(np.array([9, 0]))
    (array([9, 0]), array([18,  0]))
    """

    def __init__(self, folder: PathLike, *, block: int = 1, scale: float | None = SCALE) -> None:
        self._folder = Path(folder).expanduser()
        self._where = f"data.Shards {self._folder.name}"
        require(block >= 1, "data.Shards", "a block >= 1", block)
        self._block = block
        self.scale = checked_scale(scale, "data.Shards")
        index = _read_index(self._folder / INDEX, self._where)
        counts, self.columns, self.class_names, self._has_sums = index
        self._starts = np.array([0, *accumulate(counts)], np.int64)
        self._map = lru_cache(_MOST_OPEN)(_mapped)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.columns[0].shape

    @property
    def dtype(self) -> DType:
        dtype = self.columns[0].dtype
        return np.dtype(object) if dtype is None else scaled(np.empty(0, dtype), self.scale).dtype

    def raw_batch(self, indices: NDArray[np.integer]) -> Arrays:
        shards = self._shards_of(indices)
        return tuple(self._gathered(column, indices, shards) for column in self.columns)

    @property
    def y(self) -> Array | None:
        if len(self.columns) < 2:
            return None
        everything = np.arange(len(self))
        return self._gathered(self.columns[-1], everything, self._shards_of(everything))

    def name_of(self, index: int) -> str:
        shard = int(self._shards_of(np.array([index]))[0])
        return f"sample {index - self._starts[shard]} of {self.columns[0].file(shard)}"

    def order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        return block_permutation(len(self), self._block, seed, epoch)

    def __repr__(self) -> str:
        columns = ", ".join(map(str, self.columns))
        return f"Shards({len(self)} samples in {len(self._starts) - 1} shards: {columns})"

    def _shards_of(self, indices: NDArray[np.integer]) -> NDArray[np.int64]:
        if len(indices) and not 0 <= np.min(indices) <= np.max(indices) < len(self):
            raise IndexingError.build(
                self._where,
                expected=f"integers from 0 to {len(self) - 1}",
                got=f"{np.min(indices)} to {np.max(indices)}",
            )
        return np.searchsorted(self._starts, indices, side="right") - 1

    def _gathered(
        self, column: ShardColumn, indices: NDArray[np.integer], shards: NDArray[np.int64]
    ) -> Array:
        dtype = np.dtype(object) if column.dtype is None else column.dtype
        found = np.empty((len(indices), *column.shape), dtype)
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            rows = indices[places] - self._starts[shard]
            if column.dtype is None:
                read = self._read_encoded(column, shard, rows)
            else:
                read = np.take(self._array(column, shard), rows, axis=0)
            if self._has_sums:
                self._check_sums(column, shard, rows, read)
            found[places] = read
        return found

    def _check_sums(self, column: ShardColumn, shard: int, rows: Array, read: Array) -> None:
        """Raise an error if samples differ from the samples that were written."""
        path = self._folder / column.file(shard, SUMS)
        sums = self._map(path, (self._count(shard),), np.dtype(np.uint32), self._where)
        wrong = rows[np.take(sums, rows) != checksums(read)]
        if len(wrong):
            raise DataError.build(
                f"{self._where} {column.file(shard)}, sample {wrong[0]}",
                expected="the bytes that were written",
                got="others, by their checksum",
                hint="the file is damaged; restore it from a copy",
            )

    def _read_encoded(self, column: ShardColumn, shard: int, rows: Array) -> Array:
        found = np.empty(len(rows), object)
        samples = self._count(shard)
        starts = self._folder / column.file(shard, OFFSETS)
        offsets = self._map(starts, (samples + 1,), np.dtype(np.int64), self._where)
        path = self._folder / column.file(shard)
        content = self._map(path, None, np.dtype(np.uint8), self._where)
        for place, row in enumerate(rows.tolist()):
            start, end = int(offsets[row]), int(offsets[row + 1])
            require(
                0 <= start <= end <= len(content),
                f"{self._where} {starts.name}",
                f"ascending offsets from 0 to {len(content)}",
                f"{start} and {end}",
                error=DataError,
            )
            # Copied by NumPy, which lets other threads run while the disk is read.
            found[place] = np.array(content[start:end]).tobytes()
        return found

    def _count(self, shard: int) -> int:
        return int(self._starts[shard + 1] - self._starts[shard])

    def _array(self, column: ShardColumn, shard: int) -> Array:
        assert column.dtype is not None
        shape = (self._count(shard), *column.shape)
        return self._map(self._folder / column.file(shard), shape, column.dtype, self._where)


def _mapped(path: Path, shape: tuple[int, ...] | None, dtype: DType, where: str) -> Array:
    """Return the array of a file, of this shape, or of bytes of any number."""
    array = map_npy(path)
    wrong_shape = array.shape != shape if shape is not None else array.ndim != 1
    require(
        not wrong_shape and array.dtype == dtype,
        f"{where} {path.name}",
        f"{dtype} {shape or '(bytes,)'}",
        f"{array.dtype} {array.shape}",
        hint="this differs from the index: the folder is damaged",
        error=DataError,
    )
    return array


def checksums(samples: Array) -> NDArray[np.uint32]:
    """Return the CRC-32 of each sample of an array.

    >>> checksums(np.array([b"a", b""], object)).tolist()
    [3904355907, 0]
    """
    if samples.dtype == object:
        return np.array([crc32(each) for each in samples], np.uint32)
    step = samples.nbytes // max(len(samples), 1)
    raw = bytes_of(np.ascontiguousarray(samples))
    ends = range(step, step * len(samples) + 1, step) if step else [0] * len(samples)
    return np.array([crc32(raw[end - step : end]) for end in ends], np.uint32)


class _Index(NamedTuple):
    counts: list[int]
    columns: list[ShardColumn]
    class_names: tuple[str, ...]
    has_sums: bool


def _read_index(path: Path, where: str) -> _Index:
    """Return samples of each shard, arrays and class names, as the index has them."""
    with opened(path, "rb", where) as file:
        text = file.read(_LARGEST_INDEX)
    try:
        index = json.loads(text)
        version = index["version"]
        if index["format"] != FORMAT or version not in (VERSION, WITHOUT_SUMS):
            raise ValueError(f"format {index['format']!r}, version {version!r}")
        if version == VERSION and not is_sealed(index):
            raise ValueError("an index that does not fit its digest")
        counts = [_whole(each) for each in index["samples"]]
        columns = [_column(each) for each in index["arrays"]]
        names = tuple(str(each) for each in index["class_names"])
        if not columns or len({column.name for column in columns}) < len(columns):
            raise ValueError("arrays without names")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, CalderaError) as error:
        raise DataError.build(
            f"{where} {INDEX}",
            expected="the index of a folder of shards",
            got=str(error)[:200],
            hint="data.write_shards writes one",
        ) from None
    return _Index(counts, columns, names, version == VERSION)


_LARGEST_SAMPLE = 1 << 31
"""Maximum number of elements of a sample; a larger value in an index means damage."""


def _column(entry: dict[str, Any]) -> ShardColumn:
    name = str(entry["name"])
    if not name.isidentifier():
        raise ValueError(f"the name {name[:50]!r}")
    if entry.get("encoded") is True:
        return ShardColumn(name, None, ())
    shape = tuple(_whole(n) for n in entry["shape"])
    if math.prod(shape) >= _LARGEST_SAMPLE:
        raise ValueError(f"samples of shape {shape}")
    return ShardColumn(name, canonical(str(entry["dtype"])), shape)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"{value!r} for a number")
    return value
