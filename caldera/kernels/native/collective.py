"""Collectives: what happens between ranks is the communicator's business."""

from __future__ import annotations

import numpy as np

from caldera.kernels.common.collective import (
    PendingMessage,
    communicator_of,
    dense_workspace,
    packing,
    places,
    starting,
    unused,
    values_of,
)
from caldera.kernels.native.codegen import offer
from caldera.kernels.table import Call, Runner


def _bind_all_sum(call: Call) -> Runner:
    (source,), (target,) = call.inputs, call.outputs
    if call.communicator is None:
        return lambda: np.copyto(target, source)
    communicator = call.communicator.along(call.node.attrs["axis"])
    # A view may be strided, and buffers on the wire are not.
    return lambda: communicator.Allreduce(np.ascontiguousarray(source), target)


def _bind_start(call: Call) -> Runner:
    message, communicator = call.node.attrs["message"], communicator_of(call)
    values, sent = values_of(call), call.outputs[:-1]
    shapes = [value.shape for value in values]
    copies = packing(message, values, sent[0], communicator.rank, call.workspace)
    zeros = unused(message, shapes, sent[0])
    go = starting(message, communicator, shapes, sent)

    def run() -> None:
        for target, source in copies:
            np.copyto(target, source)
        for part in zeros:
            part.fill(0)
        go()

    return run


def _bind_finish(call: Call) -> Runner:
    flight = PendingMessage.of(communicator_of(call), call.node.attrs["message"])
    target = call.outputs[0]
    if np.shares_memory(call.inputs[-2], target):
        return flight.end
    return lambda: np.copyto(target, flight.end())


offer("all_sum", "communicator", _bind_all_sum)
offer("collective_start", "communicator", _bind_start, workspace=dense_workspace, places=places)
offer("collective_finish", "communicator", _bind_finish, in_place=lambda node: True)
offer("turn", "order only", lambda call: lambda: None)
