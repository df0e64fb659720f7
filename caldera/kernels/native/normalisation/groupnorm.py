"""Group normalisation and its gradient: an image (or a group of one) at a time, from the cache.

Channels last, the sums of each channel are taken over the rows (pixels) of an image and then joined
by groups; channels first, a group is a run of planes. What the gradient adds to those of scale and
shift is kept for each image, and added up by a second call.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.graph.node import Node, Spec
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.dtypes import ElementPointer, computed_type, stored
from caldera.kernels.native.codegen.emitter import F64, Emitter, Pointer, Value
from caldera.kernels.native.codegen.program import NativeRunner, native_call
from caldera.kernels.native.codegen.strides import (
    Strides,
    any_layout,
    collapse_axes,
    parts_for,
    stride_of,
)
from caldera.kernels.native.normalisation.statistics import (
    BLOCK_ROWS,
    OfRow,
    Prepare,
    Terms,
    build_column_totals,
    column_sums,
    finite_or_zero,
    in_powers,
    inverse_deviation,
    line,
    moments,
    over_plane,
    over_rows,
    plane_sums,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.dtype import float64
from caldera.tensor.shape import size

_FACTORS = 4
"""Numbers a channel that the loop over an image works with."""


# --- channels last


def _image_sums(
    k: Emitter, totals: Pointer, block: Pointer, pixels: Value, channels: Value, terms: Prepare
) -> None:
    """The two sums of each channel over all pixels of an image, in float64."""
    k.clear_bytes(totals, channels * 16)
    with k.loop(0, pixels, BLOCK_ROWS) as begin:
        end = k.minimum(begin + BLOCK_ROWS, pixels)
        column_sums(k, block, (begin, end), channels, terms)

        def add(index: Value, count: int) -> None:
            more = k.convert(block.load(index, count), F64)
            totals.store(index, totals.load(index, count) + more)

        in_powers(k, 0, channels * 2, line(F64), add)


def _build_last(k: Emitter, name: str, parameters: str) -> None:
    kind = computed_type(name)
    x, x_image, x_row = stored(k, 0, name), k.integer(1), k.integer(2)
    y, y_image, y_row = stored(k, 3, name), k.integer(4), k.integer(5)
    images, channels, pixels, groups = (k.integer(slot) for slot in (6, 7, 8, 9))
    eps, means, variances = k.number(10), k.pointer(11, kind), k.pointer(12, kind)
    scale, scale_stride = stored(k, 13, parameters), k.integer(14)
    shift, shift_stride = stored(k, 15, parameters), k.integer(16)
    all_totals, all_blocks, all_factors = (
        k.pointer(17, F64),
        k.pointer(18, kind),
        k.pointer(19, kind),
    )
    each = channels // groups
    of_pixels = k.constant(1.0, F64) / k.convert(pixels, F64)
    of_channels = k.constant(1.0, F64) / k.convert(each, F64)
    with k.loop(*k.share(images)) as image:
        source, target = x.at(image * x_image), y.at(image * y_image)
        totals = all_totals.at(image * channels * 2)
        factors = all_factors.at(image * channels * _FACTORS)

        def terms(channel: Value, count: int) -> OfRow:
            pivot = finite_or_zero(k, source.load(channel, count))

            def of_row(row: Value) -> Terms:
                difference = source.load(row * x_row + channel, count) - pivot
                return difference, difference, difference

            return of_row

        _image_sums(k, totals, all_blocks.at(image * channels * 2), pixels, channels, terms)
        with k.loop(0, groups) as group:
            begin, end = group * each, (group + 1) * each
            total, spread = k.variable(0.0, F64), k.variable(0.0, F64)
            with k.loop(begin, end) as channel:
                pivot = k.convert(finite_or_zero(k, source.load(channel)), F64)
                one, two = totals.load(channel), totals.load(channel + channels)
                mean, variance = moments(k, one, two, pivot, of_pixels)
                totals.store(channel, mean)
                total.value = total.value + mean
                spread.value = spread.value + variance
            mean = total.value * of_channels
            with k.loop(begin, end) as channel:
                away = totals.load(channel) - mean
                spread.value = k.fma(away, away, spread.value)
            variance = spread.value * of_channels
            inverse = inverse_deviation(k, variance, eps)
            means.store(image * groups + group, k.convert(mean, kind))
            variances.store(image * groups + group, k.convert(variance, kind))
            with k.loop(begin, end) as channel:
                gain = k.convert(scale.load(channel * scale_stride), F64)
                offset = k.convert(shift.load(channel * shift_stride), kind)
                factors.store(channel, k.convert(mean, kind))
                factors.store(channel + channels, k.convert(gain * inverse, kind))
                factors.store(channel + channels * 2, offset)

        def visit(row: Value, channel: Value, count: int) -> None:
            mean, factor, offset = (factors.load(channel + channels * i, count) for i in range(3))
            value = source.load(row * x_row + channel, count)
            target.store(row * y_row + channel, k.fma(value - mean, factor, offset))

        over_rows(k, (0, pixels), channels, kind, visit)


def _build_gradient_last(k: Emitter, name: str, parameters: str) -> None:
    kind = computed_type(name)
    g, g_image, g_row = stored(k, 0, name), k.integer(1), k.integer(2)
    x, x_image, x_row = stored(k, 3, name), k.integer(4), k.integer(5)
    dx, dx_image, dx_row = stored(k, 6, name), k.integer(7), k.integer(8)
    images, channels, pixels, groups = (k.integer(slot) for slot in (9, 10, 11, 12))
    eps, means, variances = k.number(13), k.pointer(14, kind), k.pointer(15, kind)
    scale, scale_stride = stored(k, 16, parameters), k.integer(17)
    all_totals, all_blocks, all_factors = (
        k.pointer(18, F64),
        k.pointer(19, kind),
        k.pointer(20, kind),
    )
    each = channels // groups
    share = k.constant(1.0, F64) / k.convert(each * pixels, F64)
    with k.loop(*k.share(images)) as image:
        slopes, values = g.at(image * g_image), x.at(image * x_image)
        target = dx.at(image * dx_image)
        totals = all_totals.at(image * channels * 2)
        factors = all_factors.at(image * channels * _FACTORS)
        with k.loop(0, channels) as channel:
            factors.store(channel, means.load(image * groups + channel // each))

        def terms(channel: Value, count: int) -> OfRow:
            mean = factors.load(channel, count)

            def of_row(row: Value) -> Terms:
                slope = slopes.load(row * g_row + channel, count)
                return slope, slope, values.load(row * x_row + channel, count) - mean

            return of_row

        _image_sums(k, totals, all_blocks.at(image * channels * 2), pixels, channels, terms)
        with k.loop(0, groups) as group:
            inverse = inverse_deviation(k, variances.load(image * groups + group), eps)
            level, slant = _group_terms(
                k, totals, channels, (group * each, (group + 1) * each), scale, scale_stride,
                inverse, share,
            )  # fmt: skip
            with k.loop(group * each, (group + 1) * each) as channel:
                gain = k.convert(scale.load(channel * scale_stride), F64)
                for index, value in enumerate((gain * inverse, level, slant)):
                    factors.store(channel + channels * (index + 1), k.convert(value, kind))

        def visit(row: Value, channel: Value, count: int) -> None:
            mean, factor, low, tilt = (
                factors.load(channel + channels * i, count) for i in range(_FACTORS)
            )
            slope = slopes.load(row * g_row + channel, count)
            centred = values.load(row * x_row + channel, count) - mean
            target.store(row * dx_row + channel, slope * factor - (centred * tilt + low))

        over_rows(k, (0, pixels), channels, kind, visit)


def _group_terms(
    k: Emitter, totals: Pointer, channels: Value, bounds: tuple[Value, Value],
    scale: ElementPointer, scale_stride: Value, inverse: Value, share: Value,
) -> tuple[Value, Value]:  # fmt: skip
    """a and b of dx = f * g - a - (x - mean) * b; the sums become the gradients' parts."""
    plain, along = k.variable(0.0, F64), k.variable(0.0, F64)
    with k.loop(*bounds) as channel:
        gain = k.convert(scale.load(channel * scale_stride), F64)
        product = totals.load(channel + channels)
        plain.value = k.fma(gain, totals.load(channel), plain.value)
        along.value = k.fma(gain, product, along.value)
        totals.store(channel + channels, product * inverse)
    return plain.value * inverse * share, along.value * inverse * inverse * inverse * share


# --- channels first


def _build_first(k: Emitter, name: str, parameters: str) -> None:
    kind = computed_type(name)
    x, x_image, x_channel = stored(k, 0, name), k.integer(1), k.integer(2)
    y, y_image, y_channel = stored(k, 3, name), k.integer(4), k.integer(5)
    images, channels, pixels, groups = (k.integer(slot) for slot in (6, 7, 8, 9))
    eps, means, variances = k.number(10), k.pointer(11, kind), k.pointer(12, kind)
    scale, scale_stride = stored(k, 13, parameters), k.integer(14)
    shift, shift_stride = stored(k, 15, parameters), k.integer(16)
    each = channels // groups
    share = k.constant(1.0, F64) / k.convert(each * pixels, F64)
    with k.loop(*k.share(images * groups)) as which:
        image, group = which // groups, which % groups
        begin, end = group * each, (group + 1) * each
        pivot = finite_or_zero(k, x.load(image * x_image + begin * x_channel))
        one, two = k.variable(0.0, F64), k.variable(0.0, F64)
        with k.loop(begin, end) as channel:
            plane = x.at(image * x_image + channel * x_channel)

            def terms(index: Value, count: int) -> Terms:
                difference = plane.load(index, count) - pivot
                return difference, difference, difference

            a, b = plane_sums(k, pixels, kind, terms)
            one.value = one.value + a
            two.value = two.value + b
        mean, variance = moments(k, one.value, two.value, k.convert(pivot, F64), share)
        inverse, centre = inverse_deviation(k, variance, eps), k.convert(mean, kind)
        means.store(which, centre)
        variances.store(which, k.convert(variance, kind))
        with k.loop(begin, end) as channel:
            source = x.at(image * x_image + channel * x_channel)
            target = y.at(image * y_image + channel * y_channel)
            gain = k.convert(scale.load(channel * scale_stride), F64)
            factor = k.convert(gain * inverse, kind)
            offset = k.convert(shift.load(channel * shift_stride), kind)

            def body(index: Value, count: int) -> None:
                target.store(index, k.fma(source.load(index, count) - centre, factor, offset))

            over_plane(k, pixels, kind, body)


def _build_gradient_first(k: Emitter, name: str, parameters: str) -> None:
    kind = computed_type(name)
    g, g_image, g_channel = stored(k, 0, name), k.integer(1), k.integer(2)
    x, x_image, x_channel = stored(k, 3, name), k.integer(4), k.integer(5)
    dx, dx_image, dx_channel = stored(k, 6, name), k.integer(7), k.integer(8)
    images, channels, pixels, groups = (k.integer(slot) for slot in (9, 10, 11, 12))
    eps, means, variances = k.number(13), k.pointer(14, kind), k.pointer(15, kind)
    scale, scale_stride, all_totals = stored(k, 16, parameters), k.integer(17), k.pointer(18, F64)
    each = channels // groups
    share = k.constant(1.0, F64) / k.convert(each * pixels, F64)
    with k.loop(*k.share(images * groups)) as which:
        image, group = which // groups, which % groups
        bounds = group * each, (group + 1) * each
        totals = all_totals.at(image * channels * 2)
        mean, inverse = means.load(which), inverse_deviation(k, variances.load(which), eps)
        with k.loop(*bounds) as channel:
            slopes = g.at(image * g_image + channel * g_channel)
            values = x.at(image * x_image + channel * x_channel)

            def terms(index: Value, count: int) -> Terms:
                slope = slopes.load(index, count)
                return slope, slope, values.load(index, count) - mean

            one, two = plane_sums(k, pixels, kind, terms)
            totals.store(channel, one)
            totals.store(channel + channels, two)
        level, slant = (
            k.convert(value, kind)
            for value in _group_terms(
                k, totals, channels, bounds, scale, scale_stride, inverse, share
            )
        )
        with k.loop(*bounds) as channel:
            slopes = g.at(image * g_image + channel * g_channel)
            values = x.at(image * x_image + channel * x_channel)
            target = dx.at(image * dx_image + channel * dx_channel)
            gain = k.convert(scale.load(channel * scale_stride), F64)
            factor = k.convert(gain * inverse, kind)

            def body(index: Value, count: int) -> None:
                rest = (values.load(index, count) - mean) * slant + level
                target.store(index, slopes.load(index, count) * factor - rest)

            over_plane(k, pixels, kind, body)


# --- tying them to arrays


@dataclass(frozen=True)
class _Layout:
    """How images lie: `strides` are those of images and rows (channels last) or of channels."""

    last: bool
    images: int
    channels: int
    pixels: int
    strides: list[Strides]

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.images, self.channels, self.pixels


def _layout(arrays: list[Array]) -> _Layout | None:
    images, channels, *rest = arrays[0].shape
    space = tuple(range(2, 2 + len(rest)))
    found = collapse_axes(arrays, [(0,), (1,), space])
    if found is None:
        return None
    pixels = size(tuple(rest))
    if pixels > 1 and all(pixel == 1 for _, _, pixel in found):
        return _Layout(False, images, channels, pixels, [each[:2] for each in found])
    if all(channel == 1 or channels == 1 for _, channel, _ in found):
        rows: list[Strides] = [(image, pixel) for image, _, pixel in found]
        return _Layout(True, images, channels, pixels, rows)
    return None


def _specs(node: Node) -> tuple[Spec, Spec, Spec]:
    """Sums, sums of a block, and factors: for each image."""
    image = node.outputs[0]
    images, channels = image.shape[:2]
    dtype = compute_dtype(image.dtype)
    return (
        Spec((images, 2 * channels), float64),
        Spec((images, 2 * channels), dtype),
        Spec((images, _FACTORS * channels), dtype),
    )


def _scratch(call: Call) -> list[Array]:
    scratch = Scratch(call.workspace)
    return [scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)]


def _bind(call: Call) -> Runner | None:
    x, scale, shift = call.inputs
    y, mean, variance = call.outputs
    layout = _layout([x, y])
    if layout is None or not all(each.flags.c_contiguous for each in (mean, variance)):
        return None
    x_strides, y_strides = layout.strides
    build = _build_last if layout.last else _build_first
    address = compiled(build, name=x.dtype.name, parameters=scale.dtype.name)
    return NativeRunner([native_call(
        address, x, *x_strides, y, *y_strides, *layout.sizes, call.node.attrs["groups"],
        float(call.node.attrs["eps"]), mean, variance, scale, stride_of(scale), shift,
        stride_of(shift), *_scratch(call),
        parts=min(parts_for(x.size), layout.images if layout.last else mean.size),
    )])  # fmt: skip


def _bind_gradient(call: Call) -> Runner | None:
    g, x, scale, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = _layout([x, g, dx])
    vectors = (mean, variance, for_scale, for_shift)
    if layout is None or not all(each.flags.c_contiguous for each in vectors):
        return None
    x_strides, g_strides, dx_strides = layout.strides
    build = _build_gradient_last if layout.last else _build_gradient_first
    totals, blocks, factors = _scratch(call)
    main = native_call(
        compiled(build, name=x.dtype.name, parameters=scale.dtype.name), g, *g_strides, x,
        *x_strides, dx, *dx_strides, *layout.sizes, call.node.attrs["groups"],
        float(call.node.attrs["eps"]), mean, variance, scale, stride_of(scale), totals, blocks,
        factors, parts=min(parts_for(x.size), layout.images if layout.last else mean.size),
    )  # fmt: skip
    finish = native_call(
        compiled(build_column_totals, name="float64", parameters=scale.dtype.name), totals,
        layout.images, layout.channels, for_scale, for_shift, parts=parts_for(totals.size),
    )  # fmt: skip
    return NativeRunner([main, finish])


def _in_place(node: Node) -> bool:
    # Statistics of (N, groups) must not be written over an image of the same shape.
    return len({spec.shape for spec in node.outputs[:2]}) == 2 or len(node.inputs) == 5


for _op, _its_bind in (("group_norm", _bind), ("group_norm_grad", _bind_gradient)):
    TABLE.add(
        Kernel(
            _op, "cpu", "native", any_layout(_its_bind),
            workspace=lambda node: workspace_bytes(*_specs(node)), priority=10, in_place=_in_place,
        )
    )  # fmt: skip
