"""Convolutions of bfloat16 images in tile registers: products with a matrix of windows.

Where channels come in blocks of 32, its rows are gathered from the images as they are packed. Else
it is written first: it is as many times larger than the images as a filter has taps, which takes
longer than to multiply it in tile registers, and less than to convolve in float32.

The gradient of the images is a convolution of the outputs' gradient with filters that are turned;
with a stride it is several of them, one for the pixels of each phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import bfloat16
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.geometry import Geometry, Phase, input_phases
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeRunner,
    offer,
)
from caldera.kernels.native.convolution import COPY, PEAK, PRIORITY
from caldera.kernels.native.convolution.pointwise import (
    is_product,
    read_pixels,
    written_pixels,
)
from caldera.kernels.native.product import amx
from caldera.kernels.native.product.amx_packing import SIDE
from caldera.kernels.native.product.problem import copied
from caldera.kernels.table import Call, Runner

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
        """Those that a convolution, or the gradient of its filters, sees."""
        geometry = Geometry.of(node)
        batch, channels, height, width = geometry.image
        return cls(
            (batch, height, width, channels),
            geometry.origin,
            geometry.target,
            geometry.taps,
            geometry.stride,
            geometry.dilation,
            geometry.results,
        )

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

    @property
    def is_gathered(self) -> bool:
        """Whether blocks of windows lie side by side in the images."""
        return self.images[3] % SIDE == 0

    def pad(self, images: np.ndarray, padded: np.ndarray) -> list[NativeCall]:
        """The calls that put a border around images."""
        height, width = padded.shape[1:3]
        top, left = (max(0, each) for each in self.origin)
        # Windows of a gradient may begin inside of it.
        first_row, first_column = (max(0, -each) for each in self.origin)
        nothing = np.zeros((), padded.dtype)
        calls = copied(np.broadcast_to(nothing, padded.shape), padded)
        # Windows need not see the last rows and columns of an image.
        rows, columns = max(0, height - top), max(0, width - left)
        seen = images[:, first_row : first_row + rows, first_column : first_column + columns]
        inside = padded[:, top : top + seen.shape[1], left : left + seen.shape[2]]
        return calls + copied(seen, inside)

    def _strides(self, padded: np.ndarray) -> tuple[int, ...]:
        """From one window, tap or channel to the next, in bytes."""
        of_image, of_row, of_column, of_channel = padded.strides
        (down, right), (reach_down, reach_right) = self.stride, self.dilation
        return (
            of_image,
            of_row * down,
            of_column * right,
            of_row * reach_down,
            of_column * reach_right,
            of_channel,
        )

    def fill(self, padded: np.ndarray, matrix: np.ndarray) -> list[NativeCall]:
        """The calls that write the matrix."""
        windows = np.lib.stride_tricks.as_strided(padded, self.shape, self._strides(padded))
        goal = matrix.reshape(self.shape)
        rows = range(self.taps[0])
        return [each for row in rows for each in copied(windows[:, :, :, row], goal[:, :, :, row])]

    def gathered(self, padded: np.ndarray) -> amx.Gathered:
        """The matrix, left where it is."""
        sizes, steps = self.shape, [step // padded.itemsize for step in self._strides(padded)]
        places = [np.arange(n, dtype=np.int64) * step for n, step in zip(sizes, steps, strict=True)]
        rows = places[0][:, None, None] + places[1][:, None] + places[2]
        blocks = places[3][:, None, None] + places[4][:, None] + places[5][::SIDE]
        return amx.Gathered(padded, rows.reshape(-1), blocks.reshape(-1))


@dataclass(frozen=True)
class _Phase:
    """Pixels of the images' gradient, as a convolution of the outputs' gradient: which pixels, of
    which windows, and with which taps of the filters."""

    windows: _Windows
    pixels: tuple[slice, slice]
    taps: tuple[slice, slice]


def _phases(node: Node) -> list[_Phase]:
    """All phases of a gradient of images; none if there is one that no tap reaches."""
    geometry = Geometry.of(node)
    batch, channels, height, width = geometry.output
    found = []
    for row, column, work in input_phases(geometry):
        if not all(work.taps):
            return []
        windows = _Windows(
            (batch, height, width, channels),
            (-row.start, -column.start),
            (row.count, column.count),
            work.taps,
            (1, 1),
            (row.dilation, column.dilation),
            geometry.channels,
        )
        pixels = slice(row.first, None, row.step), slice(column.first, None, column.step)
        found.append(_Phase(windows, pixels, (_taps(row), _taps(column))))
    return found


def _taps(phase: Phase) -> slice:
    """The taps of a phase, in reverse order."""
    before = phase.last_tap - phase.tap_step * phase.taps
    return slice(phase.last_tap, before if before >= 0 else None, -phase.tap_step)


# --- products


def _product(name: str, windows: _Windows) -> Node:
    """The product of the matrix of windows with the filters, or of the gradient with it."""
    pixels, length = windows.matrix
    # Filters are turned, or not, so that the copy of them goes along their own rows.
    shapes, ta, tb = {
        "conv2d": (((pixels, length), (windows.results, length)), False, True),
        "conv2d_input": (((pixels, length), (length, windows.results)), False, False),
        "conv2d_weight": (((pixels, windows.results), (pixels, length)), True, False),
    }[name]
    left, right = (parameter(i, Spec(each, bfloat16)) for i, each in enumerate(shapes))
    return matmul(left, right, ta=ta, tb=tb)


def _all_windows(node: Node) -> list[_Windows]:
    if node.op.name == "conv2d_input":
        return [phase.windows for phase in _phases(node)]
    return [_Windows.of(node)]


def _scratch_specs(windows: _Windows) -> list[Spec]:
    """Padded images, the matrix of the filters, and that of windows if it is written."""
    filters = (windows.matrix[1] * windows.results,)
    written = [] if windows.is_gathered else [windows.matrix]
    return [Spec(each, bfloat16) for each in (windows.padded, filters, *written)]


class _Workspace:
    """What a convolution has in its workspace, and the calls that make the windows ready."""

    def __init__(self, call: Call, windows: _Windows) -> None:
        self._windows = windows
        self.scratch = Scratch(call.workspace)
        padded, self.filters, *written = (
            self.scratch.array(each.shape, bfloat16) for each in _scratch_specs(windows)
        )
        self.calls = windows.pad(call.inputs[0].transpose(0, 2, 3, 1), padded)
        if written:
            self._gathered, (self._matrix,) = None, written
            self.calls += windows.fill(padded, self._matrix)
        else:
            self._gathered = windows.gathered(padded)
            # Only its shape is looked at.
            self._matrix = np.broadcast_to(np.zeros((), bfloat16), windows.matrix)

    def multiply(self, name: str, other: np.ndarray, out: np.ndarray) -> list[NativeCall]:
        """The calls that multiply the matrix of windows with another one."""
        node, rest = _product(name, self._windows), self.scratch.rest
        if name == "conv2d_weight":
            call = Call(node, (out,), (other, self._matrix), rest)
            return list(amx.bind(call, right=self._gathered).calls)
        call = Call(node, (out,), (self._matrix, other), rest)
        return list(amx.bind(call, left=self._gathered).calls)


def _pixels_spec(windows: _Windows) -> Spec:
    """The results of a phase, before they are put among the others."""
    return Spec((windows.matrix[0], windows.results), bfloat16)


def _workspace(node: Node) -> int:
    found = _all_windows(node)
    position = 1 if node.op.name == "conv2d_weight" else 0
    return max(
        workspace_bytes(*_scratch_specs(each), *([_pixels_spec(each)] if len(found) > 1 else []))
        + amx.workspace(_product(node.op.name, each), position if each.is_gathered else None)
        for each in found
    )


def _supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    images = [node.inputs[0].outputs[0]]
    images.append(node.inputs[1].outputs[0] if node.op.name == "conv2d_weight" else node.outputs[0])
    if any(each.order != NHWC for each in images) or geometry.groups > 1:
        return False
    if any(each.dtype != bfloat16 for each in (*node.inputs, node)) or is_product(node):
        return False
    found = _all_windows(node)
    return bool(found) and all(
        min(each.side_by_side, each.results) >= _FEWEST_ELEMENTS
        and amx.supports(_product(node.op.name, each))
        for each in found
    )


def _bind(call: Call) -> Runner:
    node = call.node
    if node.op.name == "conv2d_input":
        phases = (_phase_calls(call, each) for each in _phases(node))
        return NativeRunner([each for calls in phases for each in calls])
    windows = _Windows.of(node)
    workspace = _Workspace(call, windows)
    filters, given, out = workspace.filters, call.inputs[1], call.outputs[0]
    if node.op.name == "conv2d_weight":
        other, before = read_pixels(given, workspace.scratch)
        goal = out.transpose(0, 2, 3, 1)
        found = filters.reshape(windows.results, -1)
        after = copied(found.reshape(goal.shape), goal)
    else:
        # Taps of a filter, each with all channels that windows have.
        wanted = given.transpose(0, 2, 3, 1)
        before = copied(wanted, filters.reshape(wanted.shape))
        other = filters.reshape(windows.results, -1)
        found, after = written_pixels(out, workspace.scratch)
    multiplied = workspace.multiply(node.op.name, other, found)
    return NativeRunner([*workspace.calls, *before, *multiplied, *after])


def _phase_calls(call: Call, phase: _Phase) -> list[NativeCall]:
    """The pixels of one phase. Phases follow each other in the same workspace."""
    windows, out = phase.windows, call.outputs[0]
    workspace = _Workspace(call, windows)
    rows, columns = phase.taps
    wanted = call.inputs[1][:, :, rows, columns].transpose(2, 3, 0, 1)
    before = copied(wanted, workspace.filters.reshape(wanted.shape))
    rows, columns = phase.pixels
    found, after = written_pixels(out[:, :, rows, columns], workspace.scratch)
    filters = workspace.filters.reshape(windows.matrix[1], -1)
    multiplied = workspace.multiply("conv2d_input", filters, found)
    return [*workspace.calls, *before, *multiplied, *after]


def _seconds(node: Node) -> float:
    """How long it will take, beside the estimates of others."""
    elements = sum(
        math.prod(each.padded if each.is_gathered else each.matrix) for each in _all_windows(node)
    )
    return Geometry.of(node).flops / (_FASTER * PEAK) + 2 * elements / COPY


offer(
    ("conv2d", "conv2d_input", "conv2d_weight"),
    "amx im2col",
    _bind,
    _supports,
    _workspace,
    PRIORITY,
    estimate=_seconds,
)
