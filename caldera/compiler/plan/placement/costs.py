"""What nodes take on a device, and what it takes to move values between two.

Where kernels of an op were measured on this machine, or the model trained on such measurements can
tell, that counts; elsewhere operations and bytes do, at half of what the device can reach.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

from caldera.base.config import settings
from caldera.compiler.plan.roofline import Peaks, cpu_peaks
from caldera.compiler.plan.step_seconds import CARD, LAUNCH_S, REACHED, link_bandwidth
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, detached
from caldera.core.memory import Device
from caldera.errors import DeviceError
from caldera.kernels.choose import choices

USUAL_CPU = Peaks(float32=1e11, float64=5e10, bfloat16=1e11, bandwidth=2e10)
"""A processor, where nothing may be measured."""
VIEWS = frozenset({"reshape", "broadcast_to", "transpose", "slice"})
"""Ops that usually take no time at all."""
OVERHEAD_S = 2e-6
"""Of a kernel, on any device."""


class Costs(Protocol):
    """What a choice of devices goes by."""

    def seconds(self, node: Node, device: Device) -> float:
        """How long a node takes on a device."""

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        """How long a value takes from one device to another."""


class MeasuredCosts:
    """Times that were measured or learnt on this machine, else what the roofline says."""

    def __init__(self) -> None:
        self.seconds = cache(self._seconds)

    def _seconds(self, node: Node, device: Device) -> float:
        if node.op is ITEM or node.op.kind == "leaf" or node.op.name in VIEWS:
            return 0.0
        try:
            verdict = choices.verdict(detached(node), device.kernels, measure=False)
            known = (verdict.times or {}).get(verdict.kernel.name)
        except DeviceError:
            # An op that passes take apart before it meets a kernel.
            known = None
        return self._estimated(node, device) if known is None else known

    def _estimated(self, node: Node, device: Device) -> float:
        made = sum(spec.nbytes for spec in node.outputs)
        read = sum(spec.nbytes for given in node.inputs for spec in given.outputs)
        # Of a table only those rows are read that are asked for.
        nbytes = 2 * made if node.op.kind == "movement" else made + read
        peaks = CARD
        if device.kernels == "cpu":
            peaks = USUAL_CPU if settings.deterministic else cpu_peaks()
        flops = node.op.count_flops(node)
        return peaks.least_seconds(flops, nbytes, node.outputs[0].dtype) / REACHED + OVERHEAD_S

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        """What was measured between host and device; two devices meet on the host."""
        return sum(
            LAUNCH_S + nbytes / link_bandwidth(device)
            for device in dict.fromkeys((source, target))
            if not device.is_host and source is not target
        )
