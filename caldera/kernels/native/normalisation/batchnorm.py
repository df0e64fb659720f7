"""Batch normalisation, its gradient, and the form with given statistics.

Each also with the relu that follows, and an image that is added before it; the gradient with relu
computes again where that let something through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caldera.graph.node import Node, Spec
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.program import NativeCall, NativeRunner, native_call
from caldera.kernels.native.codegen.strides import (
    Strides,
    any_layout,
    collapse_axes,
    parts_for,
    stride_of,
)
from caldera.kernels.native.normalisation.batchnorm_nchw import (
    build_given_planes,
    build_gradient_planes,
    build_planes,
)
from caldera.kernels.native.normalisation.batchnorm_nhwc import (
    FACTORS,
    build_given_statistics,
    build_gradient_rows,
    build_gradient_statistics,
    build_gradient_sums,
    build_rows,
    build_statistics,
    build_sums,
)
from caldera.kernels.native.normalisation.statistics import BLOCK_ROWS
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.dtype import float64
from caldera.tensor.shape import size

# --- how images lie


@dataclass(frozen=True)
class _Layout:
    """Channels last (one row a pixel: `outer` rows) or first (one plane a channel of an image).

    `strides` are those of rows, or of images and channels.
    """

    last: bool
    outer: int
    channels: int
    inner: int
    strides: list[Strides]

    @property
    def size(self) -> int:
        return self.outer * self.channels * self.inner

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.outer, self.channels) if self.last else (self.outer, self.channels, self.inner)

    def slots(self, index: int, array: Array) -> tuple[Array | int, ...]:
        """An array with its strides."""
        return (array, *self.strides[index])


def _layout(arrays: list[Array], axis: int) -> _Layout | None:
    """The layout that all of these arrays share; None if it is not one of the two."""
    shape, strides = arrays[0].shape, arrays[0].strides
    others = tuple(a for a in range(len(shape)) if a != axis)
    rows = collapse_axes(arrays, [others, (axis,)])
    if rows is not None and all(channel == 1 or shape[axis] == 1 for _, channel in rows):
        count = size(tuple(shape[a] for a in others))
        return _Layout(True, count, shape[axis], 1, [each[:1] for each in rows])
    outer = tuple(a for a in others if abs(strides[a]) > abs(strides[axis]))
    inner = tuple(a for a in others if a not in outer)
    planes = collapse_axes(arrays, [outer, (axis,), inner])
    pixels = size(tuple(shape[a] for a in inner))
    if planes is None or any(pixel != 1 and pixels > 1 for _, _, pixel in planes):
        return None
    images = size(tuple(shape[a] for a in outer))
    return _Layout(False, images, shape[axis], pixels, [each[:2] for each in planes])


def _with_strides(*vectors: Array) -> list[Array | int]:
    return [part for each in vectors for part in (each, stride_of(each))]


class _Work:
    """What the three ways to bind share: layout, workspace, and calls over all elements."""

    def __init__(self, call: Call, layout: _Layout, scale: Array) -> None:
        self.node = call.node
        self.layout = layout
        self.relu = call.node.op.name.endswith(("relu", "relu_grad"))
        self.eps = float(call.node.attrs["eps"])
        self.name = call.outputs[0].dtype.name
        self.names = {"name": self.name, "parameters": scale.dtype.name}
        scratch = Scratch(call.workspace)
        self.partial, self.totals, self.factors, self.given = (
            scratch.array(spec.shape, spec.dtype) for spec in _specs(call.node)
        )
        self.parts = parts_for(layout.size)

    def given_statistics(self, target: Array, *vectors: Array) -> NativeCall:
        """From scale, shift, mean and variance to factors."""
        address = compiled(build_given_statistics, **self.names, statistics=vectors[2].dtype.name)
        slots = _with_strides(*vectors)
        return native_call(address, self.layout.channels, self.eps, target, *slots)

    def rows(self, x: Array, y: Array, more: tuple[Array, ...]) -> NativeCall:
        """All rows, by factors."""
        address = compiled(build_rows, name=self.name, added=bool(more), relu=self.relu)
        return native_call(
            address, *self.layout.slots(0, x), *self.layout.slots(1, y), *self.layout.sizes,
            self.factors, *self._more(more), parts=self.parts,
        )  # fmt: skip

    def _more(self, more: tuple[Array, ...]) -> list[Array | int]:
        return [part for each in more for part in self.layout.slots(2, each)]

    def given_planes(self, x: Array, y: Array, more: tuple[Array, ...]) -> NativeCall:
        """All planes, by factors."""
        address = compiled(build_given_planes, name=self.name, added=bool(more), relu=self.relu)
        return native_call(
            address, *self.layout.slots(0, x), *self.layout.slots(1, y), *self.layout.sizes,
            self.factors, *self._more(more), parts=self.parts,
        )  # fmt: skip

    def planes(
        self, x: Array, y: Array, more: tuple[Array, ...], affine: list[Array | int],
        statistics: tuple[Array, Array],
    ) -> NativeCall:  # fmt: skip
        """Statistics and all planes."""
        address = compiled(build_planes, **self.names, added=bool(more), relu=self.relu)
        return native_call(
            address, *self.layout.slots(0, x), *self.layout.slots(1, y), *self.layout.sizes,
            self.eps, *affine, *statistics, *self._more(more),
            parts=min(self.parts, self.layout.channels),
        )  # fmt: skip


# --- tying kernels to arrays


def _bind(call: Call) -> Runner | None:
    x, scale, shift, *more = call.inputs
    y, mean, variance = call.outputs
    layout = _layout([x, y, *more], call.node.attrs["axis"])
    if layout is None or not all(each.flags.c_contiguous for each in (mean, variance)):
        return None
    work = _Work(call, layout, scale)
    affine = _with_strides(scale, shift)
    if not layout.last:
        return NativeRunner([work.planes(x, y, tuple(more), affine, (mean, variance))])
    sums = native_call(
        compiled(build_sums, name=work.name), *layout.slots(0, x), *layout.sizes, work.partial,
        parts=work.parts,
    )  # fmt: skip
    statistics = native_call(
        compiled(build_statistics, **work.names), x, *layout.sizes, work.partial, work.totals,
        work.eps, *affine, mean, variance, work.factors, parts=parts_for(work.partial.size),
    )  # fmt: skip
    return NativeRunner([sums, statistics, work.rows(x, y, tuple(more))])


def _bind_given(call: Call) -> Runner | None:
    x, scale, shift, mean, variance, *more = call.inputs
    (y,) = call.outputs
    layout = _layout([x, y, *more], call.node.attrs["axis"])
    if layout is None:
        return None
    work = _Work(call, layout, scale)
    prepare = work.given_statistics(work.factors, scale, shift, mean, variance)
    apply = work.rows if layout.last else work.given_planes
    return NativeRunner([prepare, apply(x, y, tuple(more))])


def _bind_gradient(call: Call) -> Runner | None:
    g, x, scale, *shift, mean, variance = call.inputs
    dx, for_scale, for_shift = call.outputs
    layout = _layout([x, g, dx], call.node.attrs["axis"])
    vectors = (mean, variance, for_scale, for_shift)
    if layout is None or not all(each.flags.c_contiguous for each in vectors):
        return None
    work = _Work(call, layout, scale)
    prepare = []
    given = []
    if work.relu:
        prepare = [work.given_statistics(work.given, scale, *shift, mean, variance)]
        given = [work.given]
    operands = (*layout.slots(1, g), *layout.slots(0, x))
    result = layout.slots(2, dx)
    if not layout.last:
        main = native_call(
            compiled(build_gradient_planes, **work.names, relu=work.relu), *operands, *result,
            *layout.sizes, work.eps, *_with_strides(scale), mean, variance, for_scale, for_shift,
            *given, parts=min(work.parts, layout.channels),
        )  # fmt: skip
        return NativeRunner([*prepare, main])
    sums = native_call(
        compiled(build_gradient_sums, name=work.name, relu=work.relu), *operands, *layout.sizes,
        work.partial, mean, *given, parts=work.parts,
    )  # fmt: skip
    statistics = native_call(
        compiled(build_gradient_statistics, **work.names), *layout.sizes, work.partial, work.totals,
        work.eps, *_with_strides(scale), variance, mean, for_scale, for_shift, work.factors,
        parts=parts_for(work.partial.size),
    )  # fmt: skip
    rows = native_call(
        compiled(build_gradient_rows, name=work.name, relu=work.relu), *operands, *result,
        *layout.sizes, work.factors, *given, parts=work.parts,
    )  # fmt: skip
    return NativeRunner([*prepare, sums, statistics, rows])


# --- workspace


def _specs(node: Node) -> tuple[Spec, Spec, Spec, Spec]:
    """Sums of blocks, their totals, the factors, and those that a relu's mask comes from."""
    image = node.outputs[0]
    channels = image.shape[node.attrs["axis"]]
    rows = image.size // max(channels, 1)
    dtype = compute_dtype(image.dtype)
    return (
        Spec((-(-rows // BLOCK_ROWS) * 2 * channels,), dtype),
        Spec((2 * channels,), float64),
        Spec((FACTORS * channels,), dtype),
        Spec((FACTORS * channels,), dtype),
    )


def _in_place(node: Node) -> bool:
    # Every element is read before it is written, and vectors before any of them.
    return len(node.outputs[0].shape) > 1


_BINDS: dict[str, Callable[[Call], Runner | None]] = {
    "batch_norm": _bind,
    "batch_norm_relu": _bind,
    "batch_norm_inference": _bind_given,
    "batch_norm_inference_relu": _bind_given,
    "batch_norm_grad": _bind_gradient,
    "batch_norm_relu_grad": _bind_gradient,
}
for _op, _its_bind in _BINDS.items():
    TABLE.add(
        Kernel(
            _op, "cpu", "native", any_layout(_its_bind),
            workspace=lambda node: workspace_bytes(*_specs(node)), priority=10, in_place=_in_place,
        )
    )  # fmt: skip
