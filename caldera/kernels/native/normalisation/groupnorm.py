"""Group normalisation and its gradient, one image (or group of an image) at a time.

The data of an image is read again from the cache.

With channels last, the sums of each channel are computed over the rows (pixels) of an image and
then added by groups. With channels first, a group is a run of planes. The contributions of each
image to the gradients of scale and shift are stored, and a second call adds them.
"""

from __future__ import annotations

from typing import Any

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.dtype import float64
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen import (
    F64,
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    Real,
    RegisterValue,
    any_layout,
    native_kernel,
    offer,
    parts_for,
)
from caldera.kernels.native.normalisation.layout import (
    Images,
    RowLayout,
    Vector,
    image_layout,
    vector,
)
from caldera.kernels.native.normalisation.loops import (
    CENTRE,
    FACTOR,
    FACTORS,
    LEVEL,
    MEAN,
    SHIFT,
    SLANT,
    SLOPE_FACTOR,
    apply_to_plane,
    apply_to_rows,
    gradient_of_plane,
    gradient_of_rows,
    store_factors,
)
from caldera.kernels.native.normalisation.statistics import (
    column_totals,
    finite_or_zero,
    gradient_rows,
    gradient_sums,
    image_sums,
    inverse_deviation,
    moments,
    pivoted_rows,
    pivoted_sums,
    share_of,
)
from caldera.kernels.table import Array, Call, Runner

# --- channels last


@native_kernel
def _normalise_rows(
    k: Emitter,
    x: Images,
    y: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    groups: Integer,
    eps: Real,
    scale: Vector,
    shift: Vector,
    means: Pointer,
    variances: Pointer,
    totals: Pointer,
    blocks: Pointer,
    factors: Pointer,
) -> None:
    kind = means.type
    each = channels // groups
    of_pixels, of_channels = share_of(k, pixels), share_of(k, each)
    with k.loop(*k.part_range(images)) as image:
        source, target = x.rows(image), y.rows(image)
        sums = totals.at(image * channels * 2)
        own = factors.at(image * channels * FACTORS)
        terms = pivoted_rows(
            source, lambda channel, count: finite_or_zero(k, source.base.load(channel, count))
        )
        image_sums(k, sums, blocks.at(image * channels * 2), pixels, channels, terms)
        with k.loop(0, groups) as group:
            begin, end = group * each, (group + 1) * each
            total, spread = k.variable(0.0, F64), k.variable(0.0, F64)
            with k.loop(begin, end) as channel:
                pivot = k.convert(finite_or_zero(k, source.base.load(channel)), F64)
                one, two = sums.load(channel), sums.load(channel + channels)
                mean, variance = moments(k, one, two, pivot, of_pixels)
                sums.store(channel, mean)
                total.value = total.value + mean
                spread.value = spread.value + variance
            mean = total.value * of_channels
            with k.loop(begin, end) as channel:
                away = sums.load(channel) - mean
                spread.value = k.fma(away, away, spread.value)
            variance = spread.value * of_channels
            inverse = inverse_deviation(k, variance, eps)
            means.store(image * groups + group, k.convert(mean, kind))
            variances.store(image * groups + group, k.convert(variance, kind))
            with k.loop(begin, end) as channel:
                gain = k.convert(scale.load(channel), F64)
                values = {MEAN: mean, FACTOR: gain * inverse, SHIFT: shift.load(channel)}
                store_factors(k, own, channels, channel, values)
        apply_to_rows(k, (0, pixels), channels, source, target, own)


@native_kernel
def _differentiate_rows(
    k: Emitter,
    g: Images,
    x: Images,
    dx: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    groups: Integer,
    eps: Real,
    scale: Vector,
    means: Pointer,
    variances: Pointer,
    totals: Pointer,
    blocks: Pointer,
    factors: Pointer,
) -> None:
    each = channels // groups
    share = share_of(k, each * pixels)
    with k.loop(*k.part_range(images)) as image:
        slopes, values, target = g.rows(image), x.rows(image), dx.rows(image)
        sums = totals.at(image * channels * 2)
        own = factors.at(image * channels * FACTORS)
        centres = own.at(channels * CENTRE)
        with k.loop(0, channels) as channel:
            centres.store(channel, means.load(image * groups + channel // each))
        terms = gradient_rows(k, slopes, values, centres.load)
        image_sums(k, sums, blocks.at(image * channels * 2), pixels, channels, terms)
        with k.loop(0, groups) as group:
            inverse = inverse_deviation(k, variances.load(image * groups + group), eps)
            bounds = group * each, (group + 1) * each
            level, slant = _group_terms(k, sums, channels, bounds, scale, inverse, share)
            with k.loop(*bounds) as channel:
                gain = k.convert(scale.load(channel), F64)
                found = {SLOPE_FACTOR: gain * inverse, LEVEL: level, SLANT: slant}
                store_factors(k, own, channels, channel, found)
        gradient_of_rows(k, (0, pixels), channels, slopes, values, target, own)


def _group_terms(
    k: Emitter,
    totals: Pointer,
    channels: RegisterValue,
    bounds: tuple[RegisterValue, RegisterValue],
    scale: Vector,
    inverse: RegisterValue,
    share: RegisterValue,
) -> tuple[RegisterValue, RegisterValue]:
    """a and b of dx = f * g - a - (x - mean) * b; the sums become the gradients' parts."""
    plain, along = k.variable(0.0, F64), k.variable(0.0, F64)
    with k.loop(*bounds) as channel:
        gain = k.convert(scale.load(channel), F64)
        product = totals.load(channel + channels)
        plain.value = k.fma(gain, totals.load(channel), plain.value)
        along.value = k.fma(gain, product, along.value)
        totals.store(channel + channels, product * inverse)
    return plain.value * inverse * share, along.value * inverse * inverse * inverse * share


# --- channels first


@native_kernel
def _normalise_planes(
    k: Emitter,
    x: Images,
    y: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    groups: Integer,
    eps: Real,
    scale: Vector,
    shift: Vector,
    means: Pointer,
    variances: Pointer,
) -> None:
    kind = means.type
    each = channels // groups
    share = share_of(k, each * pixels)
    with k.loop(*k.part_range(images * groups)) as which:
        image, group = which // groups, which % groups
        bounds = group * each, (group + 1) * each
        pivot = finite_or_zero(k, x.plane(image, bounds[0]).load())
        one, two = pivoted_sums(k, bounds, lambda channel: x.plane(image, channel), pixels, pivot)
        mean, variance = moments(k, one, two, k.convert(pivot, F64), share)
        inverse, centre = inverse_deviation(k, variance, eps), k.convert(mean, kind)
        means.store(which, centre)
        variances.store(which, k.convert(variance, kind))
        with k.loop(*bounds) as channel:
            gain = k.convert(scale.load(channel), F64)
            factors = [centre, gain * inverse, shift.load(channel)]
            apply_to_plane(k, pixels, x.plane(image, channel), y.plane(image, channel), factors)


@native_kernel
def _differentiate_planes(
    k: Emitter,
    g: Images,
    x: Images,
    dx: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    groups: Integer,
    eps: Real,
    scale: Vector,
    means: Pointer,
    variances: Pointer,
    totals: Pointer,
) -> None:
    each = channels // groups
    share = share_of(k, each * pixels)
    with k.loop(*k.part_range(images * groups)) as which:
        image, group = which // groups, which % groups
        bounds = group * each, (group + 1) * each
        sums = totals.at(image * channels * 2)
        mean, inverse = means.load(which), inverse_deviation(k, variances.load(which), eps)
        with k.loop(*bounds) as channel:
            pair = g.plane(image, channel), x.plane(image, channel)
            one, two = gradient_sums(k, (0, 1), lambda _: pair, pixels, mean)
            sums.store(channel, one)
            sums.store(channel + channels, two)
        level, slant = _group_terms(k, sums, channels, bounds, scale, inverse, share)
        with k.loop(*bounds) as channel:
            gain = k.convert(scale.load(channel), F64)
            planes = [operand.plane(image, channel) for operand in (g, x, dx)]
            gradient_of_plane(k, pixels, planes, [gain * inverse, level, slant, mean])


# --- tying them to arrays


def _specs(node: Node) -> tuple[Spec, Spec, Spec]:
    """Return sums, sums of a block, and factors: for each image."""
    image = node.outputs[0]
    images, channels = image.shape[:2]
    dtype = compute_dtype(image.dtype)
    return (
        Spec((images, 2 * channels), float64),
        Spec((images, 2 * channels), dtype),
        Spec((images, FACTORS * channels), dtype),
    )


def _scratch(call: Call) -> list[Array]:
    scratch = Scratch(call.workspace)
    return [scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)]


def _given(
    call: Call, layout: RowLayout, scale: Array, statistics: tuple[Array, Array]
) -> dict[str, Any]:
    """Return the arguments common to all kernels."""
    mean, variance = statistics
    units = layout.images if layout.last else mean.size
    return {
        "images": layout.images,
        "channels": layout.channels,
        "pixels": layout.pixels,
        "groups": call.node.attrs["groups"],
        "eps": call.node.attrs["eps"],
        "scale": vector(scale),
        "means": mean,
        "variances": variance,
        "parts": min(parts_for(layout.size), units),
    }


def _bind(call: Call) -> Runner | None:
    x, scale, shift = call.inputs
    y, mean, variance = call.outputs
    layout = image_layout([x, y])
    if layout is None or not all(each.flags.c_contiguous for each in (mean, variance)):
        return None
    given = {
        **_given(call, layout, scale, (mean, variance)),
        "shift": vector(shift),
        "x": layout.images_of(0, x),
        "y": layout.images_of(1, y),
    }
    if not layout.last:
        return NativeRunner([_normalise_planes.call(**given)])
    totals, blocks, factors = _scratch(call)
    return NativeRunner(
        [_normalise_rows.call(**given, totals=totals, blocks=blocks, factors=factors)]
    )


def _bind_gradient(call: Call) -> Runner | None:
    g, x, scale, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = image_layout([x, g, dx])
    vectors = (mean, variance, for_scale, for_shift)
    if layout is None or not all(each.flags.c_contiguous for each in vectors):
        return None
    totals, blocks, factors = _scratch(call)
    given = {
        **_given(call, layout, scale, (mean, variance)),
        "totals": totals,
        "g": layout.images_of(1, g),
        "x": layout.images_of(0, x),
        "dx": layout.images_of(2, dx),
    }
    if layout.last:
        main = _differentiate_rows.call(**given, blocks=blocks, factors=factors)
    else:
        main = _differentiate_planes.call(**given)
    finish = column_totals.call(
        partial=totals,
        blocks=layout.images,
        channels=layout.channels,
        products=for_scale,
        plain=for_shift,
        parts=parts_for(totals.size),
    )
    return NativeRunner([main, finish])


for _op, _its_bind in (("group_norm", _bind), ("group_norm_grad", _bind_gradient)):
    offer(
        _op,
        "native",
        any_layout(_its_bind),
        workspace=lambda node: workspace_bytes(*_specs(node)),
        priority=10,
        # Statistics of (N, groups) must not be written over an image of the same shape.
        in_place=lambda node: (
            len({spec.shape for spec in node.outputs[:2]}) == 2 or len(node.inputs) == 5
        ),
    )
