"""Layer normalisation and its gradient: a sample is a row, and rows stay in the cache.

The gradients of scale and shift are sums over samples. They are taken in blocks of rows together
with the gradient of x, and added up by a second call.
"""

from __future__ import annotations

from llvmlite import ir

from caldera.core.graph import Node, Order, Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen import (
    F64,
    ElementPointer,
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    Real,
    RegisterValue,
    Strides,
    any_layout,
    collapse_axes,
    itemsize,
    line_lanes,
    native_kernel,
    natural_lanes,
    offer,
    parts_for,
    shrinking,
    vector,
)
from caldera.kernels.native.normalisation.layout import ChannelRows
from caldera.kernels.native.normalisation.loops import over_plane
from caldera.kernels.native.normalisation.statistics import (
    column_totals,
    finite_or_zero,
    gradient_factors,
    inverse_deviation,
    moments,
    pairwise,
    pivoted_sums,
    share_of,
)
from caldera.kernels.table import Array, Call, Runner

_TOGETHER = 2
"""Rows of a gradient that are read together, and again while they are in the cache."""
_BLOCK = 64
"""Rows whose gradients of scale and shift are added up in float32."""


@native_kernel
def _normalise(
    k: Emitter,
    x: ChannelRows,
    y: ChannelRows,
    rows: Integer,
    length: Integer,
    eps: Real,
    scale: ElementPointer,
    shift: ElementPointer,
    means: Pointer,
    variances: Pointer,
) -> None:
    kind = means.type
    share = share_of(k, length)
    with k.loop(*k.part_range(rows)) as row:
        source, target = x.base.at(row * x.stride), y.base.at(row * y.stride)
        pivot = finite_or_zero(k, source.load())
        one, two = pivoted_sums(k, (0, 1), lambda _: source, length, pivot)
        mean, variance = moments(k, one, two, k.convert(pivot, F64), share)
        centre = k.convert(mean, kind)
        inverse = k.convert(inverse_deviation(k, variance, eps), kind)
        for index, count in over_plane(k, length, kind):
            unit = (source.load(index, count) - centre) * inverse
            target.store(index, k.fma(unit, scale.load(index, count), shift.load(index, count)))
        means.store(row, centre)
        variances.store(row, k.convert(variance, kind))


@native_kernel
def _differentiate(
    k: Emitter,
    g: ChannelRows,
    x: ChannelRows,
    dx: ChannelRows,
    rows: Integer,
    length: Integer,
    eps: Real,
    scale: ElementPointer,
    means: Pointer,
    variances: Pointer,
    partial: Pointer,
) -> None:
    kind = means.type
    share = share_of(k, length)

    def several(first: RegisterValue, count: int, sums: Pointer) -> None:
        """The sums of `count` rows, then their gradients, which may be written over g or x."""
        rows = [_Row(k, kind) for _ in range(count)]
        centres = [means.load(first + i) for i in range(count)]
        inverses = [inverse_deviation(k, variances.load(first + i), eps) for i in range(count)]
        for index, lanes in k.vectors(0, length, *shrinking(line_lanes(kind))):
            slopes, products = [], []
            gain = scale.load(index, lanes)
            for i, row in enumerate(rows):
                slope = g.load(first + i, index, lanes)
                centred = x.load(first + i, index, lanes) - centres[i]
                row.add(slope * gain, centred)
                slopes.append(slope)
                products.append(slope * (centred * k.convert(inverses[i], kind)))
            for place, terms in ((index, slopes), (index + length, products)):
                sums.store(place, sums.load(place, lanes) + pairwise(terms))
        for i, row in enumerate(rows):
            places = [each.base.at((first + i) * each.stride) for each in (g, x, dx)]
            own = means.load(first + i), inverses[i]
            _gradient_of_row(k, places, length, scale, own, row.totals(), share)

    with k.loop(*k.part_range((rows + (_BLOCK - 1)) // _BLOCK)) as block:
        sums = partial.at(block * length * 2)
        k.clear_bytes(sums, length * (2 * itemsize(kind)))
        begin, end = block * _BLOCK, k.minimum((block + 1) * _BLOCK, rows)
        middle = begin + (end - begin) // _TOGETHER * _TOGETHER
        with k.loop(begin, middle, _TOGETHER) as first:
            several(first, _TOGETHER, sums)
        with k.loop(middle, end) as first:
            several(first, 1, sums)


def _gradient_of_row(
    k: Emitter,
    places: list[ElementPointer],
    length: RegisterValue,
    scale: ElementPointer,
    statistics: tuple[RegisterValue, RegisterValue],
    sums: list[RegisterValue],
    share: RegisterValue,
) -> None:
    """The gradient of a row from its mean, its inverse deviation and both sums."""
    (slopes, values, target), (mean, inverse) = places, statistics
    kind, unit = mean.type, k.constant(1.0, F64)
    one, two = sums
    found = gradient_factors(one, two, unit, inverse, share)
    factor, level, slant = (k.convert(each, kind) for each in found)
    for index, count in over_plane(k, length, kind):
        scaled = slopes.load(index, count) * scale.load(index, count)
        rest = k.fma(values.load(index, count) - mean, slant, level)
        target.store(index, scaled * factor - rest)


class _Row:
    """Two sums along a row: of a, and of a * b."""

    def __init__(self, k: Emitter, kind: ir.Type) -> None:
        self.k = k
        self.lanes = natural_lanes(kind)
        self.vectors = [k.variable(0.0, vector(kind, self.lanes)) for _ in range(2)]
        self.rest = [k.variable(0.0, kind) for _ in range(2)]

    def add(self, a: RegisterValue, b: RegisterValue) -> None:
        """Add the terms of some elements."""
        if a.lanes >= self.lanes:
            plain, product = self.vectors
            for start in range(0, a.lanes, self.lanes):
                picks = range(start, start + self.lanes)
                some, others = (self.k.shuffle(each, None, picks) for each in (a, b))
                plain.value = plain.value + some
                product.value = self.k.fma(some, others, product.value)
            return
        for total, value in zip(self.rest, (a, a * b), strict=True):
            total.value = total.value + self.k.reduce_lanes(value, lambda p, q: p + q)

    def totals(self) -> list[RegisterValue]:
        """Return both sums in float64."""
        joined = [self.k.reduce_lanes(each.value, lambda p, q: p + q) for each in self.vectors]
        return [
            self.k.convert(one, F64) + self.k.convert(rest.value, F64)
            for one, rest in zip(joined, self.rest, strict=True)
        ]


# --- tying them to arrays


def _rows(arrays: list[Array], vectors: list[Array], axes: tuple[int, ...]) -> list[Strides] | None:
    """Return the strides of the rows.

    None unless rows are dense, and samples in their usual order.
    """
    first = arrays[0]
    others = _others(first.ndim, axes)
    for group in (others, axes):
        steps = [abs(first.strides[a]) for a in group if first.shape[a] > 1]
        if steps != sorted(steps, reverse=True):
            return None
    found = collapse_axes(arrays, [others, axes])
    length = size(tuple(first.shape[a] for a in axes))
    if found is None or any(step != 1 and length > 1 for _, step in found):
        return None
    return found if all(each.flags.c_contiguous for each in vectors) else None


def _others(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in range(rank) if a not in axes)


def _order(node: Node) -> Order:
    axes = node.attrs["axis"]
    return (*_others(len(node.outputs[0].shape), axes), *axes)


def _bind(call: Call) -> Runner | None:
    x, scale, shift = call.inputs
    y, mean, variance = call.outputs
    found = _rows([x, y], [scale, shift, mean, variance], call.node.attrs["axis"])
    if found is None:
        return None
    (x_stride, _), (y_stride, _) = found
    return NativeRunner(
        [
            _normalise.call(
                x={"base": x, "stride": x_stride},
                y={"base": y, "stride": y_stride},
                rows=mean.size,
                length=scale.size,
                eps=call.node.attrs["eps"],
                scale=scale,
                shift=shift,
                means=mean,
                variances=variance,
                parts=min(parts_for(x.size), mean.size),
            )
        ]
    )


def _bind_gradient(call: Call) -> Runner | None:
    g, x, scale, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    vectors = [scale, mean, variance, for_scale, for_shift]
    found = _rows([x, g, dx], vectors, call.node.attrs["axis"])
    if found is None:
        return None
    (x_stride, _), (g_stride, _), (dx_stride, _) = found
    rows, length = mean.size, scale.size
    spec = _partial(call.node)
    partial = Scratch(call.workspace).array(spec.shape, spec.dtype)
    main = _differentiate.call(
        g={"base": g, "stride": g_stride},
        x={"base": x, "stride": x_stride},
        dx={"base": dx, "stride": dx_stride},
        rows=rows,
        length=length,
        eps=call.node.attrs["eps"],
        scale=scale,
        means=mean,
        variances=variance,
        partial=partial,
        parts=min(parts_for(x.size), len(partial)),
    )
    totals = column_totals.call(
        partial=partial,
        blocks=len(partial),
        channels=length,
        products=for_scale,
        plain=for_shift,
        parts=parts_for(partial.size),
    )
    return NativeRunner([main, totals])


def _partial(node: Node) -> Spec:
    scale = node.inputs[2]
    length = max(scale.spec.size, 1)
    rows = node.outputs[0].size // length
    return Spec((-(-rows // _BLOCK), 2 * length), compute_dtype(node.outputs[0].dtype))


offer(
    "layer_norm",
    "native",
    any_layout(_bind, _order),
    priority=10,
    # A mean must not be written over a scale that later rows need.
    in_place=lambda node: node.outputs[1] != node.inputs[1].spec,
)
offer(
    "layer_norm_grad",
    "native",
    any_layout(_bind_gradient, _order),
    workspace=lambda node: workspace_bytes(_partial(node)),
    priority=10,
    in_place=lambda node: True,
)
