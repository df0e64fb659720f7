"""A plan: a program scheduled for one device, bound to memory, ready to run again and again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from caldera.errors import ConfigError, DeviceError, ShapeError
from caldera.graph.node import Node, Symbol
from caldera.graph.order import Order, laid_out, stored_shape
from caldera.graph.picture import save
from caldera.graph.program import Program
from caldera.kernels.cpu.blas import one_thread
from caldera.kernels.native.program import joined_runs
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Kernel, Runner
from caldera.memory import HOST, MANAGED, Block, Device
from caldera.memory.interface import CapturedGraph
from caldera.plan.explain import Explanation, explained, fastest
from caldera.plan.loop import loop_kernel
from caldera.plan.outputs import OutputSlot
from caldera.plan.profile import seconds_of_calls
from caldera.plan.roofline import cpu_peaks_at_least
from caldera.plan.schedule import Buffer, Chooser, Root, Schedule
from caldera.tensor import Tensor
from caldera.tensor.convert import exactly

MOST_KEPT = 4 << 20
"""Bytes of results a plan may hold on to between runs, to write the next ones to the same place."""


class SharedArena:
    """The block that plans of one thread on one device use one after the other."""

    _of_thread = threading.local()

    def __init__(self, device: Device) -> None:
        self._device = device
        self.block: Block | None = None

    @classmethod
    def of(cls, device: Device) -> SharedArena:
        """The arena of a device for the calling thread."""
        arenas: dict[Device, SharedArena] = cls._of_thread.__dict__.setdefault("arenas", {})
        if device not in arenas:
            arenas[device] = cls(device)
        return arenas[device]

    def at_least(self, nbytes: int) -> Block:
        """The block, replaced by a larger one if it is too small."""
        if self.block is None or self.block.nbytes < nbytes:
            self.block = self._device.allocate(nbytes, owner="arena")
        return self.block


class Plan:
    """Kernel calls over planned memory. Made by `cd.compile`; `run()` gives the outputs.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (3,), fill=cd.constant(2.0))
    >>> plan = cd.compile([x * x, op.assign(x, x + 1.0)])
    >>> plan.run()[0].tolist()
    [4.0, 4.0, 4.0]
    >>> plan.run()[0].tolist()
    [9.0, 9.0, 9.0]
    """

    def __init__(
        self,
        original: Program,
        optimised: Program,
        device: Device,
        choose: Chooser,
        *,
        in_place: bool = True,
        communicator: Any = None,
    ) -> None:
        self.original = original
        self.optimised = optimised
        self.device = device
        self._communicator = communicator
        self._choose_simple = choose
        self._in_place = in_place
        self._constants: dict[Node, Any] = {}
        roots = [Root(node, ("output", i)) for i, node in enumerate(optimised.outputs)]
        roots += [Root(node, symbol, overwrites=True) for symbol, node in optimised.updates]
        self.schedule = Schedule(roots, self._choose, _symbol_of, in_place)
        self._updated = [symbol for symbol, _ in optimised.updates]
        self._orders: dict[Symbol, Order | None] = {
            b.key: b.spec.order for b in self.schedule.buffers if isinstance(b.key, Symbol)
        }
        self._symbols = sorted(self._orders, key=lambda symbol: symbol.serial)
        self._inputs = _by_name([symbol for symbol in self._symbols if symbol.role == "input"])
        # Inputs and constant arrays have no place of their own: the plan keeps them on its device.
        self._held: dict[Symbol, Tensor] = {}
        for symbol in self._symbols:
            if symbol.role == "input":
                spec = symbol.spec
                self._held[symbol] = Tensor(
                    stored_shape(spec.shape, self._orders[symbol]),
                    dtype=spec.dtype,
                    device=device,
                    name=f"input {symbol.name}",
                )
            elif symbol.role == "array" and not self._reaches(symbol.value):
                self._held[symbol] = symbol.value.to(device=device, kind=MANAGED)
        self._slots = [OutputSlot(node.spec, device) for node in optimised.outputs]
        # Plans are remembered; large results must not be remembered with them.
        self._lets_go = sum(node.spec.nbytes for node in optimised.outputs) > MOST_KEPT
        self._lock = threading.RLock()
        self._block: Block | None = None
        self._steps: list[Runner] = []
        self._calls: list[Runner] = []
        self._captured: CapturedGraph | None = None
        self._check_symbols()

    # --- facts

    @property
    def arena_bytes(self) -> int:
        """Bytes of the planned arena."""
        return self.schedule.arena_bytes

    @property
    def naive_bytes(self) -> int:
        """Bytes the intermediate values would take if each had memory of its own."""
        return self.schedule.naive_bytes

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs a run has to be given."""
        return list(self._inputs)

    @property
    def symbols(self) -> list[Symbol]:
        """The variables, tensors and inputs that a run reads or updates."""
        return list(self._symbols)

    def draw(self, path: str | PathLike[str]) -> Path:
        """Write an SVG that shows the graph as it was written and as it runs, side by side.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (3,), fill=cd.constant(2.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cd.compile([x * x]).draw(Path(folder) / "graph.svg").name
        'graph.svg'
        """
        return save(path, {"as written": self.original, "as it runs": self.optimised})

    def explain(self, feeds: Mapping[str, Any] | None = None, *, time: bool = True) -> Explanation:
        """Print a table of the steps: kernels, shapes, bytes, operations, times; and give it back.

        The times come from complete runs, after which the variables have their values again.
        Inputs keep what they were last fed unless `feeds` has something else. On several ranks
        all of them must call this. `time=False` runs nothing.

        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (2, 3), fill=cd.constant(2.0))
        >>> explanation = cd.compile([op.exp(x)]).explain(time=False)  # doctest: +ELLIPSIS
        step  op ...
        >>> explanation.rows[0].op, explanation.rows[0].nbytes
        ('exp', 48)
        """
        seconds = self._seconds(feeds) if time else None
        peaks = None
        if seconds is not None and self.device.kernels == "cpu":
            peaks = cpu_peaks_at_least(fastest(self.schedule, seconds))
        found = explained(self.schedule, self.original, self.optimised, self.device, seconds, peaks)
        print(found)
        return found

    def _seconds(self, feeds: Mapping[str, Any] | None) -> list[float]:
        """The time of each call; no run changes what the variables hold."""
        with self._lock:
            given = feeds
            if given is None:
                given = {
                    name: self._seen(symbol, self._held[symbol].numpy())
                    for name, symbol in self._inputs.items()
                }
            before = [(symbol.value, symbol.value.copy()) for symbol in self._updated]

            def restore() -> None:
                for tensor, old in before:
                    tensor[...] = old.numpy()

            def prepare() -> list[Runner]:
                restore()
                self._prepare(given)
                return self._steps

            try:
                return seconds_of_calls(prepare, self.device)
            finally:
                restore()
                self._let_go()

    # --- running

    def run(self, feeds: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Run once: feed the inputs, compute, commit the updates; the outputs as tensors."""
        with self._lock:
            self._prepare(feeds)
            if self._captured is not None:
                self._captured.replay()
                return [slot.tensor().copy() for slot in self._slots]
            if self.device.is_host:
                _execute(self._calls)
            else:
                self.device.stream.launch(partial(_execute, self._calls))
            results = [slot.tensor() for slot in self._slots]
            self._let_go()
            return results

    def _let_go(self) -> None:
        """Drop results that are too large to keep for the next run."""
        if self._lets_go and self._captured is None:
            self._steps, self._calls = [], []
            for slot in self._slots:
                slot.let_go()

    def capture(self) -> None:
        """Record the calls once; from now on `run` replays them. Addresses no longer change."""
        with self._lock:
            # Other plans may outgrow the shared arena; a captured one keeps memory of its own.
            self._block = self.device.allocate(self.arena_bytes, owner="captured arena")
            self._bind(self._slots)
            stream = self.device.stream
            stream.begin_capture()
            stream.launch(partial(_execute, self._calls))
            self._captured = stream.end_capture()

    def _prepare(self, feeds: Mapping[str, Any] | None) -> None:
        self._feed(feeds or {})
        if not self.device.is_host:
            for symbol in self._symbols:
                self._tensor_of(symbol).memory.on_device()
        if self._captured is None:
            block = SharedArena.of(self.device).at_least(self.arena_bytes)
            held = [slot for slot in self._slots if slot.is_held()]
            if held or block is not self._block:
                self._block = block
                self._bind(held)
        if not self.device.is_host:
            for symbol in self._updated:
                symbol.value.memory.on_device(write=True)

    def _bind(self, held: list[OutputSlot]) -> None:
        """Tie the schedule to memory; `held` are the outputs that need new memory."""
        # A new list: the old one may still be queued on a stream.
        self._steps, self._calls = [], []
        for slot in held:
            slot.renew()
        self._steps = self.schedule.bind(self._lookup, self._communicator)
        self._calls = joined_runs(self._steps)
        for slot in self._slots:
            slot.settle()

    def _lookup(self, buffer: Buffer) -> Any:
        root = buffer.root
        if root.place == "constant":
            assert isinstance(root.key, Node)
            return self._constant(root.key)
        if root.place == "arena":
            assert self._block is not None
            spec = buffer.spec
            stored = stored_shape(spec.shape, spec.order)
            memory = self.device.array(self._block, root.offset, stored, spec.dtype)
            return laid_out(memory, spec.shape, spec.order)
        if isinstance(root.key, Symbol):
            return self._symbol_array(root.key)
        assert isinstance(root.key, tuple)
        return self._slots[root.key[1]].array()

    def _reaches(self, tensor: Tensor) -> bool:
        if self.device.is_host:
            return tensor.device.is_host
        return tensor.device is self.device and tensor.kind is not HOST

    def _tensor_of(self, symbol: Symbol) -> Tensor:
        held = self._held.get(symbol)
        return symbol.value if held is None else held

    def _symbol_array(self, symbol: Symbol) -> Any:
        tensor = self._tensor_of(symbol)
        array = tensor.host_array() if tensor.kind is HOST else tensor.device_array()
        return self._seen(symbol, array)

    def _seen(self, symbol: Symbol, array: Any) -> Any:
        """The array of a symbol in the symbol's shape: inputs may lie in another order."""
        order = self._orders[symbol]
        return array if order is None else laid_out(array, symbol.spec.shape, order)

    def _constant(self, node: Node) -> Any:
        """The array of a constant, put on the device once."""
        if node not in self._constants:
            (value,) = evaluate(node, ())
            tensor = Tensor.from_numpy(value, device=self.device)
            self._constants[node] = tensor.device_array()
        return self._constants[node]

    def _choose(self, node: Node) -> Kernel:
        if node.op.name == "scan":
            return loop_kernel(node, self._choose, self._constant, in_place=self._in_place)
        return self._choose_simple(node)

    # --- what comes in

    def _feed(self, feeds: Mapping[str, Any]) -> None:
        if feeds.keys() != self._inputs.keys():
            names = ", ".join(self._inputs) or "no inputs"
            raise ConfigError.build(
                "run", expected=f"a value for each of: {names}", got=", ".join(feeds) or "none",
                hint="pass them by name, as in plan.run({'x': array})",
            )  # fmt: skip
        for name, given in feeds.items():
            symbol = self._inputs[name]
            array = exactly(given, symbol.spec.dtype, f"input {name}")
            if array.shape != symbol.spec.shape:
                raise ShapeError.build(
                    f"input {name}", expected=f"shape {symbol.spec.shape}", got=f"{array.shape}",
                    hint="a plan has one shape; make another input for another one",
                )  # fmt: skip
            place = self._held[symbol].host_array(write=True, discard=True)
            np.copyto(self._seen(symbol, place), array)

    def _check_symbols(self) -> None:
        for symbol in self._symbols:
            tensor = self._tensor_of(symbol)
            if not self._reaches(tensor):
                raise DeviceError.build(
                    f"{symbol.role} {symbol.name}".strip(),
                    expected=f"memory that {self.device.name} can read",
                    got=f"{tensor.kind.name} memory on {tensor.device.name}",
                    hint=f"move it with .to(device={self.device.name!r})",
                )


def _execute(calls: list[Runner]) -> None:
    # Infinities and nans are values here, not news.
    with one_thread, np.errstate(all="ignore"):
        for call in calls:
            call()


def _by_name(symbols: list[Symbol]) -> dict[str, Symbol]:
    names = {symbol.name: symbol for symbol in symbols}
    if len(names) < len(symbols):
        raise ConfigError.build(
            "compile", expected="inputs with different names",
            got=", ".join(symbol.name for symbol in symbols), hint="rename one of them",
        )  # fmt: skip
    return names


def _symbol_of(node: Node) -> Symbol | None:
    return node.attrs.get("symbol")
