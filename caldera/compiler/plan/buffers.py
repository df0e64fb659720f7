"""Input and output buffers of a plan.

On a device with separate memory each input has two buffers, used alternately: while a step reads
one, the next batch is copied to the second buffer on the copy stream. The host waits only before it
writes to a buffer with an unfinished copy.

A result belongs to its holder, so it is never in the arena. The first result is written to memory
that is then returned to the caller. Once it is released, the plan writes the next result to the
same memory, without allocating or binding again. If a result is still held when the next run
begins, outputs no longer have the bound addresses. Before each run, native calls then receive new
addresses (`relocation`), and the output of other calls is copied out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import shown
from caldera.core.graph import Order, Spec, Symbol, laid_out, stored_shape
from caldera.core.memory import MANAGED, Device, Event, MemoryManager, host_view
from caldera.core.tensor import Tensor, exactly
from caldera.core.tensor.shape import StridedView, row_major_strides
from caldera.errors import ConfigError, ShapeError
from caldera.kernels.native.movement import copying

if TYPE_CHECKING:
    from caldera.compiler.plan.binding import Patch


def checked_feeds(feeds: Mapping[str, Any], inputs: Mapping[str, Symbol]) -> dict[str, np.ndarray]:
    """Return an array for each input, of its dtype and shape; refused before anything has run."""
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


def check_feeds(feeds: object) -> None:
    """Raise if feeds are no mapping."""
    if feeds is not None and not isinstance(feeds, Mapping):
        expected = "feeds= a dict of arrays by the names of inputs"
        raise ConfigError.build("Plan.run", expected=expected, got=shown(feeds))


WORTH_SHARING = 1 << 19
"""Minimum bytes of a batch for which threads share a copy with a change of layout."""


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `target`, which have the same dtype.

    NumPy copies element by element if the layouts differ. The workers called for a large batch then
    stay for the step.
    """
    moves = source.nbytes >= WORTH_SHARING and source.flags.aligned
    moves = moves and source.strides != target.strides
    moves = moves and all(step % source.itemsize == 0 for step in source.strides)
    if moves and not np.may_share_memory(target, source):
        copying([(target, source)])()
    else:
        np.copyto(target, source)


class _Place:
    """Memory for one input: the array that the host writes, and the array that kernels read."""

    def __init__(self, symbol: Symbol, order: Order | None, device: Device) -> None:
        spec, owner = symbol.spec, f"input {symbol.name}"
        stored = stored_shape(spec.shape, order)
        self.written = host_view(device.allocate_host(spec.nbytes, owner), 0, stored, spec.dtype)
        self.written.fill(0)
        self.read = self.written
        if not device.is_host:
            self.block = device.allocate(spec.nbytes, owner)
            self.read = device.array(self.block, 0, stored, spec.dtype)
        # Views in the input's shape; the memory layout may differ.
        self.target = laid_out(self.written, spec.shape, order)
        self.array = laid_out(self.read, spec.shape, order)


class Inputs:
    """All inputs of a plan. `turns` is the number of buffers per input, `turn` the next to use."""

    def __init__(
        self, symbols: Sequence[Symbol], orders: Mapping[Symbol, Order | None], device: Device
    ) -> None:
        self.by_name = {symbol.name: symbol for symbol in symbols}
        if len(self.by_name) < len(symbols):
            raise ConfigError.build(
                "compile",
                expected="inputs with different names",
                got=", ".join(symbol.name for symbol in symbols),
                hint="rename one",
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
        """Return the array that kernels read for an input in this turn."""
        return self._place(symbol).array

    def fed(self) -> dict[str, np.ndarray]:
        """Return the last inputs by name; zeros before the first."""
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
            # Copies wait for kernels and fail with them, and kernels with copies. The error is
            # raised here, and suppressed on both streams.
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


MOST_KEPT = 4 << 20
"""Bytes of results a plan may hold on to between runs, to write the next ones to the same place."""


class ResultMemory:
    """Memory for a result; its references reveal whether the result is still in use."""

    def __init__(self, spec: Spec, device: Device) -> None:
        self.memory = MemoryManager(spec.size, spec.dtype, MANAGED, device, owner="results")
        self.flat = self.memory.on_device(write=True, discard=True)
        self.settle()

    def settle(self) -> None:
        """Record the number of internal references, to distinguish them from a user's."""
        self._references = (sys.getrefcount(self.memory), sys.getrefcount(self.flat))

    def is_held(self) -> bool:
        """Return True if a user refers to the memory or to its array."""
        return (sys.getrefcount(self.memory), sys.getrefcount(self.flat)) != self._references


class OutputSlot:
    """Memory for one output of a plan; `is_copied` if results are copied from this memory."""

    def __init__(self, spec: Spec, device: Device) -> None:
        self.spec = spec
        self.is_copied = False
        self._device, self._is_on_host = device, device.is_host
        # Of an empty result, overwriting cannot be observed.
        self._is_trivial = spec.size == 0
        self._layout = StridedView(spec.shape, row_major_strides(spec.shape), 0)
        self._now: ResultMemory | None = None
        # A caller that assigns each result to the same name holds the last one during the next run.
        self._before: ResultMemory | None = None

    @property
    def is_empty(self) -> bool:
        """True if it has no memory."""
        return self._now is None

    @property
    def nbytes(self) -> int:
        """Bytes of the memory it holds on to."""
        return sum(each.memory.nbytes for each in (self._now, self._before) if each is not None)

    @property
    def address(self) -> int:
        """Start address of the memory."""
        assert self._now is not None
        return self._now.memory.address

    def is_held(self) -> bool:
        """Return True if the memory may still be in use outside the plan."""
        if self._now is None or self.is_copied or self._is_trivial:
            return False
        # Readers of a result's host side on another device cannot be counted here.
        return not self._is_on_host or self._now.is_held()

    def renew(self) -> None:
        """Take other memory for the next result; the one before the last is reused if free."""
        before, self._before = self._before, self._now
        is_free = before is not None and self._is_on_host and not before.is_held()
        self._now = before if is_free else ResultMemory(self.spec, self._device)

    def release(self) -> None:
        """Drop the references to memory, which then belongs only to results."""
        self._now = self._before = None

    def array(self) -> Any:
        """Return the memory as an array for kernels."""
        assert self._now is not None
        return laid_out(self._now.flat, self.spec.shape, self.spec.order)

    def settle(self) -> None:
        """Record the number of references from bound calls."""
        if self._now is not None:
            self._now.settle()

    def tensor(self) -> Tensor:
        """Return the result that was just written."""
        assert self._now is not None
        result = self._now.memory
        if not self._is_on_host:
            result.on_device(write=True, discard=True)
        if self.is_copied:
            written, result = result, ResultMemory(self.spec, self._device).memory
            result.copy_from(written)
        return Tensor._over(result, self._layout, self.spec.dtype)


class Outputs:
    """All outputs of a plan. `are_movable` once calls are no longer bound to output addresses."""

    def __init__(self, specs: Sequence[Spec], device: Device) -> None:
        self.slots = [OutputSlot(spec, device) for spec in specs]
        self.are_movable = False
        self._device = device
        self.are_large = sum(spec.nbytes for spec in specs) > MOST_KEPT

    @property
    def nbytes(self) -> int:
        """Bytes retained between runs."""
        return sum(slot.nbytes for slot in self.slots)

    @property
    def are_held(self) -> bool:
        """True if a result is still in use."""
        return any(slot.is_held() for slot in self.slots)

    def must_move(self) -> bool:
        """Return True if a run would overwrite results still in use, and make outputs movable."""
        if self.are_movable or not self.are_held:
            return False
        self.make_movable()
        return True

    def make_movable(self) -> None:
        """Write results to separate memory from now on; all calls must be bound again."""
        self.are_movable = True
        for slot in self.slots:
            slot.release()
            # Launched calls may still be queued on a device, and must not be changed.
            slot.is_copied = not self._device.is_host

    def release_movable(self) -> None:
        """Release the memory of outputs that are not copied: their next results get new memory."""
        for slot in self.slots:
            if not slot.is_copied:
                slot.release()

    def keep(self) -> None:
        """Return results as copies from now on; calls must be bound again.

        The output memory is then fixed.
        """
        self.are_movable = True
        for slot in self.slots:
            slot.is_copied = True
            slot.renew()

    def allocate(self) -> None:
        """Allocate memory for the outputs that calls are bound to."""
        for slot in self.slots:
            if slot.is_empty:
                slot.renew()

    def settle(self) -> None:
        """Record the number of references from bound calls."""
        for slot in self.slots:
            slot.settle()

    def move(self, patches: Sequence[Sequence[Patch]]) -> None:
        """Allocate new memory where the last result is in use, and patch the calls by slot."""
        for slot, places in zip(self.slots, patches, strict=True):
            if slot.is_held() or (slot.is_empty and not slot.is_copied):
                slot.renew()
                address = slot.address
                for slots, position, offset in places:
                    slots[position] = address + offset

    def results(self) -> list[Tensor]:
        """Return the results of the last run."""
        return [slot.tensor() for slot in self.slots]

    def release(self) -> bool:
        """Drop results that are too large to keep; return True if calls must be bound again."""
        # Plans are remembered; large results must not be remembered with them.
        if not self.are_large:
            return False
        if not self.are_movable:
            self.make_movable()
            return True
        self.release_movable()
        return False
