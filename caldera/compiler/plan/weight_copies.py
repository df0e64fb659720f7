"""Copies of weights in half precision, which a plan's own updates keep up to date.

Weights also change in other ways: a user assigns them, a checkpoint is loaded, another plan updates
them. Memory counts who asked to write to it, and a device knows whose updates ran last. If either
is not what the plan left behind, the copies are made anew before it runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from caldera.core.graph.node import Spec, Symbol
from caldera.core.memory import DEVICE, MANAGED, Device
from caldera.core.tensor import Tensor
from caldera.core.tensor.dtype import DType

if TYPE_CHECKING:
    from caldera.compiler.plan.plan import Plan


def copy_on(device: Device, symbol: Symbol, dtype: DType) -> Symbol | None:
    """The variable that holds another one in a dtype, shared by all plans of the device; None where
    the host could write to the memory of that one without anybody's knowing."""
    tensor: Tensor = symbol.value
    if device.is_host or tensor.device is not device or tensor.kind not in (DEVICE, MANAGED):
        return None
    key = ("copy", dtype, device)
    known = symbol.dependants.get(key)
    copy = known() if isinstance(known, weakref.ref) else None
    if copy is None:
        name = f"{symbol.name} in {dtype.name}"
        held = Tensor(symbol.spec.shape, dtype=dtype, kind=DEVICE, device=device, name=name)
        copy = Symbol(name, Spec(symbol.spec.shape, dtype), "variable", held)
        # The plans that use it keep it.
        symbol.dependants[key] = weakref.ref(copy)
    assert isinstance(copy, Symbol)
    return copy


class WeightCopies:
    """The copies that a plan reads; `renewal` is a plan that makes all of them anew."""

    def __init__(self, originals: Mapping[Symbol, Symbol], renewal: Plan) -> None:
        self._weights = list(dict.fromkeys(originals.values()))
        self.nbytes = sum(copy.spec.nbytes for copy in originals)
        self._renewal = renewal
        self._seen: tuple[object, int] = (None, 0)
        self._writes: list[int] = []

    def make_ready(self, writer: object) -> None:
        """Renew the copies, unless this writer's updates were the last to change the weights."""
        device = self._renewal.device
        is_own = device.last_writer is writer
        if is_own and self._seen == (device.touched, Symbol.moves):
            return
        if not is_own or self._writes != self._written():
            self._renewal.run()

    def note(self) -> None:
        """Note that all is ready for a run, which keeps the copies up to date."""
        now = (self._renewal.device.touched, Symbol.moves)
        if self._seen != now:
            self._seen, self._writes = now, self._written()

    def _written(self) -> list[int]:
        """Differs when a weight was written, or stands for other memory."""
        return [Symbol.moves, *(symbol.value.memory.writes for symbol in self._weights)]
