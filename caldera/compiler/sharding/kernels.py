"""How the CPU runs the ops of one rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caldera.compiler.sharding.algorithms.halo import halo_exchange
from caldera.compiler.sharding.axis_split import indices
from caldera.compiler.sharding.layout import Layout, Piece
from caldera.compiler.sharding.transfer import redistributed
from caldera.core.tensor.philox import normal, uniform01
from caldera.core.tensor.shape import size
from caldera.kernels.table import TABLE, Call, Kernel, Runner

SHORT_RUN = 1024
"""Numbers in a row that are worth a call of their own."""


def _bind_redistribute(call: Call) -> Runner:
    attrs, given, made = call.node.attrs, call.inputs[0], call.outputs[0]
    straight = made.flags.c_contiguous
    several = call.communicator is not None
    communicator = call.communicator.along(attrs["axis"]) if several else None

    def run() -> None:
        found = redistributed(
            given,
            attrs["source"],
            attrs["target"],
            communicator,
            rank=attrs["rank"],
            dtype=attrs["dtype"],
            terms=attrs["terms"],
            reduce=attrs["reduce"],
            out=made if straight else None,
        )
        if not straight:
            np.copyto(made, found)

    return run


def _bind_random_part(call: Call) -> Runner:
    state, offset = call.inputs
    attrs, (made,) = call.node.attrs, call.outputs

    def run() -> None:
        seed, step = int(state[0]) & (2**64 - 1), int(state[1])

        def numbers(first: int, count: int) -> np.ndarray:
            draw = normal if attrs["normal"] else uniform01
            return draw(seed, step, attrs["stream"], int(offset) + first, count, attrs["dtype"])

        layout: Layout = attrs["layout"]
        found = [_drawn(piece, layout.shape, numbers) for piece in layout.pieces(attrs["rank"])]
        if found:
            np.copyto(made, np.concatenate(found).reshape(made.shape))

    return run


def _drawn(
    piece: Piece, shape: tuple[int, ...], numbers: Callable[[int, int], np.ndarray]
) -> np.ndarray:
    """The numbers of a piece, row by row or from whole stretches where rows are short."""
    if not shape:
        return numbers(0, 1)
    strides = [size(shape[axis + 1 :]) for axis in range(len(shape))]
    # Trailing axes that are all there make longer rows.
    inner = len(shape)
    while inner > 1 and piece.shape[inner - 1] == shape[inner - 1]:
        inner -= 1
    outer = [indices(axis) * stride for axis, stride in zip(piece.axes, strides, strict=True)]
    starts = np.zeros(1, np.int64)
    for each in outer[: inner - 1]:
        starts = (starts[:, None] + each).reshape(-1)
    stride = strides[inner - 1]
    runs = [(begin * stride, end * stride) for begin, end in piece.axes[inner - 1]]
    row = sum(end - begin for begin, end in runs)
    if row >= SHORT_RUN * len(runs) or len(starts) * len(runs) < 8:
        return np.concatenate([numbers(int(s) + b, e - b) for s in starts for b, e in runs])
    inside = np.concatenate([np.arange(begin, end) for begin, end in runs])
    found = np.empty((len(starts), row), numbers(0, 1).dtype)
    whole = strides[inner - 2] if inner > 1 else 0
    most = max(1, (1 << 20) // max(1, whole))
    for first in range(0, len(starts), most):
        block = starts[first : first + most]
        begin, end = int(block[0]), int(block[-1]) + int(inside[-1]) + 1
        if end - begin > 4 * most * max(1, whole):
            for number, start in enumerate(block):
                found[first + number] = numbers(int(start), int(inside[-1]) + 1)[inside]
            continue
        drawn = numbers(begin, end - begin)
        found[first : first + most] = drawn[(block - begin)[:, None] + inside]
    return found.reshape(-1)


def _bind_halo(call: Call) -> Runner:
    attrs, part, made = call.node.attrs, call.inputs[0], call.outputs[0]

    def run() -> None:
        if attrs["rank"] not in attrs["peers"]:
            np.copyto(made, part)
            return
        found = halo_exchange(
            part, attrs["cuts"], attrs["wanted"], attrs["axis"], call.communicator, attrs["peers"]
        )
        np.copyto(made, found)

    return run


TABLE.add(Kernel("halo", "cpu", "messages", _bind_halo, measured=False))
TABLE.add(Kernel("redistribute", "cpu", "messages", _bind_redistribute, measured=False))
TABLE.add(Kernel("random_part", "cpu", "philox", _bind_random_part, measured=False))
