"""From the messages of protobuf to the plain values of `structure`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from caldera.errors import DataError
from caldera.onnx.dtypes import BY_NUMBER
from caldera.onnx.library import onnx
from caldera.onnx.reading.structure import Call, Declared, Function, Graph, Program, Reference
from caldera.onnx.reading.tensors import Folder, array_of, dense

_DEEPEST = 64
"""Graphs inside graphs: more would be an attack."""


def parse(model: Any, folder: Path | None = None, where: str = "onnx") -> Program:
    """What a ModelProto says. `folder` is where arrays that it keeps in other files may lie."""
    reader = _Reader(None if folder is None else Folder(folder), where)
    functions = {
        (plain_domain(each.domain), each.name): reader.function(each) for each in model.functions
    }
    return Program(reader.graph(model.graph), _versions(model.opset_import), functions)


def plain_domain(name: str) -> str:
    """The name of a set of operators; the main one has two."""
    return "" if name == "ai.onnx" else name


def _versions(imports: Iterable[Any]) -> dict[str, int]:
    return {plain_domain(each.domain): int(each.version) for each in imports}


class _Reader:
    def __init__(self, folder: Folder | None, where: str) -> None:
        self.folder = folder
        self.where = where
        self.depth = 0

    def graph(self, proto: Any) -> Graph:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise DataError.build(
                self.where, expected=f"at most {_DEEPEST} graphs inside each other", got="more"
            )
        constants = {each.name: self._array(each) for each in proto.initializer}
        constants |= {each.values.name: self._dense(each) for each in proto.sparse_initializer}
        found = Graph(
            proto.name,
            tuple(_declared(each) for each in proto.input),
            tuple(_declared(each) for each in proto.output),
            constants,
            tuple(self._call(each) for each in proto.node),
        )
        self.depth -= 1
        return found

    def function(self, proto: Any) -> Function:
        defaults: dict[str, Any] = {
            each.name: self._attribute(each) for each in proto.attribute_proto
        }
        calls = tuple(self._call(each) for each in proto.node)
        names = tuple(proto.input), tuple(proto.output)
        return Function(proto.name, *names, defaults, calls, _versions(proto.opset_import))

    def _call(self, proto: Any) -> Call:
        attributes = {each.name: self._attribute(each) for each in proto.attribute}
        return Call(
            proto.op_type,
            plain_domain(proto.domain),
            proto.name,
            tuple(proto.input),
            tuple(proto.output),
            attributes,
        )

    def _array(self, proto: Any) -> np.ndarray:
        return array_of(proto, self.folder, self.where)

    def _dense(self, proto: Any) -> np.ndarray:
        return dense(proto, self.folder, self.where)

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
        if kind not in readers:
            raise DataError.build(
                self.where,
                expected="an attribute of a kind that is known",
                got=f"{proto.name!r} of kind {kind}",
            )
        return readers[kind]()

    def _text(self, raw: bytes, name: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as problem:
            raise DataError.build(
                f"{self.where}, attribute {name!r}", expected="UTF-8", got=str(problem)
            ) from None


def _declared(proto: Any) -> Declared:
    return _of_type(proto.name, proto.type)


def _of_type(name: str, proto: Any) -> Declared:
    kind = (proto.WhichOneof("value") or "other").removesuffix("_type")
    if kind not in ("tensor", "sequence", "optional"):
        return Declared(name, "other")
    if kind != "tensor":
        return Declared(name, kind)
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_size(each) for each in tensor.shape.dim)
    return Declared(name, "tensor", BY_NUMBER.get(tensor.elem_type), shape)


def _size(dimension: Any) -> int | str | None:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value)
    return dimension.dim_param or None
