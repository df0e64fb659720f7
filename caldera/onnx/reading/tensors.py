"""Arrays of a model: from the file itself, or from a file beside it, and only from there.

What a model says about sizes and places is compared with the bytes that are really there before
memory is taken. A file beside the model has to lie in the model's folder; a path that leads out of
it, absolute or through a link, is refused.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.file_limit import check_asked
from caldera.core.tensor.dtype import DType
from caldera.core.tensor.shape import size
from caldera.errors import DataError
from caldera.onnx.dtypes import STRING, dtype_of
from caldera.onnx.library import numpy_helper, onnx

_EXTERNAL_KEYS = {"location", "offset", "length", "checksum", "basepath"}
_PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
_PACKED_BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}


class Folder:
    """Where files beside a model may lie, and how much of each has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._read: Counter[Path] = Counter()

    def bytes_of(self, location: str, offset: int, length: int | None) -> bytes:
        """A part of a file; more than the whole file, in all, is never read."""
        path = (self.path / location).resolve()
        if Path(location).is_absolute() or not path.is_relative_to(self.path):
            raise ValueError("a file outside of the model's folder")
        there = path.stat().st_size
        wanted = there - offset if length is None else length
        self._read[path] += wanted
        if not path.is_file() or offset < 0 or wanted < 0 or offset + wanted > there:
            raise ValueError(f"{wanted} bytes at {offset} of {there}")
        if self._read[path] > there:
            raise ValueError("more than the file holds: parts that overlap")
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(wanted)


def array_of(tensor: Any, folder: Folder | None, where: str) -> np.ndarray:
    """The array of a TensorProto; `folder` is where files beside the model may lie."""
    place = f"{where}, {tensor.name!r}"
    dtype = dtype_of(tensor.data_type)
    shape = tuple(int(n) for n in tensor.dims)
    if any(n < 0 for n in shape):
        raise DataError.build(place, expected="sizes of 0 or more", got=f"{shape}")
    if tensor.HasField("segment"):
        raise DataError.build(place, expected="a whole tensor", got="a segment of one")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raw = _beside(tensor, folder, place)
        _check_length(len(raw), shape, dtype, place)
        whole = onnx.TensorProto(data_type=tensor.data_type, dims=shape, raw_data=raw)
        return np.array(numpy_helper.to_array(whole))
    _check_length(_stored_bytes(tensor, shape, dtype), shape, dtype, place)
    # A copy: the arrays of protobuf cannot be written to, and keep the whole file in memory.
    return np.array(numpy_helper.to_array(tensor))


def dense(sparse: Any, folder: Folder | None, where: str) -> np.ndarray:
    """The array of a SparseTensorProto."""
    shape = tuple(int(n) for n in sparse.dims)
    values = array_of(sparse.values, folder, where)
    indices = array_of(sparse.indices, folder, where)
    place = f"{where}, {sparse.values.name!r}"
    if min(shape, default=0) < 0:
        raise DataError.build(place, expected="sizes of 0 or more", got=f"{shape}")
    # Here the size is a mere statement, so not any is believed.
    check_asked(size(shape) * values.dtype.itemsize, place, held=values.nbytes + indices.nbytes)
    whole = np.zeros(size(shape), values.dtype)
    try:
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        whole[indices] = values
    except (ValueError, IndexError, TypeError) as problem:
        raise DataError.build(place, expected="an index a value", got=str(problem)) from None
    return whole.reshape(shape)


def _needed_bytes(shape: tuple[int, ...], dtype: DType) -> int:
    bits = _PACKED_BITS.get(dtype.name, 8 * dtype.itemsize)
    return -(-size(shape) * bits // 8)


def _check_length(there: int, shape: tuple[int, ...], dtype: DType, where: str) -> None:
    needed = size(shape) if dtype == STRING else _needed_bytes(shape, dtype)
    if there != needed:
        unit = "texts" if dtype == STRING else "bytes"
        raise DataError.build(
            where,
            expected=f"{needed} {unit} for {shape} {dtype.name}",
            got=f"{there}",
            hint="the file is damaged",
        )


def _stored_bytes(tensor: Any, shape: tuple[int, ...], dtype: DType) -> int:
    """How much there is: bytes, or elements counted as the bytes they make."""
    if dtype == STRING:
        return len(tensor.string_data)
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    if dtype.kind == "c":
        elements = len(tensor.float_data) + len(tensor.double_data)
        return elements * dtype.itemsize // 2
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    elements = sum(len(getattr(tensor, field)) for field in fields)
    # Numbers of less than a byte come several in an element, but those of 6 bits.
    packed = _PACKED_BITS.get(dtype.name) in (2, 4)
    if packed:
        return elements
    return elements * dtype.itemsize if elements != size(shape) else _needed_bytes(shape, dtype)


def _beside(tensor: Any, folder: Folder | None, where: str) -> bytes:
    """The bytes of a tensor that lies in a file of its own."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    if folder is None or not said.get("location") or not set(said) <= _EXTERNAL_KEYS:
        raise DataError.build(
            where,
            expected="data in the model's own folder",
            got=f"{said}"[:200],
            hint="load the model from its file, with the data beside it",
        )
    try:
        length = int(said["length"]) if "length" in said else None
        return folder.bytes_of(said["location"], int(said.get("offset", 0)), length)
    except (OSError, ValueError) as problem:
        raise DataError.build(
            where, expected=f"its bytes in {said['location']!r}", got=str(problem)
        ) from None
