"""Collectives: what happens between ranks is the communicator's business."""

from __future__ import annotations

import numpy as np

from caldera.kernels.table import TABLE, Call, Kernel, Runner


def _bind_all_sum(call: Call) -> Runner:
    (source,), (target,) = call.inputs, call.outputs
    communicator = call.communicator
    if communicator is None:
        return lambda: np.copyto(target, source)
    # A view may be strided, and buffers on the wire are not.
    return lambda: communicator.Allreduce(np.ascontiguousarray(source), target)


TABLE.add(Kernel("all_sum", "cpu", "communicator", _bind_all_sum))
