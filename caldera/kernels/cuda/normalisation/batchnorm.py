"""Batch normalisation, its gradient, and the form with given statistics.

Each also with the relu that follows, and an image that is added before it; the gradient with relu
computes again where that let something through. Images are read twice: for the sums of chunks,
which a small kernel turns into factors, and for all elements.
"""

from __future__ import annotations

from caldera.core.graph.node import Node, Spec
from caldera.kernels.common.binding import workspace_bytes
from caldera.kernels.cuda.codegen.kernel import (
    CudaRunner,
    KernelSignature,
    const_pointer,
    flags,
    pointer,
    real,
    type_of,
    unless_empty,
)
from caldera.kernels.cuda.normalisation.layout import RESIDENT, NormSizes, layout_of, strided
from caldera.kernels.cuda.normalisation.statistics import (
    gradient_sums,
    image_sums,
    images,
    in_workspace,
    input_gradient,
    normalise,
    over_channels,
    over_elements,
    workspace_specs,
)
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_FACTORS = 5
"""Numbers a channel that the last kernel works with, at most."""


@unless_empty
def bind(call: Call) -> Runner:
    """In three launches."""
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
    calls = [image_sums(layout, x, partial), statistics]
    if x.size:
        calls.append(normalise(layout, [x, y, *more], factors, 0, relu=has_relu(call.node)))
    return CudaRunner(calls)


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
    """The same for the gradient."""
    g, x, scale, *shifts, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    relu = bool(shifts)
    # Without a relu nothing looks at the shift.
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
    if dx.size:
        calls.append(input_gradient(layout, [x, g, dx], factors, 0, relu=relu))
    return CudaRunner(calls)


# --- what they need


def has_relu(node: Node) -> bool:
    """Whether a relu follows."""
    return node.op.name.endswith("relu")


def _specs(node: Node) -> tuple[Spec, Spec]:
    """Sums of chunks, and factors."""
    image = node.outputs[0]
    channels = image.shape[node.attrs["axis"]]
    sizes = NormSizes(1, channels, image.size // max(channels, 1))
    return workspace_specs(sizes, node, _FACTORS)


def workspace(node: Node) -> int:
    """Bytes for sums of chunks, and for factors."""
    return workspace_bytes(*_specs(node))


def _no_workspace(node: Node) -> int:
    return 0


def in_place(node: Node) -> bool:
    """Whether outputs may take the place of inputs."""
    # Every element is read before it is written, and vectors before any of them.
    return len(node.outputs[0].shape) > 1


for _op, _its_bind, _its_workspace in (
    ("batch_norm", bind, workspace),
    ("batch_norm_relu", bind, workspace),
    ("batch_norm_inference", _bind_given, _no_workspace),
    ("batch_norm_inference_relu", _bind_given, _no_workspace),
    ("batch_norm_grad", bind_gradient, workspace),
    ("batch_norm_relu_grad", bind_gradient, workspace),
):
    TABLE.add(Kernel(_op, "cuda", "chunks", _its_bind, workspace=_its_workspace, in_place=in_place))
