"""Batch and group normalisation with their gradients, from sums over the rows of images.

Batch normalisation also with given statistics, with the relu that follows, and with an image that
is added before it; the gradient with relu recomputes the relu's mask. Images are read twice: for
the sums of chunks, which a small kernel turns into factors, and for all elements.

Group normalisation sums each image's channels and combines the sums by groups. An image's
contribution to the gradients of scale and shift is stored with its sums and added over the images
by a separate kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import workspace_bytes
from caldera.kernels.cuda.codegen import (
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    Parameter,
    const_pointer,
    flags,
    header_launch,
    pointer,
    real,
    strided_layout,
    strides_of,
    type_of,
    unless_empty,
)
from caldera.kernels.cuda.normalisation.statistics import (
    HEADER,
    RESIDENT,
    ChannelLayout,
    NormSizes,
    gradient_sums,
    image_sums,
    images,
    in_workspace,
    input_gradient,
    layout_of,
    normalise,
    over_channels,
    over_elements,
    parameter_gradients,
    strided,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_FACTORS = 5
"""Maximum number of factors per channel in the last kernel."""
_FORWARD, _BACKWARD = 3, 4
"""Numbers per channel of an image for groups, in the forward and backward pass."""
_CHANNELS = 1
_WARPS = 4
"""Groups that a block takes."""


def _normalised(
    layout: ChannelLayout,
    arrays: Sequence[Array],
    partial: Array,
    statistics: KernelLaunch,
    factors: Array,
    *,
    apart: int = 0,
    relu: bool = False,
) -> Runner:
    """Return the runner of the sums of the first array, the statistics, and the normalisation."""
    calls = [image_sums(layout, arrays[0], partial), statistics]
    if arrays[0].size:
        calls.append(normalise(layout, arrays, factors, apart, relu=relu))
    return CudaRunner(calls)


def _with_input_gradient(
    calls: list[KernelLaunch],
    layout: ChannelLayout,
    arrays: Sequence[Array],
    factors: Array,
    *,
    apart: int = 0,
    relu: bool = False,
) -> Runner:
    """Return the runner of these launches and the gradient of x: `arrays` are x, g and dx."""
    if arrays[-1].size:
        calls.append(input_gradient(layout, arrays, factors, apart, relu=relu))
    return CudaRunner(calls)


@unless_empty
def bind(call: Call) -> Runner:
    """Bind batch normalisation to three launches."""
    x, scale, shift, *more = call.inputs
    y, mean, variance = call.outputs
    layout = layout_of([x, y, *more], call.node.attrs["axis"], by_image=False)
    partial, factors = in_workspace(call, _specs(call.node))
    kinds = f"{type_of(x)}, {type_of(scale)}, {type_of(factors)}, {layout.integer}"
    given = {
        "x": const_pointer(x),
        "x_step": layout.number(layout.channel[0]),
        **layout.vectors(
            scale=const_pointer(scale),
            shift=const_pointer(shift),
            mean=pointer(mean),
            variance=pointer(variance),
        ),
    }
    statistics = over_channels(
        layout,
        "batch_statistics",
        partial,
        factors,
        call.node.attrs["eps"],
        given,
        f"BatchStatistics<{kinds}> each = {{{strided('x')}, channels, count, eps, "
        f"{strided('scale', 'shift', 'mean', 'variance')}, factors}};",
    )
    images = [x, y, *more]
    return _normalised(layout, images, partial, statistics, factors, relu=has_relu(call.node))


@unless_empty
def _bind_given(call: Call) -> Runner:
    x, scale, shift, mean, variance, *more = call.inputs
    (y,) = call.outputs
    layout = layout_of([x, y, *more], call.node.attrs["axis"], by_image=False).of_elements()
    signature = KernelSignature(
        {
            **images(layout, x, y, more),
            "eps": real("double", call.node.attrs["eps"]),
            **layout.vectors(
                scale=const_pointer(scale),
                shift=const_pointer(shift),
                mean=const_pointer(mean),
                variance=const_pointer(variance),
            ),
        }
    )
    body = (
        f"normalise_given<{flags(has_relu(call.node), bool(more))}, {layout.options}>("
        f"x, y, more, in, eps, {strided('scale', 'shift', 'mean', 'variance')});"
    )
    return CudaRunner([over_elements(layout, "normalise_given_images", signature, body)])


@unless_empty
def bind_gradient(call: Call) -> Runner:
    """Bind the gradient of batch normalisation to three launches."""
    g, x, scale, *shifts, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    relu = bool(shifts)
    # The shift is read only with a relu.
    shift = shifts[0] if relu else scale
    layout = layout_of([x, g, dx], call.node.attrs["axis"], by_image=False)
    partial, factors = in_workspace(call, _specs(call.node))
    eps = call.node.attrs["eps"]
    vectors = layout.vectors(
        scale=const_pointer(scale),
        shift=const_pointer(shift),
        mean=const_pointer(mean),
        variance=const_pointer(variance),
    )
    results = layout.vectors(for_scale=pointer(for_scale), for_shift=pointer(for_shift))
    kinds = f"{flags(relu)}, {type_of(scale)}, {type_of(mean)}, {type_of(factors)}"
    calls = [
        gradient_sums(
            layout,
            "batch_gradient_sums",
            (x, g),
            partial,
            {"eps": real("double", eps), **vectors},
            (mean, "mean, 0, mean_step, 1"),
            f"eps, {strided('scale', 'shift', 'variance')}",
            relu=relu,
            resident=RESIDENT,
        ),
        over_channels(
            layout,
            "batch_gradients",
            partial,
            factors,
            eps,
            {**vectors, **results},
            f"BatchGradients<{kinds}, {layout.integer}> each = {{channels, count, eps, "
            f"{strided('scale', 'shift', 'mean', 'variance', 'for_scale', 'for_shift')}, "
            "factors};",
        ),
    ]
    return _with_input_gradient(calls, layout, [x, g, dx], factors, relu=relu)


# --- groups


@unless_empty
def _bind_group(call: Call) -> Runner:
    x, scale, shift = call.inputs
    y, mean, variance = call.outputs
    layout = layout_of([x, y], _CHANNELS, by_image=True)
    partial, factors = in_workspace(call, _specs(call.node))
    signature = KernelSignature(
        {
            "x": const_pointer(x),
            "x_image": layout.number(layout.image[0]),
            "x_channel": layout.number(layout.channel[0]),
            **_sizes(call.node, layout, partial),
            **layout.vectors(scale=const_pointer(scale), shift=const_pointer(shift)),
            **_matrices(layout, mean=pointer(mean), variance=pointer(variance)),
            "factors": pointer(factors),
        }
    )
    statistics = _over_groups(
        call.node,
        "group_statistics",
        signature,
        "warp_group_statistics(x, x_image, x_channel, partial, images, chunks, channels, groups, "
        f"count, eps, {strided('scale', 'shift')}, mean, mean_image, mean_group, variance, "
        "variance_image, variance_group, factors);",
    )
    apart = _FORWARD * layout.sizes.channels
    return _normalised(layout, [x, y], partial, statistics, factors, apart=apart)


@unless_empty
def _bind_group_gradient(call: Call) -> Runner:
    g, x, scale, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = layout_of([x, g, dx], _CHANNELS, by_image=True)
    channels = layout.sizes.channels
    partial, factors = in_workspace(call, _specs(call.node))
    given = {
        **layout.vectors(scale=const_pointer(scale)),
        **_matrices(layout, mean=const_pointer(mean), variance=const_pointer(variance)),
    }
    calls: list[KernelLaunch] = []
    if mean.size:
        each = layout.number(channels // call.node.attrs["groups"])
        sizes = _sizes(call.node, layout, partial)
        calls += [
            gradient_sums(
                layout,
                "group_gradient_sums",
                (x, g),
                partial,
                {"each": each, **given},
                (mean, "mean, mean_image, mean_group, each"),
                f"0.0, {strided('scale', 'scale')}, strided(variance, ({layout.integer})1)",
            ),
            _over_groups(
                call.node,
                "group_gradients",
                KernelSignature({**sizes, **given, "factors": pointer(factors)}),
                "warp_group_gradients(partial, images, chunks, channels, groups, count, eps, "
                f"{strided('scale')}, mean, mean_image, mean_group, variance, variance_image, "
                "variance_group, factors);",
            ),
        ]
    # The stride between images is `chunks` sums.
    calls.append(
        parameter_gradients(
            partial,
            layout.sizes.images,
            layout.chunks * 2 * channels,
            strided_layout((channels,), (0,), [strides_of(for_scale), strides_of(for_shift)]),
            for_scale,
            for_shift,
            large=layout.large,
        )
    )
    return _with_input_gradient(calls, layout, [x, g, dx], factors, apart=_BACKWARD * channels)


# --- parameters of both launches over groups


def _sizes(node: Node, layout: ChannelLayout, partial: Array) -> dict[str, Parameter]:
    sizes, attrs = layout.sizes, node.attrs
    return {
        "partial": pointer(partial),
        "images": layout.number(sizes.images),
        "chunks": layout.number(layout.chunks),
        "channels": layout.number(sizes.channels),
        "groups": layout.number(attrs["groups"]),
        "count": real("double", sizes.length),
        "eps": real("double", attrs["eps"]),
    }


def _matrices(layout: ChannelLayout, **pointers: Parameter) -> dict[str, Parameter]:
    """Return matrices with a number for each group of each image, with their strides."""
    found: dict[str, Parameter] = {}
    for name, each in pointers.items():
        assert isinstance(each.argument, np.ndarray)
        image, group = map(layout.number, strides_of(each.argument))
        found |= {name: each, f"{name}_image": image, f"{name}_group": group}
    return found


def _over_groups(node: Node, name: str, signature: KernelSignature, body: str) -> KernelLaunch:
    """Return a launch with a warp for each group of each image."""
    groups = node.outputs[0].shape[0] * node.attrs["groups"]
    return header_launch(HEADER, name, -(-groups // _WARPS), 32 * _WARPS, signature, body)


# --- requirements


def has_relu(node: Node) -> bool:
    """Return True if a relu follows."""
    return node.op.name.endswith("relu")


def _specs(node: Node) -> tuple[Spec, Spec]:
    """Return the sums of chunks, and the factors."""
    shape = node.outputs[0].shape
    if "groups" in node.attrs:
        sizes = NormSizes(shape[0], shape[_CHANNELS], size(shape[2:]))
        return sizes.partial(), sizes.factors(
            node, _FORWARD if len(node.inputs) == 3 else _BACKWARD
        )
    channels = shape[node.attrs["axis"]]
    sizes = NormSizes(1, channels, size(shape) // max(channels, 1))
    return sizes.partial(), sizes.factors(node, _FACTORS)


def workspace(node: Node) -> int:
    """Return bytes for sums of chunks, and for factors."""
    return workspace_bytes(*_specs(node))


def _no_workspace(node: Node) -> int:
    return 0


def in_place(node: Node) -> bool:
    """Return True if outputs may replace inputs."""
    # Every element is read before it is written, and vectors are read before the first write.
    return len(node.outputs[0].shape) > 1


def _group_in_place(node: Node) -> bool:
    # Statistics of (N, groups) must not be written over an image of the same shape.
    return len({spec.shape for spec in node.outputs[:2]}) == 2 or len(node.inputs) == 5


for _op, _its_bind, _its_workspace, _its_in_place in (
    ("batch_norm", bind, workspace, in_place),
    ("batch_norm_relu", bind, workspace, in_place),
    ("batch_norm_inference", _bind_given, _no_workspace, in_place),
    ("batch_norm_inference_relu", _bind_given, _no_workspace, in_place),
    ("batch_norm_grad", bind_gradient, workspace, in_place),
    ("batch_norm_relu_grad", bind_gradient, workspace, in_place),
    ("group_norm", _bind_group, workspace, _group_in_place),
    ("group_norm_grad", _bind_group_gradient, workspace, _group_in_place),
):
    TABLE.add(
        Kernel(_op, "cuda", "chunks", _its_bind, workspace=_its_workspace, in_place=_its_in_place)
    )
