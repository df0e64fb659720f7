"""Convolutions in NumPy, by products of matrices. Several ways compete; none wins everywhere.

- "im2col": all windows of all images as the columns of one matrix, then one product.
- "im2col by image": the same for one image at a time: little workspace, and columns that stay in
  the cache, but smaller products.
- "product": a 1x1 kernel without stride and padding is a product as it stands.
- "depthwise": with one channel a group, the input gradient by multiplying and adding.

All but the last exist for the convolution, its input gradient and its weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caldera.graph.node import Node, Spec
from caldera.kernels.cpu.blas import product
from caldera.kernels.cpu.scratch import Scratch, computed_in, room_for, through_float32
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.dtype import DType
from caldera.tensor.shape import Shape, size

Part = tuple[slice, slice]
Meeting = tuple[int, int, Part, Part]
"""Kernel row and column, and the parts of the output and of the image that meet there."""


@dataclass(frozen=True)
class Geometry:
    """The shapes of a convolution, the same for it and both of its gradients."""

    node: Node

    @cached_property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Of the image, the kernel and the output."""
        first, second = (given.shape for given in self.node.inputs)
        if self.node.op.name == "conv2d":
            return first, second, self.node.shape
        if self.node.op.name == "conv2d_input":
            return self.node.shape, second, first
        return first, self.node.shape, second

    @property
    def groups(self) -> int:
        """How many parts the channels are cut into."""
        return int(self.node.attrs["groups"])

    @property
    def batch(self) -> int:
        """How many images there are."""
        return self.shapes[0][0]

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.shapes[1][1]

    @property
    def results(self) -> int:
        """Output channels of a group."""
        return self.shapes[1][0] // self.groups

    @property
    def taps(self) -> int:
        """Products that each output element is the sum of."""
        return size(self.shapes[1][1:])

    @property
    def places(self) -> int:
        """Output elements a channel of an image."""
        return size(self.shapes[2][2:])

    @property
    def dtype(self) -> DType:
        """What it is computed in."""
        return computed_in(self.node.dtype)

    @property
    def is_product(self) -> bool:
        """Whether every output element sees one pixel, at its own place."""
        attrs = self.node.attrs
        pointwise = self.shapes[1][2:] == (1, 1) and attrs["stride"] == (1, 1)
        return pointwise and attrs["padding"] == ((0, 0), (0, 0))

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved by itself, with one kernel."""
        return self.channels == 1 and self.results == 1

    def meetings(self) -> Iterator[Meeting]:
        """For each kernel element, the output elements whose pixel is inside the image."""
        _, _, height, width = self.shapes[1]
        for i in range(height):
            output_rows, image_rows = self._along(0, i)
            for j in range(width):
                output_columns, image_columns = self._along(1, j)
                yield i, j, (output_rows, output_columns), (image_rows, image_columns)

    def _along(self, axis: int, tap: int) -> tuple[slice, slice]:
        image, _, output = (shape[2 + axis] for shape in self.shapes)
        attrs = self.node.attrs
        stride = attrs["stride"][axis]
        # Output element p meets pixel p * stride + shift.
        shift = tap * attrs["dilation"][axis] - attrs["padding"][axis][0]
        first = min(max(-(shift // stride), 0), output)
        end = max(min((image - 1 - shift) // stride + 1, output), first)
        start = first * stride + shift
        if end == first:
            return slice(first, first), slice(0, 0)
        return slice(first, end), slice(start, start + (end - first - 1) * stride + 1, stride)

    def outside(self, part: Part) -> Iterator[Part]:
        """The rest of the output, whose pixels are padding."""
        rows, columns = part
        height, width = self.shapes[2][2:]
        everything = slice(0, width)
        yield slice(0, rows.start), everything
        yield slice(rows.stop, height), everything
        yield rows, slice(0, columns.start)
        yield rows, slice(columns.stop, width)


Copies = list[tuple[Array, Part]]


def _columns_of(geometry: Geometry, columns: Array) -> tuple[Copies, list[Array]]:
    """Where in `columns` (channels, h, w, ..., H', W') pixels go, and where zeros."""
    copies: Copies = []
    zeros: list[Array] = []
    for i, j, output, image in geometry.meetings():
        tap = columns[:, i, j]
        copies.append((tap[..., output[0], output[1]], image))
        for rows, width in geometry.outside(output):
            border = tap[..., rows, width]
            if border.size:
                zeros.append(border)
    return copies, zeros


def _unfold(image: Array, copies: Copies, zeros: list[Array]) -> None:
    for border in zeros:
        border.fill(0)
    for column, (rows, width) in copies:
        np.copyto(column, image[..., rows, width])


def _fold(image: Array, copies: Copies) -> None:
    image.fill(0)
    for column, (rows, width) in copies:
        part = image[..., rows, width]
        np.add(part, column, part)


def _matrices(w: Array, geometry: Geometry) -> Array:
    """The kernels of each group as the rows of a matrix."""
    return w.reshape(geometry.groups, geometry.results, geometry.taps)


# --- im2col: one product for the whole batch


def _whole_columns(geometry: Geometry) -> Shape:
    image, kernel, output = geometry.shapes
    return (image[1], *kernel[2:], image[0], *output[2:])


def _whole_outputs(geometry: Geometry) -> Shape:
    batch, channels, height, width = geometry.shapes[2]
    return channels, batch, height, width


def _whole_workspace(node: Node) -> int:
    geometry = Geometry(node)
    return room_for(
        Spec(_whole_columns(geometry), geometry.dtype),
        Spec(_whole_outputs(geometry), geometry.dtype),
    )


def _bind_whole(call: Call) -> Runner:
    geometry = Geometry(call.node)
    scratch = Scratch(call.workspace)
    first, second = call.inputs
    (out,) = call.outputs
    columns = scratch.array(_whole_columns(geometry), out.dtype)
    outputs = scratch.array(_whole_outputs(geometry), out.dtype)
    copies, zeros = _columns_of(geometry, columns)
    places = geometry.batch * geometry.places
    table = columns.reshape(geometry.groups, geometry.taps, places)
    rows = outputs.reshape(geometry.groups, geometry.results, places)

    def convolve() -> None:
        _unfold(first.swapaxes(0, 1), copies, zeros)
        product(_matrices(second, geometry), table, rows)
        np.copyto(out.swapaxes(0, 1), outputs)

    def for_input() -> None:
        np.copyto(outputs, first.swapaxes(0, 1))
        product(_matrices(second, geometry).swapaxes(1, 2), rows, table)
        _fold(out.swapaxes(0, 1), copies)

    def for_weight() -> None:
        _unfold(first.swapaxes(0, 1), copies, zeros)
        np.copyto(outputs, second.swapaxes(0, 1))
        product(rows, table.swapaxes(1, 2), _matrices(out, geometry))

    return _pick(call.node, convolve, for_input, for_weight)


def _pick(node: Node, convolve: Runner, for_input: Runner, for_weight: Runner) -> Runner:
    return {"conv2d": convolve, "conv2d_input": for_input, "conv2d_weight": for_weight}[
        node.op.name
    ]


# --- im2col by image


def _image_columns(geometry: Geometry) -> Shape:
    image, kernel, output = geometry.shapes
    return (image[1], *kernel[2:], *output[2:])


def _terms(geometry: Geometry) -> list[Spec]:
    """Weight gradients are a sum over images, whose terms need a place."""
    if geometry.node.op.name != "conv2d_weight":
        return []
    return [Spec(geometry.shapes[1], geometry.dtype)]


def _term(geometry: Geometry, scratch: Scratch) -> Array:
    for spec in _terms(geometry):
        return _matrices(scratch.array(spec.shape, spec.dtype), geometry)
    return None


def _image_workspace(node: Node) -> int:
    geometry = Geometry(node)
    return room_for(Spec(_image_columns(geometry), geometry.dtype), *_terms(geometry))


def _bind_image(call: Call) -> Runner:
    geometry = Geometry(call.node)
    scratch = Scratch(call.workspace)
    first, second = call.inputs
    (out,) = call.outputs
    columns = scratch.array(_image_columns(geometry), out.dtype)
    copies, zeros = _columns_of(geometry, columns)
    table = columns.reshape(geometry.groups, geometry.taps, geometry.places)
    term = _term(geometry, scratch)
    batch = range(geometry.batch)

    def rows(outputs: Array) -> Array:
        return outputs.reshape(geometry.groups, geometry.results, geometry.places)

    def convolve() -> None:
        kernels = _matrices(second, geometry)
        for n in batch:
            _unfold(first[n], copies, zeros)
            product(kernels, table, rows(out[n]))

    def for_input() -> None:
        kernels = _matrices(second, geometry).swapaxes(1, 2)
        for n in batch:
            product(kernels, rows(first[n]), table)
            _fold(out[n], copies)

    def for_weight() -> None:
        total = _matrices(out, geometry)
        total.fill(0)
        for n in batch:
            _unfold(first[n], copies, zeros)
            product(rows(second[n]), table.swapaxes(1, 2), term)
            np.add(total, term, total)

    return _pick(call.node, convolve, for_input, for_weight)


# --- 1x1 as a product


def _is_product(node: Node) -> bool:
    return Geometry(node).is_product


def _product_workspace(node: Node) -> int:
    geometry = Geometry(node)
    return room_for(*_terms(geometry))


def _bind_product(call: Call) -> Runner:
    geometry = Geometry(call.node)
    first, second = call.inputs
    (out,) = call.outputs
    term = _term(geometry, Scratch(call.workspace))

    def pixels(images: Array, channels: int) -> Array:
        return images.reshape(geometry.batch, geometry.groups, channels, geometry.places)

    def convolve() -> None:
        kernels = _matrices(second, geometry)
        product(kernels, pixels(first, geometry.channels), pixels(out, geometry.results))

    def for_input() -> None:
        kernels = _matrices(second, geometry).swapaxes(1, 2)
        product(kernels, pixels(first, geometry.results), pixels(out, geometry.channels))

    def for_weight() -> None:
        total = _matrices(out, geometry)
        total.fill(0)
        images = pixels(first, geometry.channels).swapaxes(2, 3)
        outputs = pixels(second, geometry.results)
        for n in range(geometry.batch):
            product(outputs[n], images[n], term)
            np.add(total, term, total)

    return _pick(call.node, convolve, for_input, for_weight)


# --- depthwise: products whose inner size is 1 would leave BLAS nothing to do


def _is_depthwise(node: Node) -> bool:
    return Geometry(node).is_depthwise


def _one_output(geometry: Geometry) -> Spec:
    return Spec(geometry.shapes[2][1:], geometry.dtype)


def _depthwise_workspace(node: Node) -> int:
    return room_for(_one_output(Geometry(node)))


def _bind_depthwise(call: Call) -> Runner:
    geometry = Geometry(call.node)
    gradient, kernels = call.inputs
    (out,) = call.outputs
    spec = _one_output(geometry)
    terms = Scratch(call.workspace).array(spec.shape, spec.dtype)
    meetings = [
        (kernels[:, 0, i, j, None, None], terms[:, rows, columns], (rows, columns), image)
        for i, j, (rows, columns), image in geometry.meetings()
    ]

    def run() -> None:
        out.fill(0)
        for outputs, images in zip(gradient, out, strict=True):
            for weight, term, (rows, columns), image in meetings:
                np.multiply(outputs[:, rows, columns], weight, term)
                part = images[:, image[0], image[1]]
                np.add(part, term, part)

    return run


_ALL = ("conv2d", "conv2d_input", "conv2d_weight")


def _register(
    name: str,
    bind: Callable[[Call], Runner],
    workspace: Callable[[Node], int],
    priority: int,
    supports: Callable[[Node], bool] = lambda node: True,
    ops: tuple[str, ...] = _ALL,
) -> None:
    bind_any, workspace_any = through_float32(bind, workspace)
    for op in ops:
        TABLE.add(Kernel(op, "cpu", name, bind_any, supports, workspace_any, priority))


_register("product", _bind_product, _product_workspace, 3, _is_product)
_register("depthwise", _bind_depthwise, _depthwise_workspace, 2, _is_depthwise, ("conv2d_input",))
_register("im2col by image", _bind_image, _image_workspace, 1)
_register("im2col", _bind_whole, _whole_workspace, 0)
