"""Group normalisation and local response normalisation, with their gradients.

Group normalisation sums each image's channels and combines the sums by groups. An image's
contribution to the gradients of scale and shift is stored with its sums and added over the images
by a separate kernel. Local response normalisation: include/normalisation/local_response.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import compute_dtype, workspace_bytes
from caldera.kernels.cuda.codegen.kernel import (
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    Parameter,
    computed_type,
    const_pointer,
    flags,
    header_launch,
    index,
    index_type,
    indices,
    pointer,
    real,
    unless_empty,
)
from caldera.kernels.cuda.codegen.strides import StridedLayout, is_large, strided_layout, strides_of
from caldera.kernels.cuda.normalisation.layout import ChannelLayout, NormSizes, layout_of, strided
from caldera.kernels.cuda.normalisation.statistics import (
    HEADER,
    gradient_sums,
    image_sums,
    in_workspace,
    input_gradient,
    normalise,
    parameter_gradients,
    workspace_specs,
)
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner

_FORWARD, _BACKWARD = 3, 4
"""Numbers a channel of an image that the last kernel works with."""
_CHANNELS = 1
_WARPS = 4
"""Groups that a block takes."""


@unless_empty
def _bind(call: Call) -> Runner:
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
    calls = [image_sums(layout, x, partial), statistics]
    if x.size:
        calls.append(normalise(layout, [x, y], factors, _FORWARD * layout.sizes.channels))
    return CudaRunner(calls)


@unless_empty
def _bind_gradient(call: Call) -> Runner:
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
    # Images lie `chunks` sums apart.
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
    if dx.size:
        calls.append(input_gradient(layout, [x, g, dx], factors, _BACKWARD * channels))
    return CudaRunner(calls)


# --- parameters that both share


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
    """Matrices with a number for each group of each image, with their strides."""
    found: dict[str, Parameter] = {}
    for name, each in pointers.items():
        assert isinstance(each.argument, np.ndarray)
        image, group = map(layout.number, strides_of(each.argument))
        found |= {name: each, f"{name}_image": image, f"{name}_group": group}
    return found


def _over_groups(node: Node, name: str, signature: KernelSignature, body: str) -> KernelLaunch:
    """A launch with a warp for each group of each image."""
    groups = node.outputs[0].shape[0] * node.attrs["groups"]
    return header_launch(HEADER, name, -(-groups // _WARPS), 32 * _WARPS, signature, body)


# --- what they need


def _specs(node: Node) -> tuple[Spec, Spec]:
    """Sums of chunks, and factors."""
    images, channels, *rest = node.outputs[0].shape
    sizes = NormSizes(images, channels, size(tuple(rest)))
    return workspace_specs(sizes, node, _FORWARD if len(node.inputs) == 3 else _BACKWARD)


def _in_place(node: Node) -> bool:
    # Statistics of (N, groups) must not be written over an image of the same shape.
    return len({spec.shape for spec in node.outputs[:2]}) == 2 or len(node.inputs) == 5


for _op, _its_bind in (("group_norm", _bind), ("group_norm_grad", _bind_gradient)):
    TABLE.add(
        Kernel(
            _op,
            "cuda",
            "chunks",
            _its_bind,
            workspace=lambda node: workspace_bytes(*_specs(node)),
            in_place=_in_place,
        )
    )


_HEADER = "local_response.cuh"
_THREADS = 256
_ROWS_OF_TILE, _CHANNELS_OF_TILE = (8, 32), (64, 16)
"""Of a block's tile where channels lie side by side, and where rows do."""
_SHARED = 48 << 10
"""Bytes of shared memory that every kernel may have."""


@dataclass(frozen=True)
class _Work:
    """The arrays (x first) as rows by channels."""

    arrays: Sequence[Array]
    rows: StridedLayout
    steps: tuple[int, ...]
    last: bool
    large: bool

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> _Work:
        x = arrays[0]
        strides = [strides_of(array) for array in arrays]
        rows = strided_layout(x.shape, [a for a in range(x.ndim) if a != 1], strides)
        steps = tuple(own[1] for own in strides)
        last = abs(steps[0]) <= abs(rows.inner[0]) or size(rows.sizes) == 1
        return cls(arrays, rows, steps, last, is_large(*arrays))

    @property
    def flag(self) -> str:
        """The first template argument of the functions."""
        return flags(self.last)

    def signature(self, names: Sequence[str], node: Node, tile: tuple[int, int]) -> KernelSignature:
        """For arrays of these names, the last of which is written, and tiles of so many rows and
        channels."""
        attrs, channels = node.attrs, self.arrays[0].shape[1]
        before, after = _window(node)
        kind = computed_type(self.arrays[0].dtype.name)
        sizes = [size(self.rows.sizes), channels, before, after, *tile]
        pointers = {
            name: pointer(each) if name == names[-1] else const_pointer(each)
            for name, each in zip(names, self.arrays, strict=True)
        }
        return KernelSignature(
            {
                **pointers,
                "rows": self.rows.parameter(self.large),
                **{f"step{i}": index(step, self.large) for i, step in enumerate(self.steps)},
                "in": indices(f"Response<{index_type(self.large)}>", sizes, self.large),
                "alpha": real(kind, attrs["alpha"] / attrs["window"]),
                "beta": real(kind, attrs["beta"]),
                "k": real(kind, attrs["k"]),
            }
        )


def _window(node: Node) -> tuple[int, int]:
    """The channels below and above that count; where there is none, nothing is missed."""
    window, channels = node.attrs["window"], node.outputs[0].shape[1]
    return min(window // 2, channels), min((window - 1) // 2, channels)


@unless_empty
def _local_response_bind(call: Call) -> Runner:
    (x,), (y,) = call.inputs, call.outputs
    work = _Work.of([x, y])
    signature = work.signature(["x", "y"], call.node, (1, 1))
    return CudaRunner(
        [
            header_launch(
                _HEADER,
                "local_response",
                -(-y.size // _THREADS),
                _THREADS,
                signature,
                f"respond<{work.flag}>({signature.names});",
            )
        ]
    )


@unless_empty
def _local_response_bind_gradient(call: Call) -> Runner:
    (g, x), (dx,) = call.inputs, call.outputs
    work = _Work.of([x, g, dx])
    each = 2 * compute_dtype(x.dtype).itemsize
    way = 0 if work.last else 1
    rows, channels = _ROWS_OF_TILE[way], _CHANNELS_OF_TILE[way]
    width = channels + sum(_window(call.node))
    while rows > 1 and rows * width * each > _SHARED:
        rows //= 2
    tiles = -(-size(work.rows.sizes) // rows) * -(-x.shape[1] // channels)
    signature = work.signature(["x", "g", "dx"], call.node, (rows, channels))
    return CudaRunner(
        [
            header_launch(
                _HEADER,
                "local_response_gradients",
                tiles,
                _THREADS,
                signature,
                f"block_response_gradients<{work.flag}>({signature.names});",
                shared=rows * width * each,
            )
        ]
    )


TABLE.add(Kernel("local_response_norm", "cuda", "rows", _local_response_bind))
TABLE.add(Kernel("local_response_norm_grad", "cuda", "tiles", _local_response_bind_gradient))
