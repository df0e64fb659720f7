"""Batch normalisation, its gradient, and the form with given statistics.

Each also with the relu that follows, and an image that is added before it; the gradient with relu
computes again where that let something through. Images are read twice: for the sums of chunks,
which a small kernel turns into factors, and for all elements.
"""

from __future__ import annotations

from ctypes import c_double

from caldera.graph.node import Node, Spec
from caldera.kernels.common.scratch import Scratch, workspace_bytes
from caldera.kernels.cuda.codegen.dtypes import computed_type
from caldera.kernels.cuda.codegen.source import flags, kernel_source, type_of
from caldera.kernels.cuda.normalisation.layout import (
    RESIDENT,
    THREADS,
    TOTALS_THREADS,
    Layout,
    Sizes,
    layout_of,
)
from caldera.kernels.cuda.normalisation.statistics import (
    HEADER,
    image_sums,
    normalise,
    over_channels,
    over_elements,
    slopes,
)
from caldera.kernels.cuda.runtime.launch import CudaRunner
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_FACTORS = 5
"""Numbers a channel that the last kernel works with, at most."""


# --- what becomes of the sums of a channel


def statistics_of(layout: Layout, x: Array, scale: Array, kind: str) -> str:
    """The declaration of `each`, which makes statistics and factors of sums."""
    return (
        f"BatchStatistics<{type_of(x)}, {type_of(scale)}, {kind}, {layout.integer}> each = {{"
        "strided(x, x_step), channels, count, eps, strided(scale, scale_step), "
        "strided(shift, shift_step), strided(mean, mean_step), strided(variance, variance_step), "
        "factors};"
    )


def slopes_of(layout: Layout, scale: Array, mean: Array, factors: Array, *, relu: bool) -> str:
    """The same for the gradient."""
    kinds = f"{flags(relu)}, {type_of(scale)}, {type_of(mean)}, {type_of(factors)}"
    return (
        f"BatchSlopes<{kinds}, {layout.integer}> each = {{channels, count, eps, "
        "strided(scale, scale_step), strided(shift, shift_step), strided(mean, mean_step), "
        "strided(variance, variance_step), strided(for_scale, for_scale_step), "
        "strided(for_shift, for_shift_step), factors};"
    )


# --- tying them to arrays


def bind(call: Call) -> Runner:
    """In three launches."""
    x, scale, shift, *more = call.inputs
    y, mean, variance = call.outputs
    layout = layout_of([x, y, *more], call.node.attrs["axis"], by_image=False)
    if layout.sizes.channels == 0:
        return CudaRunner([])
    partial, factors = scratch_of(call)
    kind, parameters = computed_type(x.dtype.name), f"const {type_of(scale)}"
    source = kernel_source(
        HEADER, "batch_statistics", TOTALS_THREADS,
        ["const double* partial", f"{layout.integer} chunks", f"{layout.integer} channels",
         "double count", "double eps", f"{kind}* factors",
         *layout.vector_parameters(
             x=f"const {type_of(x)}", scale=parameters, shift=parameters, mean=kind, variance=kind
         )],
        f"{statistics_of(layout, x, scale, kind)}\n"
        "    block_of_batch(partial, chunks, channels, each);",
    )  # fmt: skip
    statistics = over_channels(layout, source, "batch_statistics", [
        partial, layout.number(layout.chunks), layout.number(layout.sizes.channels),
        c_double(layout.sizes.length), eps_of(call.node), factors, x,
        layout.number(layout.channel[0]), *layout.vectors(scale, shift, mean, variance),
    ])  # fmt: skip
    calls = [image_sums(layout, x, partial), statistics]
    if x.size:
        calls.append(normalise(layout, [x, y, *more], factors, 0, relu=has_relu(call.node)))
    return CudaRunner(calls)


def _bind_given(call: Call) -> Runner:
    x, scale, shift, mean, variance, *more = call.inputs
    (y,) = call.outputs
    if y.size == 0:
        return CudaRunner([])
    arrays = [x, y, *more]
    layout = layout_of(arrays, call.node.attrs["axis"], by_image=False).of_elements()
    stored, parameters = type_of(x), f"const {type_of(scale)}"
    statistics = f"const {type_of(mean)}"
    source = kernel_source(
        HEADER, "normalise_given_images", THREADS,
        [f"const {stored}* x", f"{stored}* y", f"const {stored}* more",
         f"{layout.images_type(len(arrays))} in", "double eps",
         *layout.vector_parameters(
             scale=parameters, shift=parameters, mean=statistics, variance=statistics
         )],
        f"normalise_given<{flags(has_relu(call.node), bool(more))}, {layout.options}>("
        "x, y, more, in, eps, strided(scale, scale_step), strided(shift, shift_step), "
        "strided(mean, mean_step), strided(variance, variance_step));",
    )  # fmt: skip
    return CudaRunner([over_elements(layout, source, "normalise_given_images", [
        x, y, more[0] if more else x, layout.images(*range(len(arrays))), eps_of(call.node),
        *layout.vectors(scale, shift, mean, variance),
    ])])  # fmt: skip


def bind_gradient(call: Call) -> Runner:
    """The same for the gradient."""
    g, x, scale, *shifts, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    relu = bool(shifts)
    # Without a relu nothing looks at the shift.
    shift = shifts[0] if relu else scale
    layout = layout_of([x, g, dx], call.node.attrs["axis"], by_image=False)
    if layout.sizes.channels == 0:
        return CudaRunner([])
    partial, factors = scratch_of(call)
    parameters, statistics = f"const {type_of(scale)}", f"const {type_of(mean)}"
    integer = layout.integer
    vectors = layout.vector_parameters(
        scale=parameters, shift=parameters, mean=statistics, variance=statistics
    )
    sums = kernel_source(
        HEADER, "batch_slope_sums", THREADS,
        [f"const {type_of(x)}* x", f"const {type_of(g)}* g", f"{layout.images_type(2)} in",
         "double eps", *vectors, "double* partial"],
        f"{layout.shared}\n"
        f"    Means<{type_of(mean)}, {integer}> means = {{mean, 0, mean_step, 1}};\n"
        f"    block_slope_sums<{flags(relu)}, {layout.options}>(x, g, in, means, eps, "
        "strided(scale, scale_step), strided(shift, shift_step), strided(variance, variance_step), "
        "partial, kept);",
        RESIDENT,
    )  # fmt: skip
    totals = kernel_source(
        HEADER, "batch_slopes", TOTALS_THREADS,
        ["const double* partial", f"{integer} chunks", f"{integer} channels", "double count",
         "double eps", f"{type_of(factors)}* factors", *vectors,
         *layout.vector_parameters(for_scale=type_of(for_scale), for_shift=type_of(for_shift))],
        f"{slopes_of(layout, scale, mean, factors, relu=relu)}\n"
        "    block_of_batch(partial, chunks, channels, each);",
    )  # fmt: skip
    given = layout.vectors(scale, shift, mean, variance)
    calls = [
        over_elements(layout, sums, "batch_slope_sums", [
            x, g, layout.images(0, 1), eps_of(call.node), *given, partial,
        ]),
        over_channels(layout, totals, "batch_slopes", [
            partial, layout.number(layout.chunks), layout.number(layout.sizes.channels),
            c_double(layout.sizes.length), eps_of(call.node), factors, *given,
            *layout.vectors(for_scale, for_shift),
        ]),
    ]  # fmt: skip
    if dx.size:
        calls.append(slopes(layout, [x, g, dx], factors, 0, relu=relu))
    return CudaRunner(calls)


# --- what they need


def has_relu(node: Node) -> bool:
    """Whether a relu follows."""
    return node.op.name.endswith("relu")


def eps_of(node: Node) -> c_double:
    """What keeps variances away from 0."""
    return c_double(node.attrs["eps"])


def _specs(node: Node) -> tuple[Spec, Spec]:
    """Sums of chunks, and factors."""
    image = node.outputs[0]
    channels = image.shape[node.attrs["axis"]]
    sizes = Sizes(1, channels, image.size // max(channels, 1))
    return sizes.partial(), sizes.factors(node, _FACTORS)


def scratch_of(call: Call) -> list[Array]:
    """Room for sums of chunks, and for factors."""
    scratch = Scratch(call.workspace)
    return [scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)]


def room_of(node: Node) -> int:
    """Bytes of that."""
    return workspace_bytes(*_specs(node))


def _no_room(node: Node) -> int:
    return 0


def in_place(node: Node) -> bool:
    """Whether outputs may take the place of inputs."""
    # Every element is read before it is written, and vectors before any of them.
    return len(node.outputs[0].shape) > 1


for _op, _its_bind, _its_room in (
    ("batch_norm", bind, room_of),
    ("batch_norm_relu", bind, room_of),
    ("batch_norm_inference", _bind_given, _no_room),
    ("batch_norm_inference_relu", _bind_given, _no_room),
    ("batch_norm_grad", bind_gradient, room_of),
    ("batch_norm_relu_grad", bind_gradient, room_of),
):
    TABLE.add(Kernel(_op, "cuda", "chunks", _its_bind, workspace=_its_room, in_place=in_place))
