"""Convolutions as built-in matrix products, which gather the rows of the left matrix.

With filters of a single pixel, the rows are pixels: channels-last images already form a matrix. A
copy is needed only if the images are parts of a larger array, or if a stride skips pixels. Packed
micro-kernels multiply the matrices, or tile registers if they are bfloat16.

With larger filters and bfloat16, the rows are windows. If channels come in blocks of 32, windows
are gathered from the images during packing. Otherwise their matrix is written first, which takes
longer than multiplying it in tile registers, and less than a convolution in float32. The gradient
of the images is a convolution of the outputs' gradient with rotated filters, by phases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from caldera.core.graph import NHWC, Node, Spec, parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor import DType, Shape, bfloat16
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.geometry import Geometry, Phase, input_phases, seen_pixels
from caldera.kernels.native.codegen import NativeCall, NativeRunner, offer
from caldera.kernels.native.convolution import COPY, PEAK, PRIORITY, product_seconds
from caldera.kernels.native.product import amx, packed  # noqa: F401 - register their kernels
from caldera.kernels.native.product.amx_packing import SIDE
from caldera.kernels.native.product.problem import copied, dense
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_TRANSPOSED = {
    "conv2d": (False, True),
    "conv2d_input": (False, False),
    "conv2d_weight": (True, False),
}
"""Transposition of the left and the right matrix, by op.

The products are images times filters, gradient times filters, and gradient times images (reversed).
"""

_PACKED = ("packed, sums cut in 4", "packed together", "packed")
"""Products that multiply the matrices: the first of these that can."""
_FEWEST_ELEMENTS = 16
"""Minimum number of contiguous elements of a window; with fewer, copies are too slow."""
_FASTER = 8
"""Approximate speedup of tile registers over vectors of float32 numbers."""


def _is_product(node: Node) -> bool:
    """Return True if each result reads a single pixel, and no padding."""
    geometry = Geometry.of(node)
    return geometry.unstrided.is_pointwise and geometry.groups == 1


def _has_rows(node: Node) -> bool:
    """Return True if images are channels-last, and all arrays have the same dtype."""
    images = [node.inputs[0].outputs[0]]
    images.append(node.inputs[1].outputs[0] if node.op.name == "conv2d_weight" else node.outputs[0])
    is_alike = len({each.dtype for each in (*node.inputs, node)}) == 1
    return is_alike and all(each.order == NHWC for each in images)


def _matmul(name: str, shapes: Sequence[Shape], dtype: DType) -> Node:
    """Return the product that a convolution op is, of matrices of these shapes."""
    ta, tb = _TRANSPOSED[name]
    left, right = (parameter(i, Spec(each, dtype)) for i, each in enumerate(shapes))
    return matmul(left, right, ta=ta, tb=tb)


# --- the pixels themselves


def _product_kernel(node: Node, names: tuple[str, ...]) -> Kernel | None:
    """Return the first of these kernels that can multiply the matrices."""
    product = _product_of_pixels(node)
    known = {each.name: each for each in TABLE.kernels("matmul", "cpu")}
    return next((known[each] for each in names if known[each].supports(product)), None)


def _supports_pixels(node: Node, names: tuple[str, ...]) -> bool:
    if not (_is_product(node) and _has_rows(node)):
        return False
    return _product_kernel(node, names) is not None


def _product_of_pixels(node: Node) -> Node:
    """Return the matrix product that is equal to this convolution or its gradient."""
    matrices = [_matrix_shape(each.shape) for each in node.inputs]
    if node.op.name != "conv2d_input":
        matrices[0] = _matrix_shape(Geometry.of(node).unstrided.image)
    if node.op.name == "conv2d_weight":
        matrices.reverse()
    return _matmul(node.op.name, matrices, node.dtype)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return pixels by channels, or filters by channels."""
    return shape[0] * shape[2] * shape[3], shape[1]


def _as_pixels(array: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, np.ndarray | None]:
    """Return pixels by channels: a view and None, or new memory and the array in that layout."""
    images, shape = array.transpose(0, 2, 3, 1), _matrix_shape(array.shape)
    try:
        return np.reshape(images, shape, copy=False), None
    except ValueError:
        return dense(shape, array.dtype, scratch), images


def _read_pixels(array: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, list[NativeCall]]:
    """Return an input as a matrix, and the calls that copy it, if any."""
    matrix, images = _as_pixels(array, scratch)
    return matrix, [] if images is None else copied(images, matrix.reshape(images.shape))


def _written_pixels(array: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, list[NativeCall]]:
    """Return a matrix for an output, and the calls that copy the result back, if any."""
    matrix, images = _as_pixels(array, scratch)
    return matrix, [] if images is None else copied(matrix.reshape(images.shape), images)


def _bind_pixels(call: Call, names: tuple[str, ...]) -> Runner:
    node, scratch, geometry = call.node, Scratch(call.workspace), Geometry.of(call.node)
    first, out = call.inputs[0], call.outputs[0]
    unseen: list[NativeCall] = []
    if node.op.name != "conv2d_input":
        first = seen_pixels(geometry, first)
    elif geometry.stride != (1, 1):
        unseen = copied(np.broadcast_to(np.zeros((), out.dtype), out.shape), out)
        out = seen_pixels(geometry, out)
    first, before = _read_pixels(first, scratch)
    second, more = _read_pixels(call.inputs[1], scratch)
    found, after = _written_pixels(out, scratch)
    matrices = (second, first) if node.op.name == "conv2d_weight" else (first, second)
    kernel = _product_kernel(node, names)
    assert kernel is not None
    multiplied = kernel.bind(Call(_product_of_pixels(node), (found,), matrices, scratch.rest))
    assert isinstance(multiplied, NativeRunner)
    return NativeRunner([*unseen, *before, *more, *multiplied.calls, *after])


def _pixels_workspace(node: Node, names: tuple[str, ...]) -> int:
    geometry = Geometry.of(node)
    is_strided = geometry.stride != (1, 1)
    seen = [Spec(geometry.unstrided.image, node.dtype)] if is_strided else []
    kernel = _product_kernel(node, names)
    assert kernel is not None
    return workspace_bytes(*seen) + kernel.workspace(_product_of_pixels(node))


# --- windows


@dataclass(frozen=True)
class _Windows:
    """Windows of padded images (N, H, W, C), with dilated taps, at every stride."""

    images: Shape
    origin: tuple[int, int]
    target: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    results: int

    @classmethod
    def of(cls, node: Node) -> _Windows:
        """Return the windows of a convolution, or of the gradient of its filters."""
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
        """Shape of the images with the padding that windows cover."""
        sides = [
            (count - 1) * step + (taps - 1) * reach + 1
            for count, step, taps, reach in zip(
                self.target, self.stride, self.taps, self.dilation, strict=True
            )
        ]
        return self.images[0], *sides, self.images[3]

    @property
    def shape(self) -> Shape:
        """Shape of all windows: image, position, taps and channels."""
        return self.images[0], *self.target, *self.taps, self.images[3]

    @property
    def side_by_side(self) -> int:
        """Number of contiguous elements of a window: a row, or the channels of a tap."""
        return self.images[3] * (self.taps[1] if self.dilation[1] == 1 else 1)

    @property
    def matrix(self) -> tuple[int, int]:
        """Shape of the matrix of windows: a row for each window."""
        batch, rows, columns, *window = self.shape
        return batch * rows * columns, int(np.prod(window))

    @property
    def is_gathered(self) -> bool:
        """True if blocks of windows are contiguous in the images."""
        return self.images[3] % SIDE == 0

    def pad(self, images: np.ndarray, padded: np.ndarray) -> list[NativeCall]:
        """Return the calls that put a border around images."""
        height, width = padded.shape[1:3]
        top, left = (max(0, each) for each in self.origin)
        # Windows of a gradient may start inside the image.
        first_row, first_column = (max(0, -each) for each in self.origin)
        nothing = np.zeros((), padded.dtype)
        calls = copied(np.broadcast_to(nothing, padded.shape), padded)
        # Windows may leave out the last rows and columns of an image.
        rows, columns = max(0, height - top), max(0, width - left)
        seen = images[:, first_row : first_row + rows, first_column : first_column + columns]
        inside = padded[:, top : top + seen.shape[1], left : left + seen.shape[2]]
        return calls + copied(seen, inside)

    def _strides(self, padded: np.ndarray) -> tuple[int, ...]:
        """Return the strides between windows, taps and channels, in bytes."""
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
        """Return the calls that write the matrix."""
        windows = np.lib.stride_tricks.as_strided(padded, self.shape, self._strides(padded))
        goal = matrix.reshape(self.shape)
        rows = range(self.taps[0])
        return [each for row in rows for each in copied(windows[:, :, :, row], goal[:, :, :, row])]

    def gathered(self, padded: np.ndarray) -> amx.Gathered:
        """Return the matrix as offsets into the images, without a copy."""
        sizes, steps = self.shape, [step // padded.itemsize for step in self._strides(padded)]
        places = [np.arange(n, dtype=np.int64) * step for n, step in zip(sizes, steps, strict=True)]
        rows = places[0][:, None, None] + places[1][:, None] + places[2]
        blocks = places[3][:, None, None] + places[4][:, None] + places[5][::SIDE]
        return amx.Gathered(padded, rows.reshape(-1), blocks.reshape(-1))


@dataclass(frozen=True)
class _Phase:
    """Windows, the pixels that they are written to, and the taps of the filters that they meet: all
    but for the images' gradient, which is a convolution of the outputs' gradient by phases."""

    windows: _Windows
    pixels: tuple[slice, slice] = (slice(None), slice(None))
    taps: tuple[slice, slice] = (slice(None), slice(None))


def _phases(node: Node) -> list[_Phase]:
    """Return all phases; an empty list if no tap reaches one of them."""
    if node.op.name != "conv2d_input":
        return [_Phase(_Windows.of(node))]
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
    """Return the taps of a phase, in reverse order."""
    before = phase.last_tap - phase.tap_step * phase.taps
    return slice(phase.last_tap, before if before >= 0 else None, -phase.tap_step)


def _product_of_windows(name: str, windows: _Windows) -> Node:
    """Return the product of the matrix of windows with the filters, or of the gradient with it."""
    pixels, length = windows.matrix
    # Filters are transposed or not such that copying them follows their rows.
    shapes = {
        "conv2d": [(pixels, length), (windows.results, length)],
        "conv2d_input": [(pixels, length), (length, windows.results)],
        "conv2d_weight": [(pixels, windows.results), (pixels, length)],
    }[name]
    return _matmul(name, shapes, bfloat16)


def _scratch_specs(windows: _Windows) -> list[Spec]:
    """Return the specs of padded images, filters, and the matrix of windows if it is written."""
    filters = (windows.matrix[1] * windows.results,)
    written = [] if windows.is_gathered else [windows.matrix]
    return [Spec(each, bfloat16) for each in (windows.padded, filters, *written)]


class _Workspace:
    """Workspace of a convolution, and the calls that prepare the windows."""

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
            # Only its shape is used.
            self._matrix = np.broadcast_to(np.zeros((), bfloat16), windows.matrix)

    def multiply(self, name: str, other: np.ndarray, out: np.ndarray) -> list[NativeCall]:
        """Return the calls that multiply the matrix of windows with another one."""
        node, rest = _product_of_windows(name, self._windows), self.scratch.rest
        if name == "conv2d_weight":
            call = Call(node, (out,), (other, self._matrix), rest)
            return list(amx.bind(call, right=self._gathered).calls)
        call = Call(node, (out,), (self._matrix, other), rest)
        return list(amx.bind(call, left=self._gathered).calls)


def _windows_workspace(node: Node) -> int:
    name, found = node.op.name, [phase.windows for phase in _phases(node)]
    position = 1 if name == "conv2d_weight" else 0
    needed = []
    for each in found:
        # The results of a phase, before they are interleaved with the remaining phases.
        results = [Spec((each.matrix[0], each.results), bfloat16)] if len(found) > 1 else []
        multiplying = _product_of_windows(name, each), position if each.is_gathered else None
        specs = [*_scratch_specs(each), *results]
        needed.append(workspace_bytes(*specs) + amx.workspace(*multiplying))
    return max(needed)


def _supports_windows(node: Node) -> bool:
    geometry = Geometry.of(node)
    if geometry.groups > 1 or node.dtype != bfloat16 or not _has_rows(node) or _is_product(node):
        return False
    found = [phase.windows for phase in _phases(node)]
    return bool(found) and all(
        min(each.side_by_side, each.results) >= _FEWEST_ELEMENTS
        and amx.supports(_product_of_windows(node.op.name, each))
        for each in found
    )


def _bind_windows(call: Call) -> Runner:
    """Tie the phases to arrays; they follow each other in the same workspace."""
    phase_calls = _gradient_calls if call.node.op.name == "conv2d_weight" else _phase_calls
    phases = (phase_calls(call, each) for each in _phases(call.node))
    return NativeRunner([each for calls in phases for each in calls])


def _gradient_calls(call: Call, phase: _Phase) -> list[NativeCall]:
    """Return the gradient of the filters."""
    windows, workspace = phase.windows, _Workspace(call, phase.windows)
    other, before = _read_pixels(call.inputs[1], workspace.scratch)
    goal = call.outputs[0].transpose(0, 2, 3, 1)
    found = workspace.filters.reshape(windows.results, -1)
    multiplied = workspace.multiply("conv2d_weight", other, found)
    return [*workspace.calls, *before, *multiplied, *copied(found.reshape(goal.shape), goal)]


def _phase_calls(call: Call, phase: _Phase) -> list[NativeCall]:
    """Return the calls that compute the pixels of a phase."""
    name, windows, out = call.node.op.name, phase.windows, call.outputs[0]
    workspace = _Workspace(call, windows)
    rows, columns = phase.taps
    # Taps of a filter with all channels that windows have; turned for a gradient.
    order = (0, 2, 3, 1) if name == "conv2d" else (2, 3, 0, 1)
    wanted = call.inputs[1][:, :, rows, columns].transpose(order)
    filters = workspace.filters
    before = copied(wanted, filters.reshape(wanted.shape))
    rows, columns = phase.pixels
    found, after = _written_pixels(out[:, :, rows, columns], workspace.scratch)
    other = filters.reshape(windows.results if name == "conv2d" else windows.matrix[1], -1)
    return [*workspace.calls, *before, *workspace.multiply(name, other, found), *after]


def _seconds(node: Node) -> float:
    """Return the estimated time, comparable with the estimates of other methods."""
    windows = [phase.windows for phase in _phases(node)]
    elements = sum(math.prod(each.padded if each.is_gathered else each.matrix) for each in windows)
    return Geometry.of(node).flops / (_FASTER * PEAK) + 2 * elements / COPY


offer(
    _TRANSPOSED,
    "amx im2col",
    _bind_windows,
    _supports_windows,
    _windows_workspace,
    PRIORITY,
    estimate=_seconds,
)
for _name, _products, _estimate in (
    ("amx 1x1 product", ("amx",), lambda node: 0.0),
    ("1x1 product", _PACKED, product_seconds),
):
    offer(
        _TRANSPOSED,
        _name,
        partial(_bind_pixels, names=_products),
        partial(_supports_pixels, names=_products),
        partial(_pixels_workspace, names=_products),
        PRIORITY,
        estimate=_estimate,
    )
