"""Export of a graph with a dynamic batch axis, from two traces with different batch sizes.

Shapes are fixed in Caldera, and may be dynamic in ONNX. A model is therefore traced twice; the two
graphs differ only in the sizes and numbers that follow from the number of samples.

A model may also create arrays while it is traced: zeros for the first state of each sample, the
positions 0 to n - 1, a number of elements. The two traces then have two arrays. The rule behind
them is recovered if it is one of the following, and the file computes it:

- an axis as long as the samples, along which values are constant or change by equal steps;
- numbers that grow with the number of samples (a + b n), or that it divides (a / n).

Any other difference is an error: a file with the first array would be wrong for all other batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.graph import Node, Spec, as_tuple, describe
from caldera.core.tensor.dtype import DType, int64
from caldera.errors import ConfigError

FIRST, SECOND = 13, 17
"""The two numbers of samples: unlike any size that a network is likely to have."""


@dataclass(frozen=True)
class BatchMultiple:
    """A size that is a multiple of the number of samples."""

    times: int


Size = int | BatchMultiple


@dataclass(frozen=True)
class Pair:
    """A node in both graphs."""

    node: Node
    twin: Node

    @property
    def name(self) -> str:
        """The name of its op."""
        return self.node.op.name

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes that it has in the first graph."""
        return self.node.attrs

    @property
    def spec(self) -> Spec:
        """Shape and dtype in the first graph, of its only output."""
        return self.node.spec

    @property
    def inputs(self) -> tuple[Pair, ...]:
        """The nodes that it reads."""
        return tuple(Pair(a, b) for a, b in zip(self.node.inputs, self.twin.inputs, strict=True))

    @property
    def shape(self) -> tuple[Size, ...]:
        """The sizes of its only output."""
        return sizes(self.node.shape, self.twin.shape, self.node)

    def sizes(self, name: str) -> tuple[Size, ...]:
        """Return an attribute that is a shape."""
        return sizes(self.node.attrs[name], self.twin.attrs[name], self.node)

    def different(self) -> list[str]:
        """Return the attributes that are not the same in both graphs."""
        a, b = self.node.attrs, self.twin.attrs
        return [name for name in a if not (a[name] == b[name] or _both_nan(a[name], b[name]))]

    def parts(self) -> tuple[Pair, ...]:
        """Return parts of a composite op."""
        assert self.node.op.decompose is not None
        firsts, seconds = (
            as_tuple(each.op.decompose(*each.inputs, **each.attrs))  # type: ignore[misc]
            for each in (self.node, self.twin)
        )
        return tuple(Pair(a, b) for a, b in zip(firsts, seconds, strict=True))


def _both_nan(a: Any, b: Any) -> bool:
    return bool(a != a) and bool(b != b)


def size(first: int, second: int, node: Node) -> Size:
    """Return a size as a function of the number of samples."""
    if first == second:
        return first
    times, rest = divmod(first, FIRST)
    if rest or times * SECOND != second:
        raise not_open("sizes that are multiples of the number of samples", first, second, node)
    return BatchMultiple(times)


def not_open(expected: str, first: object, second: object, node: Node) -> ConfigError:
    """Return the error about something that is not a known function of the number of samples."""
    return ConfigError.build(
        "onnx export",
        expected=expected,
        got=f"{first} for {FIRST} and {second} for {SECOND} in {describe(node)}",
        hint="export it with batch_size=, for a fixed number of samples",
    )


def sizes(first: Sequence[int], second: Sequence[int], node: Node) -> tuple[Size, ...]:
    """Return sizes as functions of the number of samples."""
    return tuple(size(a, b, node) for a, b in zip(first, second, strict=True))


def in_order(roots: Iterable[Pair]) -> list[Pair]:
    """Return all pairs that the roots depend on, inputs before users."""
    order: list[Pair] = []
    done: set[Pair] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        pair, is_ready = stack.pop()
        if is_ready:
            order.append(pair)
        elif pair not in done:
            done.add(pair)
            a, b = pair.node, pair.twin
            if a.op is not b.op or len(a.inputs) != len(b.inputs):
                same = "the same ops for every number of samples"
                raise not_open(same, describe(a), describe(b), a)
            stack.append((pair, True))
            stack.extend((given, False) for given in reversed(pair.inputs) if given not in done)
    return order


Both = tuple[np.ndarray, np.ndarray]


def array_by_samples(write: Any, both: Both, node: Node) -> str:
    """Write an array that has the first or second value, depending on the number of samples."""
    first, second = both
    if _same(first, second):
        return write.array(first)
    shape = sizes(first.shape, second.shape, node)
    steps = []
    for axis, each in enumerate(shape):
        if isinstance(each, BatchMultiple):
            both, step = _start_and_step(both, axis, node)
            steps.append((axis, each, step))
    name = _numbers(write, both, node)
    for axis, length, step in steps:
        if not step[0].any() and not step[1].any():
            continue
        positions = counting(write, length, axis, len(shape), first.dtype)
        name = write.add("Add", name, write.add("Mul", positions, _numbers(write, step, node)))
    return write.add("Expand", name, write.shape(shape)) if steps else name


def counting(write: Any, length: Size, axis: int, rank: int, dtype: DType) -> str:
    """Write 0, 1, 2, ... along one of `rank` axes; the remaining axes have size 1."""
    line = [1] * rank
    if not isinstance(length, BatchMultiple):
        line[axis] = length
        return write.array(np.arange(length, dtype=dtype).reshape(line))
    line[axis] = -1
    zero, one = write.scalar(0, int64), write.scalar(1, int64)
    numbers = write.add("Range", zero, write.add("Squeeze", write.samples(length.times)), one)
    numbers = write.add("Cast", numbers, to=write.element_type(dtype))
    return write.add("Reshape", numbers, write.integers(line))


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and np.array_equal(
        first, second, equal_nan=first.dtype.kind == "f"
    )


def _start_and_step(both: Both, axis: int, node: Node) -> tuple[Both, Both]:
    """Return the start of an axis, and its step from each index to the next."""
    starts, steps = [], []
    for array in both:
        start = array.take([0], axis)
        step = np.zeros_like(start)
        if not _same(array, np.broadcast_to(start, array.shape)):
            line = [1] * array.ndim
            line[axis] = -1
            positions = np.arange(array.shape[axis]).astype(array.dtype).reshape(line)
            # Booleans have no steps, and steps of fractions are rounded.
            if array.dtype.kind in "iu":
                step = array.take([1], axis) - start
            if not _same(array, start + positions * step):
                raise _unknown(both, node)
        starts.append(start)
        steps.append(step)
    return (starts[0], starts[1]), (steps[0], steps[1])


def _numbers(write: Any, both: Both, node: Node) -> str:
    """Return numbers of which each is a function of the number of samples."""
    first, second = both
    if _same(first, second):
        return write.array(first)
    dtype = first.dtype
    if dtype.kind in "b":
        raise _unknown(both, node)
    count = write.add("Cast", write.add("Squeeze", write.samples(1)), to=write.element_type(dtype))
    a, b = (each.astype(np.float64 if dtype.kind not in "iu" else np.int64) for each in both)
    slope = (b - a) // (SECOND - FIRST)
    offset = a - slope * FIRST
    if np.array_equal(offset + slope * SECOND, b):
        grown = write.add("Mul", count, write.array(slope.astype(dtype)))
        return write.add("Add", grown, write.array(offset.astype(dtype)))
    if dtype.kind not in "iu" and np.allclose(a * FIRST, b * SECOND, rtol=1e-6, atol=0):
        return write.add("Div", write.array((a * FIRST).astype(dtype)), count)
    raise _unknown(both, node)


def _unknown(both: Both, node: Node) -> Exception:
    wanted = "arrays that are plain functions of the number of samples"
    return not_open(wanted, _briefly(both[0]), _briefly(both[1]), node)


def _briefly(array: np.ndarray) -> str:
    flat = ", ".join(str(each) for each in array.reshape(-1)[:4])
    return f"{array.shape} {array.dtype} [{flat}{', ...' if array.size > 4 else ''}]"
