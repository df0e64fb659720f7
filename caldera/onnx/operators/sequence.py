"""Sequences of tensors (lists, here) and values that may be missing (None)."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.errors import DataError
from caldera.onnx.operators.movement import concat
from caldera.onnx.operators.registry import operator
from caldera.onnx.operators.values import Value, axis_of, integer, integers
from caldera.onnx.reading import Graph


@operator("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> list[Value]:
    """A sequence without elements."""
    return []


@operator("SequenceConstruct", foreign=True)
def sequence_construct(*values: Value) -> list[Value]:
    """A sequence of these."""
    return list(values)


@operator("SequenceInsert", foreign=True)
def sequence_insert(sequence: list[Value], value: Value, position: Value = None) -> list[Value]:
    """One element more, at the end or before a position."""
    place = len(sequence) if position is None else integer(position, "a position")
    found = list(sequence)
    found.insert(place, value)
    return found


@operator("SequenceErase", foreign=True)
def sequence_erase(sequence: list[Value], position: Value = None) -> list[Value]:
    """One element less: the last, or that at a position."""
    place = -1 if position is None else integer(position, "a position")
    found = list(sequence)
    del found[place]
    return found


@operator("SequenceAt", foreign=True)
def sequence_at(sequence: list[Value], position: Value) -> Value:
    """The element at a position."""
    return sequence[integer(position, "a position")]


@operator("SequenceLength", foreign=True)
def sequence_length(sequence: list[Value]) -> np.ndarray:
    """The number of elements."""
    return np.array(len(sequence))


@operator("ConcatFromSequence", moves=True)
def concat_from_sequence(sequence: list[Value], *, axis: int, new_axis: int = 0) -> Value:
    """The elements joined along an axis, or along a new one."""
    return op.stack(sequence, axis) if new_axis else concat(*sequence, axis=axis)


@operator("SplitToSequence", moves=True)
def split_to_sequence(
    x: Value, split: Value = None, *, axis: int = 0, keepdims: int = 1
) -> list[Value]:
    """Pieces along an axis: of one size (the last may be smaller), or of sizes given."""
    position = axis_of(axis, len(x.shape))
    length = x.shape[position]
    if split is None or not split.shape:
        size = 1 if split is None else integer(split, "a size")
        sizes = [size] * (length // size) + ([length % size] if length % size else [])
    else:
        sizes = list(integers(split, "sizes"))
    parts = list(op.split(x, sizes, position))
    if split is None and not keepdims:
        return [op.squeeze(part, position) for part in parts]
    return parts


@operator("SequenceMap", foreign=True)
def sequence_map(*inputs: Value, body: Graph, scope: Any) -> tuple[list[Value], ...]:
    """A graph applied to each element; tensors are the same for all."""
    results = [
        scope.run(body, [each[i] if isinstance(each, list) else each for each in inputs])
        for i in range(len(inputs[0]))
    ]
    if not results:
        return tuple([] for _ in body.outputs)
    return tuple(list(column) for column in zip(*results, strict=True))


@operator("Optional", foreign=True)
def optional(value: Value = None, *, type: Any = None) -> Value:
    """A value that may be missing."""
    return value


@operator("OptionalHasElement", foreign=True)
def optional_has_element(value: Value = None) -> np.ndarray:
    """Whether it is there."""
    return np.array(value is not None)


@operator("OptionalGetElement", foreign=True)
def optional_get_element(value: Value = None) -> Value:
    """The value itself, which must be there."""
    if value is None:
        raise DataError.build("onnx OptionalGetElement", expected="an element", got="none")
    return value
