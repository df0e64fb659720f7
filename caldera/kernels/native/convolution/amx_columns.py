"""Convolutions of bfloat16 images in tile registers: windows become rows of a matrix first.

The matrix is as many times larger than the images as a filter has taps, and written and read once.
That takes longer than to multiply it in tile registers, and less than to convolve in float32. The
gradient of the images is the convolution of the outputs' gradient with filters that are turned, so
it is here for a stride of 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.graph.memory_format import NHWC
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import parameter
from caldera.graph.ops.product import matmul
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.common.scratch import Scratch, workspace_bytes
from caldera.kernels.native.codegen.kernel import NativeCall
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.native.convolution import PRIORITY
from caldera.kernels.native.convolution.cost_model import COPY, PEAK
from caldera.kernels.native.convolution.pointwise import (
    is_product,
    read_pixels,
    written_pixels,
)
from caldera.kernels.native.product import amx
from caldera.kernels.native.product.problem import copied
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import bfloat16
from caldera.tensor.shape import Shape

_FEWEST_ELEMENTS = 16
"""With fewer side by side, windows are copied too slowly."""
_FASTER = 8
"""How many times as fast as by vectors of float32 numbers matrices are multiplied, about."""


@dataclass(frozen=True)
class _Windows:
    """Windows of images (N, H, W, C) with a border, `taps` of them dilated, at every stride."""

    images: Shape
    origin: tuple[int, int]
    target: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    results: int

    @classmethod
    def of(cls, node: Node) -> _Windows:
        geometry = Geometry.of(node)
        taps, dilation = geometry.taps, geometry.dilation
        if node.op.name != "conv2d_input":
            batch, channels, height, width = geometry.image
            return cls(
                (batch, height, width, channels), geometry.origin, geometry.target, taps,
                geometry.stride, dilation, geometry.results,
            )  # fmt: skip
        batch, channels, height, width = geometry.output
        top, left = (
            reach * (count - 1) - before
            for reach, count, before in zip(dilation, taps, geometry.origin, strict=True)
        )
        return cls(
            (batch, height, width, channels), (top, left), geometry.source, taps, (1, 1),
            dilation, geometry.channels,
        )  # fmt: skip

    @property
    def padded(self) -> Shape:
        """The images with as much around them as windows see."""
        sides = [
            (count - 1) * step + (taps - 1) * reach + 1
            for count, step, taps, reach in zip(
                self.target, self.stride, self.taps, self.dilation, strict=True
            )
        ]
        return self.images[0], *sides, self.images[3]

    @property
    def shape(self) -> Shape:
        """All windows: of which image, where, and what is in them."""
        return self.images[0], *self.target, *self.taps, self.images[3]

    @property
    def side_by_side(self) -> int:
        """Elements of a window that lie side by side: a row of it, or the channels of a tap."""
        return self.images[3] * (self.taps[1] if self.dilation[1] == 1 else 1)

    @property
    def matrix(self) -> tuple[int, int]:
        """The same as rows."""
        batch, rows, columns, *window = self.shape
        return batch * rows * columns, int(np.prod(window))

    def fill(self, images: np.ndarray, padded: np.ndarray, matrix: np.ndarray) -> list[NativeCall]:
        """The calls that make the matrix."""
        (top, left), (height, width) = self.origin, padded.shape[1:3]
        nothing = np.zeros((), padded.dtype)
        calls = copied(np.broadcast_to(nothing, padded.shape), padded)
        # Windows need not see the last rows and columns of an image.
        seen = images[:, : height - top, : width - left]
        inside = padded[:, top : top + seen.shape[1], left : left + seen.shape[2]]
        calls += copied(seen, inside)
        of_image, of_row, of_column, of_channel = padded.strides
        (down, right), (reach_down, reach_right) = self.stride, self.dilation
        strides = (
            of_image, of_row * down, of_column * right, of_row * reach_down,
            of_column * reach_right, of_channel,
        )  # fmt: skip
        windows = np.lib.stride_tricks.as_strided(padded, self.shape, strides)
        goal = matrix.reshape(self.shape)
        for row in range(self.taps[0]):
            calls += copied(windows[:, :, :, row], goal[:, :, :, row])
        return calls


def _product(node: Node) -> Node:
    """The product of the matrix of windows with the filters, or of the gradient with it."""
    windows = _Windows.of(node)
    pixels, length = windows.matrix
    # Filters are turned, or not, so that the copy of them goes along their own rows.
    shapes, ta, tb = {
        "conv2d": (((pixels, length), (windows.results, length)), False, True),
        "conv2d_input": (((pixels, length), (length, windows.results)), False, False),
        "conv2d_weight": (((pixels, windows.results), (pixels, length)), True, False),
    }[node.op.name]
    left, right = (parameter(i, Spec(each, bfloat16)) for i, each in enumerate(shapes))
    product: Node = matmul(left, right, ta=ta, tb=tb)
    return product


def _scratch_specs(node: Node) -> list[Spec]:
    """Padded images, the matrix of windows, and that of the filters."""
    windows = _Windows.of(node)
    filters = (windows.matrix[1] * windows.results,)
    return [Spec(each, bfloat16) for each in (windows.padded, windows.matrix, filters)]


def _workspace(node: Node) -> int:
    return workspace_bytes(*_scratch_specs(node)) + amx.workspace(_product(node))


def _supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    images = [node.inputs[0].outputs[0]]
    images.append(node.inputs[1].outputs[0] if node.op.name == "conv2d_weight" else node.outputs[0])
    if any(each.order != NHWC for each in images) or geometry.groups > 1:
        return False
    if any(each.dtype != bfloat16 for each in (*node.inputs, node)) or is_product(node):
        return False
    windows = _Windows.of(node)
    if min(windows.side_by_side, windows.results) < _FEWEST_ELEMENTS:
        return False
    is_turned = node.op.name == "conv2d_input"
    if is_turned and (geometry.stride != (1, 1) or min(windows.origin) < 0):
        return False
    return min(windows.origin) >= 0 and amx.supports(_product(node))


def _bind(call: Call) -> Runner:
    node, scratch = call.node, Scratch(call.workspace)
    windows = _Windows.of(node)
    padded, matrix, filters = (
        scratch.array(each.shape, each.dtype) for each in _scratch_specs(node)
    )
    calls = windows.fill(call.inputs[0].transpose(0, 2, 3, 1), padded, matrix)
    weights, out = call.inputs[1], call.outputs[0]
    after: list[NativeCall] = []
    if node.op.name == "conv2d_weight":
        gradient, more = read_pixels(weights)
        calls += more
        pair = gradient, matrix
        goal = out.transpose(0, 2, 3, 1)
        found = filters.reshape(windows.results, -1)
        after = copied(found.reshape(goal.shape), goal)
    else:
        is_turned = node.op.name == "conv2d_input"
        # Taps of a filter, each with all channels that windows have.
        wanted = weights.transpose(0, 2, 3, 1)
        if is_turned:
            wanted = weights[:, :, ::-1, ::-1].transpose(2, 3, 0, 1)
        calls += copied(wanted, filters.reshape(wanted.shape))
        rows = windows.matrix[1] if is_turned else windows.results
        pair = matrix, filters.reshape(rows, -1)
        found, after = written_pixels(out)
    multiplied = amx.bind(Call(_product(node), (found,), pair, scratch.rest))
    assert isinstance(multiplied, NativeRunner)
    return NativeRunner([*calls, *multiplied.calls, *after])


def _seconds(node: Node) -> float:
    """How long it will take, beside the estimates of others."""
    rows, length = _Windows.of(node).matrix
    return Geometry.of(node).flops / (_FASTER * PEAK) + 2 * rows * length / COPY


for _op in ("conv2d", "conv2d_input", "conv2d_weight"):
    TABLE.add(
        Kernel(
            _op, "cpu", "amx im2col", _bind, _supports, _workspace, PRIORITY, estimate=_seconds
        )
    )  # fmt: skip
