"""Constant folding: values that do not depend on a run are computed once, at compile time.

Constants, ranges and constant arrays fold; variables, inputs and a user's live tensors never do.
The oracle computes the results, so folding changes only the time of the computation.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from caldera.compiler.passes.constants import (
    LARGEST_ARRAY,
    Number,
    is_known,
    known_node,
    plain,
    uniform,
    value_of,
)
from caldera.compiler.passes.pattern import Rules, anything, number, p
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import constant
from caldera.core.tensor import HALVES, DType, float32, is_float, is_integer, size
from caldera.kernels.reference import evaluate

MOST_FLOPS = 1 << 22
"""Operations that one node may take to fold."""

value = number("value")


# --- the same number everywhere


def _same_everywhere(node: Node) -> Node | None:
    """Return an element-wise op on constants: computed once, and broadcast."""
    scalars = []
    for given in node.inputs:
        value = uniform(given)
        if value is None:
            return None
        scalars.append(constant(value, given.dtype))
    if not _is_safe(node):
        return None
    with np.errstate(all="ignore"):
        arrays = [evaluate(scalar, ())[0] for scalar in scalars]
        (result,) = evaluate(node.op.node(*scalars, **node.attrs), arrays)
    return constant(plain(result, node.dtype), node.dtype)


def _same(node: Node, value: Number) -> Node:
    """Return a constant whose elements are moved or compared is the same constant."""
    return constant(value, node.dtype)


def _joined(node: Node) -> Node | None:
    numbers = {repr(uniform(part)) for part in node.inputs}
    value = uniform(node.inputs[0])
    return None if len(numbers) > 1 or value is None else constant(value, node.dtype)


def _padded(node: Node, value: Number) -> Node | None:
    inside, around = constant(value, node.dtype), constant(node.attrs["value"], node.dtype)
    return inside if inside is around else None


def _total(node: Node, value: Number) -> Node | None:
    """Return the sum of equal numbers, where no rounding can happen on the way."""
    count = size(node.inputs[0].shape) // max(size(node.shape), 1)
    if not is_exact_sum(value, count, node.dtype):
        return None
    # A sum starts from 0, so a sum of negative zeros is a positive zero.
    return constant(value * count + 0, node.dtype)


def is_exact_sum(value: Number, count: int, dtype: DType) -> bool:
    """Return True if every partial sum of `count` times `value` is representable in `dtype`."""
    if is_integer(dtype):
        return abs(value) * count <= np.iinfo(dtype).max
    if not is_float(dtype) or not math.isfinite(value):
        return False
    if value == 0 or count == 0:
        return True
    # Halves are summed in float32 and rounded at the end.
    facts = ml_dtypes.finfo(float32 if dtype in HALVES else dtype)
    whole = int(math.ldexp(math.frexp(abs(value))[0], 53))
    odd = whole // (whole & -whole)
    in_range = abs(value) * count < float(facts.max) and abs(value) >= float(facts.tiny)
    return odd * count <= 1 << (facts.nmant + 1) and in_range


# --- arrays

_FOLDABLE = frozenset({"elementwise", "reduction", "product"})
_FOLDABLE_MOVEMENTS = frozenset({"pad", "unslice", "concat"})
"""Views are free when a plan runs, so they are only folded together with their readers."""


def _array(node: Node) -> Node | None:
    if node.op.kind not in _FOLDABLE and node.op.name not in _FOLDABLE_MOVEMENTS:
        return None
    if len(node.outputs) > 1 or not node.inputs or not all(map(is_known, node.inputs)):
        return None
    elements = node.spec.size + sum(given.spec.size for given in node.inputs)
    if elements > LARGEST_ARRAY or node.op.count_flops(node) > MOST_FLOPS or not _is_safe(node):
        return None
    with np.errstate(all="ignore"):
        (result,) = evaluate(node, [value_of(given) for given in node.inputs])
    return known_node(result)


def _is_safe(node: Node) -> bool:
    # Negative powers of integers are an error when the plan runs, and not before.
    return node.op.name != "pow" or is_float(node.dtype)


NUMBERS = Rules(
    (anything("node", kind="elementwise"), _same_everywhere),
    (p.reshape(value, name="node"), _same),
    (p.transpose(value, name="node"), _same),
    (p.slice(value, name="node"), _same),
    (p.flip(value, name="node"), _same),
    (p.pad(value, name="node"), _padded),
    (p.concat(..., name="node"), _joined),
    (p.max(value, name="node"), _same),
    (p.min(value, name="node"), _same),
    (p.sum(value, name="node"), _total),
)
"""Rules whose results are scalars: the body of a loop cannot store arrays."""

ARRAYS = NUMBERS + Rules(
    (p.iota(name="node"), lambda node: known_node(value_of(node)) if is_known(node) else None),
    (anything("node"), _array),
)
"""All rules of constant folding."""
