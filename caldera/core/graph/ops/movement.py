"""Ops that move elements without computing: transpose, slice, pad, flip, concat, split, arrange,
and complex numbers as pairs."""

from __future__ import annotations

from caldera.core.graph import Node, Nodes, Order, Spec, composite, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops.base import (
    Axes,
    broadcast_to,
    check_complex,
    check_part,
    full,
    reshape,
)
from caldera.core.tensor import Shape, complex_of, is_complex, is_integer, part_of

Bounds = tuple[tuple[int, int, int], ...]
"""(start, stop, step) an axis, with step > 0 and 0 <= start <= stop <= n."""
Widths = tuple[tuple[int, int], ...]
"""(before, after) an axis."""


@op(
    "transpose",
    kind="movement",
    gradient=lambda g, y, x, *, axes: (
        transpose(g, tuple(axes.index(axis) for axis in range(len(axes)))),
    ),
)
def _transpose(x: Spec, *, axes: Axes) -> Spec:
    if sorted(axes) != list(range(x.rank)):
        refuse_shape(f"axes that are a permutation of {tuple(range(x.rank))}, not {axes}")
    return Spec(tuple(x.shape[axis] for axis in axes), x.dtype)


def transpose(x: Node, axes: Axes) -> Node:
    """Return the axes in another order."""
    return x if axes == tuple(range(len(axes))) else _transpose(x, axes=axes)


def swap_last(x: Node) -> Node:
    """Return the transpose of each matrix in a batch."""
    rank = len(x.shape)
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2))


@op("unslice", kind="movement", gradient=lambda g, y, x, *, shape, bounds: (slice_(g, bounds),))
def unslice(x: Spec, *, shape: Shape, bounds: Bounds) -> Spec:
    """Return zeros of `shape` with `x` where `bounds` point: the gradient of a slice."""
    return Spec(shape, x.dtype)


@op(
    "slice",
    kind="movement",
    gradient=lambda g, y, x, *, bounds: (unslice(g, shape=x.shape, bounds=bounds),),
)
def _slice(x: Spec, *, bounds: Bounds) -> Spec:
    if len(bounds) != x.rank:
        refuse_shape(f"bounds for each of the {x.rank} axes")
    return Spec(tuple(len(range(*bound)) for bound in bounds), x.dtype)


def slice_(x: Node, bounds: Bounds) -> Node:
    """Return a regular part of `x`."""
    whole = all(bound == (0, n, 1) for bound, n in zip(bounds, x.shape, strict=True))
    return x if whole else _slice(x, bounds=bounds)


def narrow(x: Node, axis: int, start: int, length: int) -> Node:
    """Return `length` entries along `axis`, from `start` on."""
    bounds = [(0, n, 1) for n in x.shape]
    bounds[axis] = (start, start + length, 1)
    return slice_(x, tuple(bounds))


@op("pad", kind="movement")
def _pad(x: Spec, *, widths: Widths, value: complex) -> Spec:
    if len(widths) != x.rank or any(width < 0 for pair in widths for width in pair):
        refuse_shape(f"{x.rank} pairs of widths, none negative, not {widths}")
    return Spec(tuple(a + n + b for n, (a, b) in zip(x.shape, widths, strict=True)), x.dtype)


@_pad.gradient
def _(g: Node, y: Node, x: Node, *, widths: Widths, value: complex) -> Nodes:
    bounds = tuple((a, a + n, 1) for n, (a, _) in zip(x.shape, widths, strict=True))
    return (slice_(g, bounds),)


def pad(x: Node, widths: Widths, value: complex = 0) -> Node:
    """Pad `x` with `value`."""
    if all(pair == (0, 0) for pair in widths):
        return x
    around: complex
    if is_complex(x.dtype):
        around = complex(value)
    else:
        # As a float it would lose the digits of large integers.
        around = int(value.real) if is_integer(x.dtype) else float(value.real)
    return _pad(x, widths=widths, value=around)


@op("flip", kind="movement", gradient=lambda g, y, x, *, axis: (flip(g, axis),))
def _flip(x: Spec, *, axis: Axes) -> Spec:
    return x


def flip(x: Node, axis: Axes) -> Node:
    """Return the elements in reverse order along `axis`."""
    return x if not axis else _flip(x, axis=axis)


@op("concat", kind="movement")
def _concat(*parts: Spec, axis: int) -> Spec:
    first = parts[0]
    for part in parts[1:]:
        if part.dtype != first.dtype:
            refuse_dtype("parts of the same dtype")
        if part.rank != first.rank or any(
            a != b
            for i, (a, b) in enumerate(zip(part.shape, first.shape, strict=True))
            if i != axis
        ):
            refuse_shape(f"parts that differ only along axis {axis}")
    joined = sum(part.shape[axis] for part in parts)
    return Spec((*first.shape[:axis], joined, *first.shape[axis + 1 :]), first.dtype)


@_concat.gradient
def _(g: Node, y: Node, *parts: Node, axis: int) -> Nodes:
    pieces = []
    start = 0
    for part in parts:
        pieces.append(narrow(g, axis, start, part.shape[axis]))
        start += part.shape[axis]
    return tuple(pieces)


def concat(parts: Nodes, axis: int) -> Node:
    """Return the parts concatenated along `axis`."""
    return parts[0] if len(parts) == 1 else _concat(*parts, axis=axis)


@op("split", kind="movement")
def _split(x: Spec, *, sizes: tuple[int, ...], axis: int) -> tuple[Spec, ...]:
    if sum(sizes) != x.shape[axis] or any(n < 0 for n in sizes):
        refuse_shape(
            f"sizes that add up to {x.shape[axis]}, the length of axis {axis}, not {sizes}"
        )
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    return tuple(Spec((*before, n, *after), x.dtype) for n in sizes)


@_split.gradient
def _(g: tuple[Node | None, ...], y: Nodes, x: Node, *, sizes: tuple[int, ...], axis: int) -> Nodes:
    pieces = tuple(
        full(part.shape, 0, part.dtype) if piece is None else piece
        for piece, part in zip(g, y, strict=True)
    )
    return (concat(pieces, axis),)


def split(x: Node, sizes: tuple[int, ...], axis: int) -> Nodes:
    """Split `x` along `axis` into pieces of these sizes."""
    return (x,) if len(sizes) == 1 else _split.outputs(x, sizes=sizes, axis=axis)


@op("arrange", kind="movement", gradient=lambda g, y, x, *, order: (g,))
def _arrange(x: Spec, *, order: Order | None) -> Spec:
    if order is not None and sorted(order) != list(range(x.rank)):
        refuse_shape(f"an order that is a permutation of {tuple(range(x.rank))}, not {order}")
    return Spec(x.shape, x.dtype, order)


def arrange(x: Node, order: Order | None) -> Node:
    """The same value in memory whose axes have this order (None: row major). Made by a pass."""
    return x if x.spec.order == order else _arrange(x, order=order)


@op("view_as_real", kind="movement")
def view_as_real(x: Spec) -> Spec:
    """Return complex numbers as pairs (real, imaginary) on a new last axis."""
    check_complex(x)
    return Spec((*x.shape, 2), part_of(x.dtype))


@op("view_as_complex", kind="movement", gradient=lambda g, y, x: (view_as_real(g),))
def view_as_complex(x: Spec) -> Spec:
    """Return pairs (real, imaginary) on a last axis of length 2 as complex numbers."""
    check_part(x.dtype)
    if x.rank < 1 or x.shape[-1] != 2:
        refuse_shape(
            "a last axis of length 2: (real, imaginary)",
            hint="stack the two parts along a new last axis",
        )
    return Spec(x.shape[:-1], complex_of(x.dtype))


view_as_real.gradient(lambda g, y, x: (view_as_complex(g),))


@composite("tile", kind="movement")
def tile(x: Node, *, repeats: tuple[int, ...]) -> Node:
    """`x` laid side by side, `repeats` times along each axis."""
    extra = len(repeats) - len(x.shape)
    shape = (1,) * extra + x.shape
    between = tuple(n for pair in zip((1,) * len(shape), shape, strict=True) for n in pair)
    spread = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    final = tuple(r * n for r, n in zip(repeats, shape, strict=True))
    return reshape(broadcast_to(reshape(x, between), spread), final)


@composite("repeat", kind="movement")
def repeat(x: Node, *, repeats: int, axis: int) -> Node:
    """Repeat each element `repeats` times along `axis`."""
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    spread = broadcast_to(reshape(x, (*before, n, 1, *after)), (*before, n, repeats, *after))
    return reshape(spread, (*before, n * repeats, *after))
