"""Local response normalisation and its gradient.

Squares are stored in a small buffer with zeros for the channels outside, so every window is a few
loads at adjacent offsets. With channels last, a vector contains channels of a pixel; with channels
first, pixels of a channel. Each worker has separate buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from caldera.base.threads import thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    Real,
    RegisterValue,
    any_layout,
    collapse_axes,
    computed_type,
    itemsize,
    line_lanes,
    native_kernel,
    offer,
    parts_for,
    shrinking,
)
from caldera.kernels.native.codegen.math import exp, log, sqrt
from caldera.kernels.native.normalisation.layout import ChannelRows, Images
from caldera.kernels.native.normalisation.statistics import pairwise
from caldera.kernels.native.softmax.sample import ClassOperand
from caldera.kernels.table import Call, Runner

_BUFFERS = 3
"""Squares, what neighbours add, and the channel's own part."""


def _power(k: Emitter, x: RegisterValue, beta: float) -> RegisterValue:
    """x ** -beta."""
    if beta == 1.0:
        return 1.0 / x
    if beta == 0.5:
        return 1.0 / sqrt(k, x)
    if beta == 0.75:
        root = sqrt(k, x)
        return 1.0 / (root * sqrt(k, root))
    return exp(k, log(k, x) * -beta)


@dataclass(frozen=True)
class _Buffer:
    """A number for each channel (of each pixel at hand), with zeros on both sides."""

    k: Emitter
    place: Pointer
    unit: int
    before: int

    def clear_edges(self, channels: RegisterValue, after: int) -> None:
        """Write the zeros."""
        nbytes = self.unit * itemsize(self.place.type)
        self.k.clear_bytes(self.place, self.before * nbytes)
        end = (channels + self.before) * self.unit
        self.k.clear_bytes(self.place.at(end), after * nbytes)

    def store(self, channel: RegisterValue, value: RegisterValue) -> None:
        self.place.store((channel + self.before) * self.unit, value)

    def load(self, channel: RegisterValue, count: int) -> RegisterValue:
        return self.place.load((channel + self.before) * self.unit, count)

    def window(self, channel: RegisterValue, count: int, length: int) -> RegisterValue:
        """Return the sum over `length` channels from `before` below on."""
        terms = [self.place.load((channel + i) * self.unit, count) for i in range(length)]
        return pairwise(terms)


Each = Callable[[], Iterator[tuple[RegisterValue, int]]]
"""Makes loops over all channels, for a `for` statement: (channel, lanes)."""


@dataclass(frozen=True)
class _Given:
    """Arguments of both kernels: the channels, numbers of the op, and buffers."""

    channels: Integer
    alpha: Real
    bias: Real
    buffers: Pointer


class _Writer:
    """Emitter of the kernel for the channels of a pixel, or of several pixels in the lanes."""

    def __init__(self, k: Emitter, given: _Given, unit: int, window: int, beta: float) -> None:
        self.k = k
        self.window = window
        self.beta = beta
        kind = given.buffers.type
        self.channels = given.channels
        self.alpha, self.bias = (k.convert(each, kind) for each in (given.alpha, given.bias))
        buffer_length = (self.channels + window) * unit
        place = given.buffers.at(buffer_length * _BUFFERS * k.part)
        before, after = window // 2, (window - 1) // 2
        self.squares = _Buffer(k, place, unit, before)
        # The channels whose windows hold this one lie mirrored.
        self.others = _Buffer(k, place.at(buffer_length), unit, after)
        self.own = _Buffer(k, place.at(buffer_length * 2), unit, 0)
        self.squares.clear_edges(self.channels, after)
        self.others.clear_edges(self.channels, before)

    def _keep_squares(self, each: Each, x: ClassOperand) -> None:
        for channel, count in each():
            value = x.load(channel, count)
            self.squares.store(channel, value * value)

    def _base(self, channel: RegisterValue, count: int) -> RegisterValue:
        return self.k.fma(self.squares.window(channel, count, self.window), self.alpha, self.bias)

    def forward(self, each: Each, x: ClassOperand, y: ClassOperand) -> None:
        self._keep_squares(each, x)
        for channel, count in each():
            power = _power(self.k, self._base(channel, count), self.beta)
            y.store(channel, x.load(channel, count) * power)

    def backward(self, each: Each, g: ClassOperand, x: ClassOperand, dx: ClassOperand) -> None:
        self._keep_squares(each, x)
        for channel, count in each():
            base = self._base(channel, count)
            own = g.load(channel, count) * _power(self.k, base, self.beta)
            self.own.store(channel, own)
            self.others.store(channel, own * x.load(channel, count) / base)
        for channel, count in each():
            met = self.others.window(channel, count, self.window)
            factor = x.load(channel, count) * (self.alpha * (2.0 * self.beta))
            dx.store(channel, self.own.load(channel, count) - factor * met)

    def run(self, each: Each, operands: list[ClassOperand]) -> None:
        """The gradient has one operand more."""
        if len(operands) == 2:
            self.forward(each, *operands)
        else:
            self.backward(each, *operands)


@native_kernel
def _over_rows(
    k: Emitter, given: _Given, operands: list[ChannelRows], rows: Integer, window: int, beta: float
) -> None:
    """Channels last."""
    writer = _Writer(k, given, 1, window, beta)
    widths = shrinking(line_lanes(given.buffers.type))
    with k.loop(*k.part_range(rows)) as row:
        places = [operand.base.at(row * operand.stride) for operand in operands]
        each = partial(k.vectors, 0, writer.channels, *widths)
        writer.run(each, [ClassOperand(k, place, None, None) for place in places])


@native_kernel
def _over_planes(
    k: Emitter,
    given: _Given,
    operands: list[Images],
    images: Integer,
    pixels: Integer,
    window: int,
    beta: float,
) -> None:
    """Channels first."""
    unit = line_lanes(given.buffers.type)
    writer = _Writer(k, given, unit, window, beta)
    blocks = (pixels + (unit - 1)) // unit

    def each(count: int) -> Iterator[tuple[RegisterValue, int]]:
        with k.loop(0, writer.channels) as channel:
            yield channel, count

    with k.loop(*k.part_range(images * blocks)) as which:
        image, first = which // blocks, which % blocks * unit
        end = k.minimum(first + unit, pixels)
        for pixel, count in k.vectors(first, end, *shrinking(unit)):
            places = [(each.base.at(image * each.image + pixel), each.inner) for each in operands]
            own = [ClassOperand(k, base, step, None) for base, step in places]
            writer.run(partial(each, count), own)


# --- tying them to arrays


def _unit(node: Node) -> int:
    return line_lanes(computed_type(node.outputs[0].dtype.name))


def _buffer(node: Node, unit: int) -> Spec:
    """Return the spec of a worker's buffers."""
    image = node.outputs[0]
    channels = image.shape[1] + node.attrs["window"]
    return Spec((channels * unit * _BUFFERS,), compute_dtype(image.dtype))


def _workspace(node: Node) -> int:
    spec = _buffer(node, _unit(node))
    return workspace_bytes(Spec((thread_count() * spec.size,), spec.dtype))


def _bind(call: Call) -> Runner | None:
    node = call.node
    arrays = [*call.inputs, *call.outputs]
    images, channels, *rest = arrays[-1].shape
    space = tuple(range(2, 2 + len(rest)))
    rows = collapse_axes(arrays, [(0, *space), (1,)])
    by_rows = rows is not None and all(step == 1 or channels == 1 for _, step in rows)
    planes = collapse_axes(arrays, [(0,), (1,), space])
    if not by_rows and (planes is None or any(step != 1 for _, _, step in planes)):
        return None
    spec = _buffer(node, 1 if by_rows else _unit(node))
    scratch = Scratch(call.workspace).rest
    count = scratch.nbytes // spec.nbytes
    attrs = node.attrs
    given: dict[str, Any] = {
        "given": {
            "channels": channels,
            "alpha": attrs["alpha"] / attrs["window"],
            "bias": attrs["k"],
            "buffers": scratch[: count * spec.nbytes].view(spec.dtype),
        },
        "window": attrs["window"],
        "beta": float(attrs["beta"]),
        "parts": min(parts_for(arrays[-1].size, costly=True), count),
    }
    pixels = size(tuple(rest))
    if by_rows:
        assert rows is not None
        pairs = zip(arrays, rows, strict=True)
        operands = [{"base": array, "stride": step} for array, (step, _) in pairs]
        return NativeRunner([_over_rows.call(operands=operands, rows=images * pixels, **given)])
    assert planes is not None
    operands = [
        {"base": array, "image": image, "inner": inner}
        for array, (image, inner, _) in zip(arrays, planes, strict=True)
    ]
    return NativeRunner(
        [_over_planes.call(operands=operands, images=images, pixels=pixels, **given)]
    )


offer(
    ("local_response_norm", "local_response_norm_grad"),
    "native",
    any_layout(_bind),
    workspace=_workspace,
    priority=10,
    in_place=lambda node: True,
)
