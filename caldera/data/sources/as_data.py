"""Conversion of arrays, iterables and paths of files (read on access) to data."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.arguments import refusal, require
from caldera.core.tensor import Tensor
from caldera.data.sources.base import SCALE, Array, Data
from caldera.data.sources.file_formats import Files, images_in_archive, images_in_folder, map_idx
from caldera.data.sources.indexed_data import (
    ArrayData,
    ItemData,
    array_of_item,
    is_data_loader,
    is_indexed,
    values_in_order,
)
from caldera.data.sources.iterable_data import IterableData
from caldera.data.sources.ragged_data import RaggedData
from caldera.data.sources.shards import INDEX, Shards
from caldera.errors import CalderaError, DataError
from caldera.io import map_npy
from caldera.io.files import PathLike, opened

_LONGEST = 4096
"""Maximum number of characters of a path."""

_NPY_MAGIC = b"\x93NUMPY"
_IDX_MAGIC = b"\x00\x00"
_GZIP_MAGIC = b"\x1f\x8b"


def source(*paths: PathLike, scale: float | None = SCALE) -> Data:
    """Return samples in files, which are read on access and may exceed the memory.

    - a folder that `write_shards` made;
    - a folder with one folder of images for each class, or a tar archive of such folders: the
      images are encoded, so `Decode` has to be the first stage;
    - arrays in npy or IDX files, one path for x, or one for each array: x and y.

    `scale` is the divisor for bytes that leave a pipeline; see `ArrayData`.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from caldera import data
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> np.save(folder / "x.npy", np.zeros((100, 3, 8, 8), np.uint8))
    >>> np.save(folder / "y.npy", np.arange(100))
    >>> data.source(folder / "x.npy", folder / "y.npy")
    ArrayData(100 samples, shape (3, 8, 8), float32)
    """
    for path in paths:
        is_path = isinstance(path, str | os.PathLike) and "\0" not in str(path)
        if not is_path or len(str(path)) > _LONGEST:
            raise refusal("data.source", "paths", "paths of files", path)
    found = [Path(path).expanduser() for path in paths]
    if len(found) == 1 and found[0].is_dir():
        is_done = (found[0] / INDEX).is_file()
        return Shards(found[0], scale=scale) if is_done else _folder(found[0])
    if len(found) == 1 and found[0].is_file() and tarfile.is_tarfile(found[0]):
        return Files(images_in_archive(found[0], "data.source"))
    return ArrayData(*[_array(path) for path in found], scale=scale)


def _folder(path: Path) -> Files:
    require(
        not (path / "train").is_dir(),
        "data.source",
        "a folder with one folder for each class",
        f"{path}, which has parts",
        hint=f"pass one, such as {path / 'train'}",
        error=DataError,
    )
    return Files(images_in_folder(path, "data.source"))


def _array(path: Path) -> Array:
    with opened(path, "rb", "data.source") as file:
        magic = file.read(len(_NPY_MAGIC))
    if magic == _NPY_MAGIC:
        return map_npy(path)
    if magic.startswith((_IDX_MAGIC, _GZIP_MAGIC)):
        return map_idx(path)
    raise DataError.build(
        "data.source",
        expected="shards, folders of images, a tar archive, npy or IDX files",
        got=str(path),
    )


def as_data(value: Any) -> Data | IterableData:
    """Convert any object with samples to data.

    - `Data`, or the path of files (see `data.source`);
    - arrays: x, `(x, y)`, several inputs as `(a, b, y)` or `((a, b), y)`, or a dict of arrays, in
      which the target is called y, label or target;
    - a list of pairs `[(x, y), ...]`, or any object with a length and `[number]`, such as a
      `Dataset` of PyTorch (see `ItemData`);
    - a `DataLoader` of PyTorch, which yields batches, or any other iterable or generator, which
      yields samples (see `IterableData`);
    - sequences of different lengths (see `RaggedData`).

    >>> import numpy as np
    >>> from caldera import data
    >>> data.as_data((np.zeros((3, 2)), [0, 1, 1]))
    ArrayData(3 samples, shape (2,), float64)
    >>> len(data.as_data(((np.zeros((3, 2)), np.zeros((3, 4))), [0, 1, 1])).batch([0]))
    3
    >>> data.as_data([(np.zeros(2), 0), (np.ones(2), 1)])
    ArrayData(2 samples, shape (2,), float64)
    """
    if isinstance(value, Data | IterableData):
        return value
    if isinstance(value, str | os.PathLike):
        return source(value)
    if isinstance(value, Mapping):
        value = tuple(values_in_order(value, "data.as_data"))
    if isinstance(value, list) and _are_pairs(value):
        value = tuple(list(column) for column in zip(*value, strict=True))
    if isinstance(value, tuple):
        return _of_arrays(*_without_groups(value))
    if isinstance(value, list):
        return _of_arrays(value)
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        return ArrayData(array_of_item(value, "data.as_data"))
    if is_data_loader(value):
        return IterableData(value, batches=True)
    if not isinstance(value, Tensor) and is_indexed(value):
        return ItemData(value)
    array = np.asarray(value)
    # NumPy wraps a value that it cannot convert in an array with a single object.
    if (
        array.dtype == object
        and array.ndim == 0
        and (isinstance(value, Iterable) or callable(value))
    ):
        return IterableData(value)
    return ArrayData(array)


def _without_groups(parts: tuple[Any, ...]) -> Iterator[Any]:
    """Return the arrays of ((a, b), y) in order; tuples of samples stay whole."""
    count = len(parts[-1]) if parts and isinstance(parts[-1], Sized) else -1
    for part in parts:
        is_group = isinstance(part, tuple) and 0 < len(part) != count
        if is_group and all(isinstance(a, np.ndarray) and a.ndim and len(a) == count for a in part):
            yield from part
        else:
            yield part


def _of_arrays(*parts: Any) -> Data:
    """Return arrays along whose first axis the samples lie.

    Parts that are no arrays yet become some.
    """
    found = [_column(part) for part in parts]
    # `_column` leaves lists of arrays.
    if found and isinstance(found[0], list) and found[0] and isinstance(found[0][0], np.ndarray):
        return RaggedData(*found)
    for part in found[1:]:
        require(
            not _has_texts(part),
            "data.as_data",
            "targets that are numbers",
            "texts",
            hint="cd.data.arrays(x, y) numbers the classes, and keeps their names",
            error=DataError,
        )
    require(
        not found or not _has_texts(found[0]),
        "data.as_data",
        "inputs that are numbers",
        "texts",
        hint="cd.data.texts(texts, labels) converts words to numbers, and stores the "
        "mapping in the model",
        error=DataError,
    )
    return ArrayData(*found)


def _column(part: Any) -> Any:
    """Return a list of arrays as one array, or as a list if only their lengths differ."""
    if hasattr(part, "detach"):
        return array_of_item(part, "data.as_data")
    if not isinstance(part, list) or not part or isinstance(part[0], str | int | float):
        return part
    if not any(hasattr(each, "shape") or isinstance(each, list | tuple) for each in part):
        return part
    try:
        items = [array_of_item(each, "data.as_data") for each in part]
    except CalderaError:
        # The later conversion to an array raises the error.
        return part
    shapes = {each.shape for each in items}
    if len(shapes) == 1:
        return np.stack(items)
    is_ragged = len({shape[1:] for shape in shapes}) == 1 and () not in shapes
    return items if is_ragged else part


def _has_texts(part: Any) -> bool:
    try:
        return np.asarray(part).dtype.kind in "US"
    except ValueError:
        # The later conversion to an array raises the error.
        return False


def _are_pairs(value: list[Any]) -> bool:
    """Return True if a list contains samples (x, y): tuples of the same length."""
    lengths = {len(each) if isinstance(each, tuple) else 0 for each in value}
    return len(lengths) == 1 and min(lengths) >= 2
