"""The memory into which a plan's inputs are fed.

Where the device has memory of its own there are two places for each input, used in turn: while a
step reads one, the batch of the next is on its way to the other, on the stream of copies. The host
waits only before it writes to a place whose last copy has not left yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from caldera.core.graph.memory_format import Order, laid_out, stored_shape
from caldera.core.graph.node import Symbol
from caldera.core.memory import Device, Event
from caldera.core.memory.pool import host_view
from caldera.core.tensor.convert import exactly
from caldera.errors import ConfigError, ShapeError
from caldera.kernels.native.movement import copying


def checked_feeds(feeds: Mapping[str, Any], inputs: Mapping[str, Symbol]) -> dict[str, np.ndarray]:
    """An array for each input, of its dtype and shape; refused before anything has run."""
    if feeds.keys() != inputs.keys():
        keys = [key if isinstance(key, str) else f"a {type(key).__name__}" for key in feeds]
        raise ConfigError.build(
            "run",
            expected=f"a value for each of: {', '.join(inputs) or 'no inputs'}",
            got=", ".join(keys) or "none",
            hint="pass them by name, as in plan.run({'x': array})",
        )
    found = {}
    for name, given in feeds.items():
        spec = inputs[name].spec
        array = found[name] = exactly(given, spec.dtype, f"input {name}")
        if array.shape != spec.shape:
            raise ShapeError.build(
                f"input {name}",
                expected=f"shape {spec.shape}",
                got=f"{array.shape}",
                hint="a plan has one shape; make another input for another one",
            )
    return found


WORTH_SHARING = 1 << 19
"""Bytes of a batch from which on threads share the copy, if it has to lie in another order."""


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    """target = source, both of one dtype. NumPy goes element by element where the two lie in
    different orders; the workers that are called for a large batch then stay for the step."""
    moves = source.nbytes >= WORTH_SHARING and source.flags.aligned
    moves = moves and source.strides != target.strides
    moves = moves and all(step % source.itemsize == 0 for step in source.strides)
    if moves and not np.may_share_memory(target, source):
        copying([(target, source)])()
    else:
        np.copyto(target, source)


class _Place:
    """One place for one input: what the host writes, and what kernels read."""

    def __init__(self, symbol: Symbol, order: Order | None, device: Device) -> None:
        spec, owner = symbol.spec, f"input {symbol.name}"
        stored = stored_shape(spec.shape, order)
        self.written = host_view(device.allocate_host(spec.nbytes, owner), 0, stored, spec.dtype)
        self.written.fill(0)
        self.read = self.written
        if not device.is_host:
            self.block = device.allocate(spec.nbytes, owner)
            self.read = device.array(self.block, 0, stored, spec.dtype)
        # Seen in the input's shape: it may lie in another order.
        self.target = laid_out(self.written, spec.shape, order)
        self.array = laid_out(self.read, spec.shape, order)


class Inputs:
    """All inputs of a plan. `turns` is the number of places, `turn` the one of the next run."""

    def __init__(
        self, symbols: Sequence[Symbol], orders: Mapping[Symbol, Order | None], device: Device
    ) -> None:
        self.by_name = {symbol.name: symbol for symbol in symbols}
        if len(self.by_name) < len(symbols):
            raise ConfigError.build(
                "compile",
                expected="inputs with different names",
                got=", ".join(symbol.name for symbol in symbols),
                hint="rename one of them",
            )
        self._orders = orders
        self._device = device
        self.turns = 1 if device.is_host or not symbols else 2
        self.turn = 0
        self._last = 0
        self._places: list[dict[Symbol, _Place]] = [{} for _ in range(self.turns)]
        # When the last copy to each place has arrived, and when its last reader has ended.
        self._arrived: list[Event | None] = [None] * self.turns
        self._used: list[Event | None] = [None] * self.turns

    @property
    def nbytes(self) -> int:
        """Bytes of all places, on both sides."""
        sides = 1 if self._device.is_host else 2
        # Lists: another thread may be running the plan.
        places = [each for turn in self._places for each in list(turn.values())]
        return sides * sum(each.written.nbytes for each in places)

    def array(self, symbol: Symbol) -> Any:
        """What kernels are given for an input in this turn."""
        return self._place(symbol).array

    def fed(self) -> dict[str, np.ndarray]:
        """What was fed last, by name; zeros before that."""
        return {
            name: self._place(symbol, self._last).target for name, symbol in self.by_name.items()
        }

    def feed(self, feeds: Mapping[str, Any]) -> None:
        """Bring a value for each input to the place of this turn."""
        given = checked_feeds(feeds, self.by_name)
        if not given:
            return
        self._wait_for_copy()
        for name, array in given.items():
            _copy(self._place(self.by_name[name]).target, array)
        self._last = self.turn
        if not self._device.is_host:
            self._send()

    def launched(self) -> None:
        """Note that the work that reads this turn's places has been launched."""
        if self.turns > 1:
            self._used[self.turn] = self._device.stream.record()
            self.turn = (self.turn + 1) % self.turns

    def _place(self, symbol: Symbol, turn: int | None = None) -> _Place:
        """Allocated when first needed: a plan that never runs takes no memory."""
        places = self._places[self.turn if turn is None else turn]
        if symbol not in places:
            places[symbol] = _Place(symbol, self._orders[symbol], self._device)
        return places[symbol]

    def _wait_for_copy(self) -> None:
        """Wait until the host side of this turn has been read."""
        arrived = self._arrived[self.turn]
        if arrived is None:
            return
        try:
            arrived.settle()
        except Exception:
            # Copies wait for kernels and fail with them, and kernels with copies. Somebody is told
            # now; neither stream need say it again.
            for stream in (self._device.stream, self._device.copy_stream):
                with suppress(Exception):
                    stream.synchronize()
            self._arrived = [None] * self.turns
            self._used = [None] * self.turns
            raise

    def _send(self) -> None:
        device, copies = self._device, self._device.copy_stream
        used = self._used[self.turn]
        if used is not None:
            copies.wait(used)
        for place in self._places[self.turn].values():
            device.copy_in(place.block, 0, place.written, copies)
        arrived = copies.record()
        self._arrived[self.turn] = arrived
        device.stream.wait(arrived)
