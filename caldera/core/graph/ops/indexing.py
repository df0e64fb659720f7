"""Ops that read or add at computed positions, and sorting.

Indices are integers of any width; along an axis of length n they run from -n to n - 1, with
negative ones counted from the end. An index outside is an error when a plan runs; a GPU, which
cannot stop, returns NaN instead. Positions have no derivative: gradients exist only for values.

Reading and adding are adjoint: `gather` and `scatter_add` (one list of positions for a whole axis),
`take_along_axis` and `put_along_axis_add` (a position for each element). Repeated positions add all
their updates.

Sorting is stable (equal elements keep their order, also when descending), and NaN are last in both
directions. The gradient follows the permutation.
"""

from __future__ import annotations

import numpy as np

from caldera.core.graph import Node, Nodes, Spec, composite, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops import cast, constant, equal, full, iota, minimum, narrow, reshape
from caldera.core.tensor import DType, Shape, bool_, int64, is_integer, uint64


def _check_axis(x: Spec, axis: int) -> None:
    if not 0 <= axis < x.rank:
        refuse_shape(f"something with an axis {axis}")


def _check_indices(indices: Spec) -> None:
    if not is_integer(indices.dtype):
        refuse_dtype("integers as indices", hint="cast them with op.cast(indices, 'int64')")


def as_signed(indices: Node) -> Node:
    """Return indices that can be cast to int64: what that has not stays beyond every end."""
    if indices.dtype != uint64:
        return indices
    return cast(minimum(indices, constant(np.iinfo(np.int64).max, uint64)), int64)


def _check_updates(x: Spec, updates: Spec, shape: Shape) -> None:
    if x.dtype != updates.dtype or x.dtype == bool_:
        refuse_dtype("numbers of the same dtype, not booleans", hint="cast them with op.cast")
    if updates.shape != shape:
        refuse_shape(f"updates of shape {shape}")


def _gathered(x: Spec, indices: Spec, axis: int) -> Shape:
    _check_axis(x, axis)
    _check_indices(indices)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


@op("gather", kind="movement")
def gather(x: Spec, indices: Spec, *, axis: int) -> Spec:
    """Return the parts of `x` at `indices` along `axis`, which the axes of `indices` replace."""
    return Spec(_gathered(x, indices, axis), x.dtype)


@op(
    "scatter_add",
    flops=lambda node: node.inputs[2].spec.size,
    gradient=lambda g, y, x, indices, updates, *, axis: (g, None, gather(g, indices, axis=axis)),
)
def scatter_add(x: Spec, indices: Spec, updates: Spec, *, axis: int) -> Spec:
    """`x` with each part of `updates` added at its index along `axis`."""
    _check_updates(x, updates, _gathered(x, indices, axis))
    return x


gather.gradient(
    lambda g, y, x, indices, *, axis: (
        scatter_add(full(x.shape, 0, x.dtype), indices, g, axis=axis),
        None,
    )
)


def _taken(x: Spec, indices: Spec, axis: int) -> Shape:
    _check_axis(x, axis)
    _check_indices(indices)
    if x.rank != indices.rank or any(
        have != want
        for i, (have, want) in enumerate(zip(indices.shape, x.shape, strict=True))
        if i != axis
    ):
        refuse_shape(f"indices that differ from {x.shape} only along axis {axis}")
    return indices.shape


@op("take_along_axis", kind="movement")
def take_along_axis(x: Spec, indices: Spec, *, axis: int) -> Spec:
    """For each element of `indices`, the element of `x` at that index along `axis`."""
    return Spec(_taken(x, indices, axis), x.dtype)


@op(
    "put_along_axis_add",
    flops=lambda node: node.inputs[2].spec.size,
    gradient=lambda g, y, x, indices, updates, *, axis: (
        g,
        None,
        take_along_axis(g, indices, axis=axis),
    ),
)
def put_along_axis_add(x: Spec, indices: Spec, updates: Spec, *, axis: int) -> Spec:
    """`x` with each element of `updates` added at its index along `axis`."""
    _check_updates(x, updates, _taken(x, indices, axis))
    return x


take_along_axis.gradient(
    lambda g, y, x, indices, *, axis: (
        put_along_axis_add(full(x.shape, 0, x.dtype), indices, g, axis=axis),
        None,
    )
)


@composite("one_hot")
def one_hot(indices: Node, *, classes: int, dtype: DType) -> Node:
    """1 at each index of a new last axis and 0 elsewhere; all 0 for an index outside it."""
    _check_indices(indices.spec)
    shape = (*indices.shape, classes)
    positions = iota(shape=shape, axis=len(indices.shape), dtype=int64)
    wanted = reshape(cast(indices, int64), (*indices.shape, 1))
    return cast(equal(wanted, positions), dtype)


@op(
    "sort",
    gradient=lambda g, y, x, *, axis, descending: (
        None
        if g[0] is None
        else put_along_axis_add(full(x.shape, 0, x.dtype), y[1], g[0], axis=axis),
    ),
)
def sort(x: Spec, *, axis: int, descending: bool) -> tuple[Spec, Spec]:
    """Return elements in order along `axis`, and their original indices."""
    _check_axis(x, axis)
    return x, Spec(x.shape, int64)


@sort.flops
def _(node: Node) -> int:
    given = node.inputs[0]
    return given.spec.size * max(given.shape[node.attrs["axis"]] - 1, 0).bit_length()


@composite("top_k")
def top_k(x: Node, *, k: int, axis: int) -> Nodes:
    """The `k` largest elements along `axis` in descending order, and their original indices."""
    _check_axis(x.spec, axis)
    if not 0 <= k <= x.shape[axis]:
        refuse_shape(f"k from 0 to {x.shape[axis]}, the length of axis {axis}", got=f"k = {k}")
    values, indices = sort.outputs(x, axis=axis, descending=True)
    return narrow(values, axis, 0, k), narrow(indices, axis, 0, k)
