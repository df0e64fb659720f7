"""Parser of ONNX model files and of their tensors, within size limits.

Protobuf messages become plain values: graphs, calls and functions. Sizes and offsets in a model are
compared with the bytes that are present before memory is allocated. A file with external data must
be in the folder of the model: a path that leads elsewhere, absolute or through a link, is rejected.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.file_access import check_asked, check_shape
from caldera.core.tensor import DType, size
from caldera.errors import DataError
from caldera.io.safetensors_files import refuse_exported_program
from caldera.onnx.library import BY_NUMBER, STRING, dtype_of, numpy_helper, onnx


@dataclass(frozen=True)
class Reference:
    """An attribute whose value is an attribute of the enclosing function."""

    name: str


@dataclass(frozen=True)
class Declared:
    """An input or output: its name and, for a tensor, its declared dtype and shape.

    A size that is not fixed is its symbolic name, or None; `shape` is None if it is not declared.
    `kind` is "tensor", "sequence", "optional" or "other".
    """

    name: str
    kind: str = "tensor"
    dtype: DType | None = None
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, eq=False)
class NodeCall:
    """One use of an operator: the names it reads and writes ("" is left out), its attributes."""

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}" if self.name else self.operator


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """Calls in an order in which they can run, and the arrays that the model brings along."""

    name: str
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    constants: Mapping[str, np.ndarray]
    calls: tuple[NodeCall, ...]


@dataclass(frozen=True, eq=False)
class ModelFunction:
    """An operator that the model itself defines."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: Mapping[str, Any]
    calls: tuple[NodeCall, ...]
    versions: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A whole model: its graph, the versions of operator sets, and its functions."""

    graph: ModelGraph
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str], ModelFunction]


_EXTERNAL_KEYS = {"location", "offset", "length", "checksum", "basepath"}
_PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
_PACKED_BITS |= {"float6_e2m3fn": 6, "float6_e3m2fn": 6}


class Folder:
    """Folder of a model with external data, and the bytes read from each file."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._read: Counter[Path] = Counter()

    def bytes_of(self, location: str, offset: int, length: int | None) -> bytes:
        """Return a part of a file; more than the whole file, in all, is never read."""
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
    """Return the array of a TensorProto; `folder` is the folder of external data."""
    place = f"{where}, {tensor.name!r}"
    dtype = dtype_of(tensor.data_type)
    shape = tuple(int(n) for n in tensor.dims)
    require(not any(n < 0 for n in shape), place, "sizes >= 0", shape, error=DataError)
    check_shape(shape, place)
    require(
        not tensor.HasField("segment"),
        place,
        "a whole tensor",
        "a segment of a tensor",
        error=DataError,
    )
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raw = _beside(tensor, folder, place)
        _check_length(len(raw), shape, dtype, place)
        whole = onnx.TensorProto(data_type=tensor.data_type, dims=shape, raw_data=raw)
        return np.array(numpy_helper.to_array(whole))
    _check_length(_stored_bytes(tensor, shape, dtype), shape, dtype, place)
    # A copy: the arrays of protobuf cannot be written to, and keep the whole file in memory.
    return np.array(numpy_helper.to_array(tensor))


def dense(sparse: Any, folder: Folder | None, where: str) -> np.ndarray:
    """Return the array of a SparseTensorProto."""
    shape = tuple(int(n) for n in sparse.dims)
    values = array_of(sparse.values, folder, where)
    indices = array_of(sparse.indices, folder, where)
    place = f"{where}, {sparse.values.name!r}"
    require(min(shape, default=0) >= 0, place, "sizes >= 0", shape, error=DataError)
    check_shape(shape, place)
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
    return -(-size(shape) * _PACKED_BITS.get(dtype.name, 8 * dtype.itemsize) // 8)


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
    """Return the number of stored bytes, or of stored elements converted to bytes."""
    if dtype == STRING:
        return len(tensor.string_data)
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    if dtype.kind == "c":
        elements = len(tensor.float_data) + len(tensor.double_data)
        return elements * dtype.itemsize // 2
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    elements = sum(len(getattr(tensor, field)) for field in fields)
    # Numbers of 2 and 4 bits are packed, several in an element; numbers of 6 bits are not.
    if _PACKED_BITS.get(dtype.name) in (2, 4):
        return elements
    return elements * dtype.itemsize if elements != size(shape) else _needed_bytes(shape, dtype)


def _beside(tensor: Any, folder: Folder | None, where: str) -> bytes:
    """Return the bytes of a tensor in an external file."""
    said = {entry.key: entry.value for entry in tensor.external_data}
    if folder is None or not said.get("location") or not set(said) <= _EXTERNAL_KEYS:
        raise DataError.build(
            where,
            expected="data in the model's own folder",
            got=f"{said}"[:200],
            hint="load the model from its file, with the data next to it",
        )
    try:
        length = int(said["length"]) if "length" in said else None
        return folder.bytes_of(said["location"], int(said.get("offset", 0)), length)
    except (OSError, ValueError) as problem:
        raise DataError.build(
            where, expected=f"its bytes in {said['location']!r}", got=str(problem)
        ) from None


_DEEPEST = 64
"""Graphs inside graphs: more would be an attack."""


def parse(model: Any, folder: Path | None = None, where: str = "onnx") -> OnnxModel:
    """Parse a ModelProto. `folder` is the folder of external data."""
    reader = _Reader(None if folder is None else Folder(folder), where)
    functions = {
        (plain_domain(each.domain), each.name): reader.function(each) for each in model.functions
    }
    return OnnxModel(reader.graph(model.graph), _versions(model.opset_import), functions)


def plain_domain(name: str) -> str:
    """Return the name of a set of operators; the main one has two."""
    return "" if name == "ai.onnx" else name


def _versions(imports: Iterable[Any]) -> dict[str, int]:
    return {plain_domain(each.domain): int(each.version) for each in imports}


class _Reader:
    def __init__(self, folder: Folder | None, where: str) -> None:
        self.where = where
        self.depth = 0
        self._array = partial(array_of, folder=folder, where=where)
        self._dense = partial(dense, folder=folder, where=where)

    def graph(self, proto: Any) -> ModelGraph:
        self.depth += 1
        require(
            self.depth <= _DEEPEST,
            self.where,
            f"at most {_DEEPEST} graphs inside each other",
            "more",
            error=DataError,
        )
        sparse = {each.values.name: self._dense(each) for each in proto.sparse_initializer}
        found = ModelGraph(
            proto.name,
            tuple(_of_type(each.name, each.type) for each in proto.input),
            tuple(_of_type(each.name, each.type) for each in proto.output),
            {each.name: self._array(each) for each in proto.initializer} | sparse,
            tuple(self._call(each) for each in proto.node),
        )
        self.depth -= 1
        return found

    def function(self, proto: Any) -> ModelFunction:
        defaults: dict[str, Any] = {
            each.name: self._attribute(each) for each in proto.attribute_proto
        }
        calls = tuple(self._call(each) for each in proto.node)
        names = tuple(proto.input), tuple(proto.output)
        return ModelFunction(proto.name, *names, defaults, calls, _versions(proto.opset_import))

    def _call(self, proto: Any) -> NodeCall:
        attributes = {each.name: self._attribute(each) for each in proto.attribute}
        return NodeCall(
            proto.op_type,
            plain_domain(proto.domain),
            proto.name,
            tuple(proto.input),
            tuple(proto.output),
            attributes,
        )

    def _attribute(self, proto: Any) -> Any:
        if proto.ref_attr_name:
            return Reference(proto.ref_attr_name)
        kind = onnx.AttributeProto.AttributeType.Name(proto.type)
        readers: dict[str, Any] = {
            "INT": lambda: int(proto.i),
            "FLOAT": lambda: float(proto.f),
            "STRING": lambda: self._text(proto.s, proto.name),
            "TENSOR": lambda: self._array(proto.t),
            "SPARSE_TENSOR": lambda: self._dense(proto.sparse_tensor),
            "GRAPH": lambda: self.graph(proto.g),
            "TYPE_PROTO": lambda: _of_type("", proto.tp),
            "INTS": lambda: tuple(proto.ints),
            "FLOATS": lambda: tuple(proto.floats),
            "STRINGS": lambda: tuple(self._text(each, proto.name) for each in proto.strings),
            "TENSORS": lambda: tuple(self._array(each) for each in proto.tensors),
            "GRAPHS": lambda: tuple(self.graph(each) for each in proto.graphs),
        }
        require(
            kind in readers,
            self.where,
            "an attribute of a kind that is known",
            f"{proto.name!r} of kind {kind}",
            error=DataError,
        )
        return readers[kind]()

    def _text(self, raw: bytes, name: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as problem:
            raise DataError.build(
                f"{self.where}, attribute {name!r}", expected="UTF-8", got=str(problem)
            ) from None


def _of_type(name: str, proto: Any) -> Declared:
    kind = (proto.WhichOneof("value") or "other").removesuffix("_type")
    if kind != "tensor":
        return Declared(name, kind if kind in ("sequence", "optional") else "other")
    tensor = proto.tensor_type
    shape = tuple(map(_size, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Declared(name, "tensor", BY_NUMBER.get(tensor.elem_type), shape)


def _size(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value)
    return dimension.dim_param or None


LARGEST_FILE = (1 << 31) - 1
"""Largest file that protobuf can read; larger models store their arrays in external files."""


def read_model(path: str | os.PathLike[str]) -> OnnxModel:
    """Read a model file.

    >>> read_model("no/such/model.onnx")
    Traceback (most recent call last):
    caldera.errors.DataError: onnx model.onnx: expected a model file, got no/such/model.onnx
    """
    file = Path(path)
    where = f"onnx {file.name}"
    require(file.is_file(), where, "a model file", file, error=DataError)
    refuse_exported_program(str(file), where)
    if file.stat().st_size > LARGEST_FILE:
        raise DataError.build(
            where,
            expected=f"at most {LARGEST_FILE} bytes",
            got=f"{file.stat().st_size}",
            hint="save its arrays in a file next to it",
        )
    return parse(message(file.read_bytes(), where), file.parent, where)


def message(raw: bytes, where: str) -> Any:
    """Return the ModelProto that these bytes are, if they are one."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    # protobuf's own error is not public in all of its versions.
    except Exception as problem:
        raise DataError.build(where, expected="a model of ONNX", got=str(problem)) from None
    require(
        model.HasField("graph") and model.opset_import,
        where,
        "a model of ONNX",
        "a message without graph or operator versions",
        error=DataError,
    )
    return model
