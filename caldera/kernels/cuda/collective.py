"""Collectives on a GPU.

NCCL and a GPU-aware MPI work on GPU memory; with NCCL the host and the kernels wait as late as
possible. Other communicators receive values through pinned host memory. While a message is in
transit, GPU and host continue to compute and wait only where the value is needed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.core.graph.ops.collective import Message
from caldera.core.memory.cuda import launching_stream
from caldera.core.memory.gpus import cupy
from caldera.core.memory.software import DeviceArray, address_of
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
from caldera.kernels.cuda.codegen.kernel import Array, CudaRunner
from caldera.kernels.cuda.movement import copy_calls
from caldera.kernels.table import TABLE, Call, Kernel, Runner


class _Staged:
    """Host memory for a dense array on a GPU, and the copies between them."""

    def __init__(self, there: Array) -> None:
        self._there = there
        self.here = _host_memory(there)
        self._event: Any = None

    def out(self) -> None:
        """Start the copy to the host, after all work that was queued on the GPU."""
        if not isinstance(self._there, DeviceArray):
            np.copyto(self.here, self._there)
            return
        runtime, stream = cupy().cuda.runtime, launching_stream()
        _copy(self.here, self._there, runtime.memcpyDeviceToHost)
        if self._event is None:
            self._event = cupy().cuda.Event(disable_timing=True)
        runtime.eventRecord(self._event.ptr, stream)

    def ready(self) -> None:
        """Wait until it has been copied."""
        if self._event is not None:
            self._event.synchronize()


def _copy(to: Array, given: Array, kind: int) -> None:
    stream = launching_stream()
    cupy().cuda.runtime.memcpyAsync(address_of(to), address_of(given), to.nbytes, kind, stream)


def _back(target: Array, received: Array) -> None:
    """Start the copy to the GPU."""
    if not isinstance(target, DeviceArray):
        np.copyto(target, received)
        return
    _copy(target, received, cupy().cuda.runtime.memcpyHostToDevice)


def _zero(part: Array) -> None:
    """Start to set an array with dense rows to 0."""
    if not isinstance(part, DeviceArray):
        part.fill(0)
        return
    runtime, stream = cupy().cuda.runtime, launching_stream()
    rows = part.reshape(1, -1) if part.ndim == 1 else part
    for row in rows:
        runtime.memsetAsync(address_of(row), 0, row.nbytes, stream)


def _host_memory(like: Array) -> Array:
    if not isinstance(like, DeviceArray):
        return np.empty(like.shape, like.dtype)
    memory = cupy().cuda.alloc_pinned_memory(max(like.nbytes, 1))
    return np.frombuffer(memory, like.dtype, like.size).reshape(like.shape)


def _between_cards(communicator: Communicator, message: Message) -> bool:
    """Return True if a message is sent directly from GPU to GPU."""
    plain = message.leaves is None and message.exchange is None
    return plain and communicator.gpu_aware


def _bind_start(call: Call) -> Runner:
    message, communicator = call.node.attrs["message"], communicator_of(call)
    values, sent = values_of(call), call.outputs[:-1]
    shapes = [value.shape for value in values]
    pairs = packing(message, values, sent[0], communicator.rank, call.workspace)
    calls: list[Any] = [launch for pair in pairs for launch in copy_calls(*pair)]
    calls += [partial(_zero, part) for part in unused(message, shapes, sent[0])]
    if _between_cards(communicator, message):
        return CudaRunner([*calls, starting(message, communicator, shapes, sent)])
    staged = [_Staged(place) for place in sent]
    here = [each.here for each in staged]
    if message.kind == "receive":
        return CudaRunner([starting(message, communicator, shapes, here)])
    go = starting(message, communicator, shapes, here, staged[0].ready)
    return CudaRunner([*calls, staged[0].out, go])


def _bind_finish(call: Call) -> Runner:
    message, communicator = call.node.attrs["message"], communicator_of(call)
    flight, source, target = (
        PendingMessage.of(communicator, message),
        call.inputs[-2],
        call.outputs[0],
    )
    if not _between_cards(communicator, message):
        return CudaRunner([lambda: _back(target, flight.end())])
    moved = address_of(source) != address_of(target)
    return CudaRunner([flight.end, *(copy_calls(target, source) if moved else ())])


def _bind_all_sum(call: Call) -> Runner:
    (source,), (target,) = call.inputs, call.outputs
    if call.communicator is None or target.size == 0:
        return CudaRunner(copy_calls(target, source))
    there = call.workspace[: target.nbytes].view(target.dtype).reshape(target.shape)
    communicator = call.communicator.along(call.node.attrs["axis"])
    # Staged through the host by communicators without access to the GPU.
    add_up = partial(communicator.Allreduce, there, there)
    return CudaRunner([*copy_calls(there, source), add_up, *copy_calls(target, there)])


_HOW = "through the host"
TABLE.add(
    Kernel(
        "all_sum",
        "cuda",
        _HOW,
        _bind_all_sum,
        workspace=lambda node: node.spec.nbytes,
        capturable=False,
    )
)
TABLE.add(
    Kernel(
        "collective_start",
        "cuda",
        _HOW,
        _bind_start,
        workspace=dense_workspace,
        places=places,
        capturable=False,
    )
)
TABLE.add(
    Kernel(
        "collective_finish",
        "cuda",
        _HOW,
        _bind_finish,
        in_place=lambda node: True,
        capturable=False,
    )
)
TABLE.add(Kernel("turn", "cuda", "order only", lambda call: CudaRunner([])))
