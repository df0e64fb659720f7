"""Operands of a plan as device arrays, and half-precision weight copies.

The plan's own updates keep the copies current. Weights also change otherwise: by assignment, a
loaded checkpoint or another plan. Memory counts the requests to write to it, and a device records
the plan whose updates ran last. If either differs from the state the plan left, the copies are
remade before it runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from caldera.compiler.plan.buffers import Inputs
from caldera.compiler.plan.schedule import StepSchedule
from caldera.core.graph import Node, Order, Program, Spec, Symbol, laid_out
from caldera.core.memory import DEVICE, HOST, MANAGED, Device
from caldera.core.tensor import DType, Tensor
from caldera.errors import DeviceError
from caldera.kernels.reference import evaluate

if TYPE_CHECKING:
    from caldera.compiler.plan.plan import Plan


T = TypeVar("T")


class Operands:
    """Variables and tensors in any memory, and the plan's inputs and constants."""

    def __init__(self, program: Program, schedule: StepSchedule, device: Device) -> None:
        self._device = device
        self._orders: dict[Symbol, Order | None] = {
            b.key: b.spec.order for b in schedule.buffers if isinstance(b.key, Symbol)
        }
        self.symbols = sorted(self._orders, key=lambda symbol: symbol.serial)
        self.updated = [symbol for symbol, _ in program.updates]
        fed = [symbol for symbol in self.symbols if symbol.role == "input"]
        self.inputs = Inputs(fed, self._orders, device)
        self._others = [symbol for symbol in self.symbols if symbol.role != "input"]
        self._read = {each.attrs.get("symbol") for each in program.order()}
        # Constant arrays without memory on the device are stored there.
        self._held: dict[Symbol, Tensor] = {
            symbol: _shared(symbol, ("constant", device), partial(symbol.value.to, device, MANAGED))
            for symbol in self._others
            if symbol.role == "array" and not can_reach(device, symbol.value)
        }
        self._constants: dict[Node, Any] = {}
        self._ready: object = None
        self._rebinds = Symbol.rebinds
        # A host plan reads and writes the host's side of data that belonged to a device when the
        # plan was compiled.
        self._foreign: set[Symbol] | None = None
        self._check()

    @property
    def nbytes(self) -> int:
        """Bytes of the plan's inputs, constants and arrays."""
        kept = [*self._held.values(), *list(self._constants.values())]
        return self.inputs.nbytes + sum(each.nbytes for each in kept)

    @property
    def foreign(self) -> set[Symbol]:
        """Data of other devices, of which a host plan uses the host's side."""
        return self._foreign or set()

    @property
    def are_stale(self) -> bool:
        """True if variables have moved since arrays were last requested."""
        return self._rebinds != Symbol.rebinds

    def renew(self) -> None:
        """Take note of where variables are now."""
        self._check()
        self._ready, self._rebinds = None, Symbol.rebinds

    def make_ready(self) -> None:
        """Move all operands of a run to the device, and mark the ones it writes."""
        if self._device.is_host:
            self._make_ready_on_host()
            return
        touched = self._device.touched
        # Between consecutive steps without other activity on the device, no check is necessary.
        if self._ready is touched:
            return
        for symbol in self._others:
            self._tensor(symbol).memory.on_device()
        for symbol in self.updated:
            symbol.value.memory.on_device(write=True)
        self._ready = touched

    def _make_ready_on_host(self) -> None:
        """Update the host side of variables that belong to another device."""
        updated = set(self.updated)
        for symbol in self.foreign:
            written = symbol in updated
            self._tensor(symbol).host_array(written, written and symbol not in self._read)

    def array(self, symbol: Symbol) -> Any:
        """Return the array that kernels read for a symbol."""
        if symbol.role == "input":
            return self.inputs.array(symbol)
        tensor = self._tensor(symbol)
        on_host = tensor.kind is HOST or symbol in self.foreign
        array = tensor.host_array() if on_host else tensor.device_array()
        order = self._orders[symbol]
        return array if order is None else laid_out(array, symbol.spec.shape, order)

    def constant(self, node: Node) -> Any:
        """Return the array of a constant, put on the device once."""
        if node not in self._constants:
            (value,) = evaluate(node, ())
            self._constants[node] = Tensor.from_numpy(value, device=self._device).device_array()
        return self._constants[node]

    def _tensor(self, symbol: Symbol) -> Tensor:
        held = self._held.get(symbol)
        return symbol.value if held is None else held

    def _check(self) -> None:
        tensors = {symbol: self._tensor(symbol) for symbol in self._others}
        foreign = {
            symbol
            for symbol, tensor in tensors.items()
            if self._device.is_host and not tensor.device.is_host
        }
        if self._foreign is None:
            self._foreign = foreign
        for symbol, tensor in tensors.items():
            # Data that has moved away is no longer in the memory that the plan was compiled for.
            moved = symbol in foreign and symbol not in self._foreign
            if moved or not can_reach(self._device, tensor):
                raise DeviceError.build(
                    f"{symbol.role} {symbol.name}".strip(),
                    expected=f"memory that {self._device.name} can read",
                    got=f"{tensor.kind.name} memory on {tensor.device.name}",
                    hint=f"move it with .to(device={self._device.name!r})",
                )


def _shared(symbol: Symbol, key: Hashable, make: Callable[[], T]) -> T:
    """Return a value shared under a key by all plans that read a symbol and keep it alive."""
    known = symbol.users.get(key)
    found = known() if isinstance(known, weakref.ref) else None
    if found is None:
        found = make()
        symbol.users[key] = weakref.ref(found)
    return found


def can_reach(device: Device, tensor: Tensor) -> bool:
    """Return True if kernels of a device can use the tensor in its present memory."""
    if device.is_host:
        return tensor.device.is_host or tensor.kind in (HOST, MANAGED)
    return tensor.device is device and tensor.kind is not HOST


def copy_on(device: Device, symbol: Symbol, dtype: DType) -> Symbol | None:
    """Return the variable with a copy in another dtype, shared by all plans of the device.

    Return None where the host could write to the original's memory unnoticed.
    """
    tensor: Tensor = symbol.value
    if device.is_host or tensor.device is not device or tensor.kind not in (DEVICE, MANAGED):
        return None

    def copy() -> Symbol:
        name = f"{symbol.name} in {dtype.name}"
        held = Tensor(symbol.spec.shape, dtype=dtype, kind=DEVICE, device=device, name=name)
        return Symbol(name, Spec(symbol.spec.shape, dtype), "variable", held)

    return _shared(symbol, ("copy", dtype, device), copy)


class WeightCopies:
    """Half-precision copies that a plan reads; `renewal` is a plan that recomputes all copies."""

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
        if is_own and self._seen == (device.touched, Symbol.rebinds):
            return
        if not is_own or self._writes != self._written():
            self._renewal.run()

    def note(self) -> None:
        """Note that all is ready for a run, which keeps the copies up to date."""
        now = (self._renewal.device.touched, Symbol.rebinds)
        if self._seen != now:
            self._seen, self._writes = now, self._written()

    def _written(self) -> list[int]:
        """Return a state that changes when a weight is written, or is bound to other memory."""
        return [Symbol.rebinds, *(symbol.value.memory.writes for symbol in self._weights)]
