"""Local response normalisation and its gradient.

Squares go to a small buffer with zeros for the channels outside, so every window is a few loads at
neighbouring places. Channels last, a vector holds channels of a pixel; channels first, pixels of a
channel. Each worker has buffers of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from caldera.config import settings
from caldera.graph.node import Node, Spec
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.dtypes import ElementPointer, computed_type, stored
from caldera.kernels.native.codegen.emitter import Emitter, Number, Pointer, Value, itemsize
from caldera.kernels.native.codegen.math import exp, log, sqrt
from caldera.kernels.native.codegen.program import NativeRunner, native_call
from caldera.kernels.native.codegen.strides import Strides, any_layout, collapse_axes, parts_for
from caldera.kernels.native.normalisation.statistics import in_powers, line, pairwise
from caldera.kernels.native.softmax.operands import Operand
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.tensor.shape import size

_BUFFERS = 3
"""Squares, what neighbours add, and the channel's own part."""


def _power(k: Emitter, x: Value, beta: float) -> Value:
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

    def clear_edges(self, channels: Value, after: int) -> None:
        """Write the zeros."""
        nbytes = self.unit * itemsize(self.place.type)
        self.k.clear_bytes(self.place, self.before * nbytes)
        end = (channels + self.before) * self.unit
        self.k.clear_bytes(self.place.at(end), after * nbytes)

    def store(self, channel: Value, value: Value) -> None:
        self.place.store((channel + self.before) * self.unit, value)

    def load(self, channel: Value, count: int) -> Value:
        return self.place.load((channel + self.before) * self.unit, count)

    def window(self, channel: Value, count: int, length: int) -> Value:
        """The sum over `length` channels from `before` below on."""
        terms = [self.place.load((channel + i) * self.unit, count) for i in range(length)]
        return pairwise(terms)


Each = Callable[[Callable[[Value, int], None]], None]
"""Runs a body for all channels: (channel, lanes)."""


class _Writer:
    """Writes the kernel for the channels of one pixel, or of several in the lanes."""

    def __init__(self, k: Emitter, kind: ir.Type, unit: int, window: int, beta: float) -> None:
        self.k = k
        self.window = window
        self.beta = beta
        self.channels, self.alpha, self.bias = k.integer(0), k.number(1, kind), k.number(2, kind)
        room = (self.channels + window) * unit
        place = k.pointer(3, kind).at(room * _BUFFERS * k.part)
        before, after = window // 2, (window - 1) // 2
        self.squares = _Buffer(k, place, unit, before)
        # The channels whose windows hold this one lie mirrored.
        self.others = _Buffer(k, place.at(room), unit, after)
        self.own = _Buffer(k, place.at(room * 2), unit, 0)
        self.squares.clear_edges(self.channels, after)
        self.others.clear_edges(self.channels, before)

    def _keep_squares(self, each: Each, x: Operand) -> None:
        def keep(channel: Value, count: int) -> None:
            value = x.load(channel, count)
            self.squares.store(channel, value * value)

        each(keep)

    def _base(self, channel: Value, count: int) -> Value:
        total = self.squares.window(channel, count, self.window)
        return self.k.fma(total, self.alpha, self.bias)

    def forward(self, each: Each, x: Operand, y: Operand) -> None:
        self._keep_squares(each, x)

        def finish(channel: Value, count: int) -> None:
            power = _power(self.k, self._base(channel, count), self.beta)
            y.store(channel, x.load(channel, count) * power)

        each(finish)

    def backward(self, each: Each, g: Operand, x: Operand, dx: Operand) -> None:
        self._keep_squares(each, x)

        def prepare(channel: Value, count: int) -> None:
            base = self._base(channel, count)
            own = g.load(channel, count) * _power(self.k, base, self.beta)
            self.own.store(channel, own)
            self.others.store(channel, own * x.load(channel, count) / base)

        def finish(channel: Value, count: int) -> None:
            met = self.others.window(channel, count, self.window)
            factor = x.load(channel, count) * (self.alpha * (2.0 * self.beta))
            dx.store(channel, self.own.load(channel, count) - factor * met)

        each(prepare)
        each(finish)

    def run(self, each: Each, operands: list[Operand]) -> None:
        """The gradient has one operand more."""
        if len(operands) == 2:
            self.forward(each, *operands)
        else:
            self.backward(each, *operands)


def _build_last(k: Emitter, name: str, operands: int, window: int, beta: float) -> None:
    kind = computed_type(name)
    writer = _Writer(k, kind, 1, window, beta)
    places = [(stored(k, 5 + 2 * i, name), k.integer(6 + 2 * i)) for i in range(operands)]

    def each(body: Callable[[Value, int], None]) -> None:
        in_powers(k, 0, writer.channels, line(kind), body)

    with k.loop(*k.share(k.integer(4))) as row:
        writer.run(each, [Operand(k, base.at(row * step), None, None) for base, step in places])


def _build_first(k: Emitter, name: str, operands: int, window: int, beta: float) -> None:
    kind = computed_type(name)
    unit = line(kind)
    writer = _Writer(k, kind, unit, window, beta)
    images, pixels = k.integer(4), k.integer(5)
    places = [
        (stored(k, 6 + 3 * i, name), k.integer(7 + 3 * i), k.integer(8 + 3 * i))
        for i in range(operands)
    ]
    blocks = (pixels + (unit - 1)) // unit

    def write(image: Value, pixel: Value, count: int) -> None:
        def each(body: Callable[[Value, int], None]) -> None:
            with k.loop(0, writer.channels) as channel:
                body(channel, count)

        def operand(base: ElementPointer, far: Number, step: Value) -> Operand:
            return Operand(k, base.at(image * far + pixel), step, None)

        writer.run(each, [operand(*place) for place in places])

    with k.loop(*k.share(images * blocks)) as which:
        image, first = which // blocks, which % blocks * unit
        end = k.minimum(first + unit, pixels)
        in_powers(k, first, end, unit, lambda pixel, count: write(image, pixel, count))


# --- tying them to arrays


def _unit(node: Node) -> int:
    return line(computed_type(node.outputs[0].dtype.name))


def _buffer(node: Node, unit: int) -> Spec:
    """The buffers of one worker."""
    image = node.outputs[0]
    channels = image.shape[1] + node.attrs["window"]
    return Spec((channels * unit * _BUFFERS,), compute_dtype(image.dtype))


def _workspace(node: Node) -> int:
    spec = _buffer(node, _unit(node))
    return workspace_bytes(Spec((settings.threads * spec.size,), spec.dtype))


def _bind(call: Call) -> Runner | None:
    node = call.node
    arrays = [*call.inputs, *call.outputs]
    images, channels, *rest = arrays[-1].shape
    space = tuple(range(2, 2 + len(rest)))
    pixels = size(tuple(rest))
    rows = collapse_axes(arrays, [(0, *space), (1,)])
    build, unit = _build_last, 1
    slots: list[Array | int]
    if rows is not None and all(step == 1 or channels == 1 for _, step in rows):
        slots = [images * pixels, *_with(arrays, [each[:1] for each in rows])]
    else:
        planes = collapse_axes(arrays, [(0,), (1,), space])
        if planes is None or any(step != 1 for _, _, step in planes):
            return None
        build, unit = _build_first, _unit(node)
        slots = [images, pixels, *_with(arrays, [each[:2] for each in planes])]
    attrs = node.attrs
    address = compiled(
        build, name=arrays[-1].dtype.name, operands=len(arrays), window=attrs["window"],
        beta=float(attrs["beta"]),
    )  # fmt: skip
    spec = _buffer(node, unit)
    buffers = Scratch(call.workspace).rest
    parts = min(parts_for(arrays[-1].size, costly=True), buffers.nbytes // spec.nbytes)
    alpha = attrs["alpha"] / attrs["window"]
    return NativeRunner([native_call(
        address, channels, float(alpha), float(attrs["k"]), buffers, *slots, parts=parts,
    )])  # fmt: skip


def _with(arrays: list[Array], strides: list[Strides]) -> list[Array | int]:
    slots: list[Array | int] = []
    for array, steps in zip(arrays, strides, strict=True):
        slots += [array, *steps]
    return slots


for _op in ("local_response_norm", "local_response_norm_grad"):
    TABLE.add(
        Kernel(
            _op, "cpu", "native", any_layout(_bind), workspace=_workspace, priority=10,
            in_place=lambda node: True,
        )
    )  # fmt: skip
