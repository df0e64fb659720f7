"""Complex numbers written from their parts; all else about them is done by real kernels."""

from __future__ import annotations

from caldera.core.graph.memory_format import as_pairs
from caldera.kernels.native.movement import copying
from caldera.kernels.table import TABLE, Call, Kernel, Runner


def _bind_complex(call: Call) -> Runner:
    pairs = as_pairs(call.outputs[0])
    return copying([(pairs[..., which], part) for which, part in enumerate(call.inputs)])


TABLE.add(Kernel("complex", "cpu", "native", _bind_complex, priority=10))
