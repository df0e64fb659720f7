"""The ops that other gradients lean on: broadcast and sum are each other's gradient."""

from __future__ import annotations

from caldera.graph.node import Node, Spec
from caldera.graph.opdef import Nodes, op, refuse_shape
from caldera.graph.ops.leaf import constant
from caldera.tensor.dtype import DType, is_float
from caldera.tensor.shape import Shape, size

Axes = tuple[int, ...]


@op("broadcast_to", kind="movement")
def _broadcast_to(x: Spec, *, shape: Shape) -> Spec:
    padded = (1,) * (len(shape) - x.rank) + x.shape
    fits = len(padded) == len(shape) and all(
        have in (1, want) for have, want in zip(padded, shape, strict=True)
    )
    if not fits:
        refuse_shape(f"a shape that broadcasts to {shape}")
    return Spec(shape, x.dtype)


@_broadcast_to.gradient
def _(g: Node, y: Node, x: Node, *, shape: Shape) -> Nodes:
    return (sum_to(g, x.shape),)


def broadcast_to(x: Node, shape: Shape) -> Node:
    """`x` seen in a larger shape, as NumPy broadcasts."""
    node: Node = x if x.shape == shape else _broadcast_to(x, shape=shape)
    return node


def full(shape: Shape, value: bool | int | float, dtype: DType) -> Node:
    """A value of `shape` that is the same everywhere."""
    return broadcast_to(constant(value, dtype), shape)


@op("reshape", kind="movement")
def _reshape(x: Spec, *, shape: Shape) -> Spec:
    if size(shape) != x.size:
        refuse_shape(f"{size(shape)} elements for shape {shape}")
    return Spec(shape, x.dtype)


@_reshape.gradient
def _(g: Node, y: Node, x: Node, *, shape: Shape) -> Nodes:
    return (reshape(g, x.shape),)


def reshape(x: Node, shape: Shape) -> Node:
    """The same elements in the same (row-major) order in another shape."""
    node: Node = x if x.shape == shape else _reshape(x, shape=shape)
    return node


def reduced_shape(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """The shape left when `axes` are reduced."""
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def expand_reduced(reduced: Node, shape: Shape, axes: Axes) -> Node:
    """A reduced value, back in the shape it was reduced from."""
    return broadcast_to(reshape(reduced, reduced_shape(shape, axes, keepdims=True)), shape)


@op("sum", kind="reduction")
def _sum(x: Spec, *, axis: Axes, keepdims: bool) -> Spec:
    return Spec(reduced_shape(x.shape, axis, keepdims), x.dtype)


@_sum.gradient
def _(g: Node, y: Node, x: Node, *, axis: Axes, keepdims: bool) -> Nodes:
    return (expand_reduced(g, x.shape, axis),)


def sum_(x: Node, axis: Axes, keepdims: bool = False) -> Node:
    """The sum over `axis`."""
    node: Node = x if not axis else _sum(x, axis=axis, keepdims=keepdims)
    return node


def sum_to(x: Node, shape: Shape) -> Node:
    """The gradient of broadcasting `shape` to `x.shape`: sum what was repeated."""
    if x.shape == shape:
        return x
    extra = len(x.shape) - len(shape)
    padded = (1,) * extra + shape
    axes = tuple(i for i, n in enumerate(padded) if i < extra or (n == 1 and x.shape[i] != 1))
    return reshape(sum_(x, axes), shape)


@op("cast", kind="elementwise")
def _cast(x: Spec, *, dtype: DType) -> Spec:
    return Spec(x.shape, dtype)


@_cast.gradient
def _(g: Node, y: Node, x: Node, *, dtype: DType) -> tuple[Node | None, ...]:
    return (cast(g, x.dtype) if is_float(dtype) and is_float(x.dtype) else None,)


def cast(x: Node, dtype: DType) -> Node:
    """The same values in another dtype (to bool: whether they are not zero)."""
    node: Node = x if x.dtype == dtype else _cast(x, dtype=dtype)
    return node
