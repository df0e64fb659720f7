"""Batch normalisation of images that lie channels first.

One call, a channel at a time, whose second reading of the data comes from the cache.
"""

from __future__ import annotations

from caldera.kernels.native.codegen.dtypes import computed_type, stored
from caldera.kernels.native.codegen.emitter import F64, Emitter, Value
from caldera.kernels.native.normalisation.batchnorm_nhwc import (
    factor_of,
    finished,
    gradient_factors,
    masked,
)
from caldera.kernels.native.normalisation.statistics import (
    Terms,
    finite_or_zero,
    inverse_deviation,
    moments,
    over_plane,
    plane_sums,
)


def build_planes(k: Emitter, name: str, parameters: str, added: bool, relu: bool) -> None:
    """Mean, variance, and y = (x - mean) * factor + shift, and what follows."""
    kind = computed_type(name)
    x, x_image, x_channel = stored(k, 0, name), k.integer(1), k.integer(2)
    y, y_image, y_channel = stored(k, 3, name), k.integer(4), k.integer(5)
    images, channels, pixels, eps = k.integer(6), k.integer(7), k.integer(8), k.number(9)
    scale, scale_stride = stored(k, 10, parameters), k.integer(11)
    shift, shift_stride = stored(k, 12, parameters), k.integer(13)
    means, variances = k.pointer(14, kind), k.pointer(15, kind)
    share = k.constant(1.0, F64) / k.convert(images * pixels, F64)
    with k.loop(*k.share(channels)) as channel:
        pivot = finite_or_zero(k, x.load(channel * x_channel))
        one, two = k.variable(0.0, F64), k.variable(0.0, F64)
        with k.loop(0, images) as image:
            plane = x.at(image * x_image + channel * x_channel)

            def terms(index: Value, count: int) -> Terms:
                difference = plane.load(index, count) - pivot
                return difference, difference, difference

            a, b = plane_sums(k, pixels, kind, terms)
            one.value = one.value + a
            two.value = two.value + b
        wide = moments(k, one.value, two.value, k.convert(pivot, F64), share)
        mean, variance = (k.convert(value, kind) for value in wide)
        factor = k.convert(factor_of(k, scale.load(channel * scale_stride), variance, eps), kind)
        offset = k.convert(shift.load(channel * shift_stride), kind)
        means.store(channel, mean)
        variances.store(channel, variance)
        with k.loop(0, images) as image:
            source = x.at(image * x_image + channel * x_channel)
            target = y.at(image * y_image + channel * y_channel)
            more = None
            if added:
                more = stored(k, 16, name).at(image * k.integer(17) + channel * k.integer(18))

            def body(index: Value, count: int) -> None:
                value = k.fma(source.load(index, count) - mean, factor, offset)
                target.store(index, finished(k, value, more, index, relu))

            over_plane(k, pixels, kind, body)


def build_given_planes(k: Emitter, name: str, added: bool, relu: bool) -> None:
    """The same with factors that are known already."""
    kind = computed_type(name)
    x, x_image, x_channel = stored(k, 0, name), k.integer(1), k.integer(2)
    y, y_image, y_channel = stored(k, 3, name), k.integer(4), k.integer(5)
    images, channels, pixels = k.integer(6), k.integer(7), k.integer(8)
    factors = k.pointer(9, kind)
    with k.loop(*k.share(images * channels)) as which:
        image, channel = which // channels, which % channels
        mean, factor, shift = (factors.load(channel + channels * i) for i in range(3))
        source = x.at(image * x_image + channel * x_channel)
        target = y.at(image * y_image + channel * y_channel)
        more = None
        if added:
            more = stored(k, 10, name).at(image * k.integer(11) + channel * k.integer(12))

        def body(index: Value, count: int) -> None:
            value = k.fma(source.load(index, count) - mean, factor, shift)
            target.store(index, finished(k, value, more, index, relu))

        over_plane(k, pixels, kind, body)


def build_gradient_planes(k: Emitter, name: str, parameters: str, relu: bool) -> None:
    """The gradients of x, scale and shift."""
    kind = computed_type(name)
    g, g_image, g_channel = stored(k, 0, name), k.integer(1), k.integer(2)
    x, x_image, x_channel = stored(k, 3, name), k.integer(4), k.integer(5)
    dx, dx_image, dx_channel = stored(k, 6, name), k.integer(7), k.integer(8)
    images, channels, pixels, eps = k.integer(9), k.integer(10), k.integer(11), k.number(12)
    scale, scale_stride = stored(k, 13, parameters), k.integer(14)
    means, variances = k.pointer(15, kind), k.pointer(16, kind)
    for_scale, for_shift = stored(k, 17, parameters), stored(k, 18, parameters)
    given = k.pointer(19, kind) if relu else None
    share = k.constant(1.0, F64) / k.convert(images * pixels, F64)
    with k.loop(*k.share(channels)) as channel:
        mean = means.load(channel)
        mask = None
        if given is not None:
            mask = [given.load(channel + channels * i) for i in (1, 2)]
        one, two = k.variable(0.0, F64), k.variable(0.0, F64)
        with k.loop(0, images) as image:
            slopes = g.at(image * g_image + channel * g_channel)
            values = x.at(image * x_image + channel * x_channel)

            def terms(index: Value, count: int) -> Terms:
                centred = values.load(index, count) - mean
                slope = slopes.load(index, count)
                if mask is not None:
                    slope = masked(k, slope, centred, *mask)
                return slope, slope, centred

            a, b = plane_sums(k, pixels, kind, terms)
            one.value = one.value + a
            two.value = two.value + b
        gain = k.convert(scale.load(channel * scale_stride), F64)
        inverse = inverse_deviation(k, variances.load(channel), eps)
        total, along = one.value, two.value
        for_scale.store(channel, k.convert(along * inverse, computed_type(parameters)))
        for_shift.store(channel, k.convert(total, computed_type(parameters)))
        wide = gradient_factors(total, along, gain, inverse, share)
        f, a, b = (k.convert(value, kind) for value in wide)
        with k.loop(0, images) as image:
            slopes = g.at(image * g_image + channel * g_channel)
            values = x.at(image * x_image + channel * x_channel)
            target = dx.at(image * dx_image + channel * dx_channel)

            def body(index: Value, count: int) -> None:
                centred = values.load(index, count) - mean
                slope = slopes.load(index, count)
                if mask is not None:
                    slope = masked(k, slope, centred, *mask)
                target.store(index, k.fma(slope, f, -k.fma(centred, b, a)))

            over_plane(k, pixels, kind, body)
