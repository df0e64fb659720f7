"""Kernels of batch normalisation.

With channels last, as in matrices, there are three calls. The first computes sums of blocks of
rows, the second the statistics and the factors of each channel, and the third processes all rows.
With channels first, a single call processes one channel at a time, and reads the data for the
second time from the cache.
"""

from __future__ import annotations

from caldera.kernels.native.codegen import (
    F64,
    I64,
    ElementPointer,
    Emitter,
    Integer,
    Pointer,
    Real,
    RegisterValue,
    native_kernel,
)
from caldera.kernels.native.normalisation.layout import Images, Vector
from caldera.kernels.native.normalisation.loops import (
    CENTRE,
    FACTOR,
    FACTORS,
    LEVEL,
    MEAN,
    SHIFT,
    SLANT,
    SLOPE_FACTOR,
    BlockSums,
    apply_to_plane,
    apply_to_rows,
    factors_of,
    gradient_of_plane,
    gradient_of_rows,
    store_factors,
)
from caldera.kernels.native.normalisation.statistics import (
    Mask,
    finite_or_zero,
    gradient_factors,
    gradient_sums,
    inverse_deviation,
    moments,
    pivoted_sums,
    share_of,
)


def _factor_of(
    k: Emitter, scale: RegisterValue, variance: RegisterValue, eps: RegisterValue
) -> RegisterValue:
    """scale / sqrt(variance + eps), in float64."""
    return k.convert(scale, F64) * inverse_deviation(k, variance, eps)


# --- channels last


@native_kernel
def statistics(
    k: Emitter,
    sums: BlockSums,
    totals: Pointer,
    means: Pointer,
    variances: Pointer,
    eps: Real,
    scale: Vector | None,
    shift: Vector | None,
    factors: Pointer | None,
) -> None:
    """Mean and variance; with a scale and a shift, also the factors of y = (x - mean) * factor +
    shift."""
    share = share_of(k, sums.rows)
    begin, end = sums.total(k, totals)
    with k.loop(begin, end) as channel:
        pivot = sums.pivot(k, 0, channel)
        one, two = totals.load(channel), totals.load(channel + sums.channels)
        wide = moments(k, one, two, pivot, share)
        mean, variance = (k.convert(value, means.type) for value in wide)
        if scale is not None and shift is not None and factors is not None:
            # Before the outputs, which may share memory with scale and shift.
            factor = _factor_of(k, scale.load(channel), variance, eps)
            values = {MEAN: mean, FACTOR: factor, SHIFT: shift.load(channel)}
            store_factors(k, factors, sums.channels, channel, values)
        means.store(channel, mean)
        variances.store(channel, variance)


@native_kernel
def given_statistics(
    k: Emitter,
    channels: Integer,
    eps: Real,
    factors: Pointer,
    scale: Vector,
    shift: Vector,
    mean: Vector,
    variance: Vector,
) -> None:
    """Compute the factors from a given mean and variance."""
    with k.loop(0, channels) as channel:
        factor = _factor_of(k, scale.load(channel), variance.load(channel), eps)
        values = {MEAN: mean.load(channel), FACTOR: factor, SHIFT: shift.load(channel)}
        store_factors(k, factors, channels, channel, values)


@native_kernel
def gradient_statistics(
    k: Emitter,
    sums: BlockSums,
    totals: Pointer,
    eps: Real,
    scale: Vector,
    variances: Vector,
    means: Vector,
    for_scale: ElementPointer,
    for_shift: ElementPointer,
    factors: Pointer | None,
) -> None:
    """Compute the gradients of scale and shift, and the factors for the gradient of x."""
    share = share_of(k, sums.rows)
    begin, end = sums.total(k, totals)
    with k.loop(begin, end) as channel:
        one, two = totals.load(channel), totals.load(channel + sums.channels)
        inverse = inverse_deviation(k, variances.load(channel), eps)
        if factors is not None:
            gain = k.convert(scale.load(channel), F64)
            f, a, b = gradient_factors(one, two, gain, inverse, share)
            # The outputs may share memory with the statistics, so these are kept with the factors.
            values = {CENTRE: means.load(channel), SLOPE_FACTOR: f, LEVEL: a, SLANT: b}
            store_factors(k, factors, sums.channels, channel, values)
        for_scale.store(channel, k.convert(two * inverse, for_scale.computed))
        for_shift.store(channel, k.convert(one, for_shift.computed))


@native_kernel
def given_gradients(
    k: Emitter,
    rows: Integer,
    channels: Integer,
    eps: Real,
    scale: Vector,
    mean: Vector,
    variance: Vector,
    for_scale: Vector,
    for_shift: Vector,
    factors: Pointer,
) -> None:
    """Compute the factors for the gradient of x from the gradients of scale and shift."""
    share = share_of(k, rows)
    with k.loop(0, channels) as channel:
        gain, one, two = (
            k.convert(each.load(channel), F64) for each in (scale, for_shift, for_scale)
        )
        inverse = inverse_deviation(k, variance.load(channel), eps)
        f, a, b = gradient_factors(one, two / inverse, gain, inverse, share)
        values = {CENTRE: mean.load(channel), SLOPE_FACTOR: f, LEVEL: a, SLANT: b}
        store_factors(k, factors, channels, channel, values)


# --- channels first


@native_kernel
def normalise_planes(
    k: Emitter,
    x: Images,
    y: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    eps: Real,
    scale: Vector,
    shift: Vector,
    means: Pointer,
    variances: Pointer,
    more: Images | None,
    relu: bool,
) -> None:
    """Statistics and all planes."""
    kind = means.type
    share = share_of(k, images * pixels)
    with k.loop(*k.part_range(channels)) as channel:
        pivot = finite_or_zero(k, x.base.load(channel * x.inner))
        one, two = pivoted_sums(
            k, (0, images), lambda image: x.plane(image, channel), pixels, pivot
        )
        wide = moments(k, one, two, k.convert(pivot, F64), share)
        mean, variance = (k.convert(value, kind) for value in wide)
        factors = [mean, _factor_of(k, scale.load(channel), variance, eps), shift.load(channel)]
        factors = [k.convert(each, kind) for each in factors]
        means.store(channel, mean)
        variances.store(channel, variance)
        with k.loop(0, images) as image:
            added = None if more is None else more.plane(image, channel)
            source, target = x.plane(image, channel), y.plane(image, channel)
            apply_to_plane(k, pixels, source, target, factors, added, relu=relu)


@native_kernel
def differentiate_planes(
    k: Emitter,
    g: Images,
    x: Images,
    dx: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    eps: Real,
    scale: Vector,
    means: Pointer,
    variances: Pointer,
    for_scale: ElementPointer,
    for_shift: ElementPointer,
    given: Pointer | None,
) -> None:
    """The gradients of x, scale and shift."""
    kind = means.type
    share = share_of(k, images * pixels)
    with k.loop(*k.part_range(channels)) as channel:
        mean = means.load(channel)
        mask = _mask_of(given, channels, channel)
        one, two = gradient_sums(
            k,
            (0, images),
            lambda image: (g.plane(image, channel), x.plane(image, channel)),
            pixels,
            mean,
            mask,
        )
        gain = k.convert(scale.load(channel), F64)
        inverse = inverse_deviation(k, variances.load(channel), eps)
        for_scale.store(channel, k.convert(two * inverse, for_scale.computed))
        for_shift.store(channel, k.convert(one, for_shift.computed))
        factors = [*gradient_factors(one, two, gain, inverse, share), mean]
        factors = [k.convert(each, kind) for each in factors]
        with k.loop(0, images) as image:
            planes = [each.plane(image, channel) for each in (g, x, dx)]
            gradient_of_plane(k, pixels, planes, factors, mask)


# --- all elements, by known factors


@native_kernel
def normalise(
    k: Emitter,
    x: Images,
    y: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    factors: Pointer,
    more: Images | None,
    relu: bool,
    last: bool,
) -> None:
    """Normalise all elements.

    If channels are `last`, all rows are contiguous and treated as a single image.
    """
    if last:
        first = k.constant(0, I64)
        added_rows = None if more is None else more.rows(first)
        rows = k.part_range(pixels)
        apply_to_rows(
            k, rows, channels, x.rows(first), y.rows(first), factors, added_rows, relu=relu
        )
        return
    with k.loop(*k.part_range(images * channels)) as which:
        image, channel = which // channels, which % channels
        added = None if more is None else more.plane(image, channel)
        own = factors_of(factors, channels, channel, range(3))
        planes = x.plane(image, channel), y.plane(image, channel)
        apply_to_plane(k, pixels, *planes, own, added, relu=relu)


@native_kernel
def differentiate(
    k: Emitter,
    g: Images,
    x: Images,
    dx: Images,
    images: Integer,
    channels: Integer,
    pixels: Integer,
    factors: Pointer,
    given: Pointer | None,
    last: bool,
) -> None:
    """The gradient of all elements, which lie as in `normalise`."""
    if last:
        slopes, values, target = (each.rows(k.constant(0, I64)) for each in (g, x, dx))
        gradient_of_rows(k, k.part_range(pixels), channels, slopes, values, target, factors, given)
        return
    with k.loop(*k.part_range(images * channels)) as which:
        image, channel = which // channels, which % channels
        planes = [each.plane(image, channel) for each in (g, x, dx)]
        own = factors_of(factors, channels, channel, range(FACTORS))
        gradient_of_plane(k, pixels, planes, own, _mask_of(given, channels, channel))


def _mask_of(given: Pointer | None, channels: RegisterValue, channel: RegisterValue) -> Mask | None:
    """Return the factor and the shift of the forward pass, if a relu followed it."""
    if given is None:
        return None
    factor, shift = factors_of(given, channels, channel, range(FACTOR, SHIFT + 1))
    return factor, shift
