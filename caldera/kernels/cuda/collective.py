"""Collectives on a card: what happens between ranks is the communicator's business, and it knows
host memory alone. So a value is brought there and back, and the host waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.cuda.copying import copy_calls
from caldera.kernels.cuda.launch import CudaRunner
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.memory.cuda import cupy, launching_stream
from caldera.memory.device_array import DeviceArray, address_of

Array = np.ndarray[Any, np.dtype[Any]]


class _Staged:
    """The sum over the ranks of a dense array, in place."""

    def __init__(self, communicator: Any, there: Array) -> None:
        self._communicator = communicator
        self._there = there
        self._send, self._receive = (_host_memory(there) for _ in range(2))

    def __call__(self) -> None:
        # Waiting for this copy also waits for the last one out of `receive`.
        self._copy(to=self._send, given=self._there)
        self._communicator.Allreduce(self._send, self._receive)
        self._copy(to=self._there, given=self._receive)

    def _copy(self, to: Array, given: Array) -> None:
        if not isinstance(self._there, DeviceArray):
            np.copyto(to, given)
            return
        runtime = cupy().cuda.runtime
        outward = given is self._there
        kind = runtime.memcpyDeviceToHost if outward else runtime.memcpyHostToDevice
        stream = launching_stream()
        runtime.memcpyAsync(address_of(to), address_of(given), to.nbytes, kind, stream)
        if outward:
            runtime.streamSynchronize(stream)


def _host_memory(like: Array) -> Array:
    if not isinstance(like, DeviceArray):
        return np.empty(like.shape, like.dtype)
    memory = cupy().cuda.alloc_pinned_memory(like.nbytes)
    return np.frombuffer(memory, like.dtype, like.size).reshape(like.shape)


def _bind_all_sum(call: Call) -> Runner:
    (source,), (target,) = call.inputs, call.outputs
    if call.communicator is None or target.size == 0:
        return CudaRunner(copy_calls(target, source))
    there = call.workspace[: target.nbytes].view(target.dtype).reshape(target.shape)
    return CudaRunner([
        *copy_calls(there, source), _Staged(call.communicator, there), *copy_calls(target, there),
    ])  # fmt: skip


def _workspace(node: Node) -> int:
    return node.spec.nbytes


TABLE.add(Kernel(
    "all_sum", "cuda", "through the host", _bind_all_sum, workspace=_workspace, capturable=False,
))  # fmt: skip
