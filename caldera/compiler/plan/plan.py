"""A plan: a program scheduled for one device, bound to memory, ready to run again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.arguments import checked, shown
from caldera.compiler.plan.arena import SharedArena, Tenant, block_to_keep
from caldera.compiler.plan.buffers import Outputs
from caldera.compiler.plan.explain import Explanation, explained, fastest
from caldera.compiler.plan.loop import loop_kernel, not_capturable
from caldera.compiler.plan.memory_limit import Room, within_limit
from caldera.compiler.plan.operands import Operands, WeightCopies
from caldera.compiler.plan.relocation import Patch, bind_movable
from caldera.compiler.plan.schedule import Buffer, Lookup, Root, StepSchedule, Transfer
from caldera.compiler.plan.step_fusion import can_fuse_step, captured, execute, fuse_step, grouped
from caldera.compiler.plan.timeline import Rehearsal, watch, write_trace
from caldera.compiler.plan.timing import Peaks, cpu_peaks_at_least, seconds_of_calls
from caldera.core.graph.memory_format import laid_out, seen_as, stored_shape
from caldera.core.graph.node import Node, Symbol
from caldera.core.graph.program import Program
from caldera.core.memory import Block, Device
from caldera.core.memory.host import trim_heap
from caldera.core.memory.interface import CapturedGraph
from caldera.core.tensor import Tensor
from caldera.draw.graph import draw_graph
from caldera.draw.svg import Picture
from caldera.errors import ConfigError, DeviceError
from caldera.kernels.runners import LAUNCH_GROUPERS, StepPiece
from caldera.kernels.table import TABLE, Kernel, Runner
from caldera.kernels.tuning.choice_store import ORACLE


@dataclass(eq=False)
class _Bound(Tenant):
    """The calls of a plan, tied to memory: once for each place that inputs are fed to."""

    steps: list[Runner] = field(default_factory=list)
    pieces: list[StepPiece] = field(default_factory=list)
    patches: list[list[Patch]] = field(default_factory=list)
    graph: CapturedGraph | None = None

    def vacate(self) -> None:
        if self.graph is None:
            # New lists: the old ones may still be queued on a stream.
            self.block, self.steps, self.pieces, self.patches = None, [], [], []


class Plan:
    """Kernel calls over planned memory. Made by `cd.compile`; `run()` gives the outputs.

    `choose` says which kernel runs a node; it is also given those that were made for this node, if
    any. With `choose_well`, which takes its time, this is asked before the second run: what runs
    only once is not worth it, and a first result comes soon. If its arena would take more than
    there is `room` for, values are dropped and computed again, or moved to the host meanwhile.
    `copies` are those of weights in half precision that it reads.

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
        choose: Callable[..., Kernel],
        *,
        choose_well: Callable[..., Kernel] | None = None,
        in_place: bool = True,
        communicator: Any = None,
        room: Room | None = None,
        copies: WeightCopies | None = None,
    ) -> None:
        self.original = original
        self.optimised = optimised
        self.device = device
        self._communicator = communicator
        self._choose_simple = choose
        self._choose_well = choose_well
        self._has_run = False
        self._in_place = in_place
        self._room = room
        self._copies = copies
        self._writer = object()
        self._moved_out: Block | None = None
        self._roots = [Root(node, ("output", i)) for i, node in enumerate(optimised.outputs)]
        self._roots += [Root(node, symbol, overwrites=True) for symbol, node in optimised.updates]
        self.schedule = self._schedule()
        self._turn = _turn_of(device, self.schedule)
        self.can_capture = not any(not_capturable(self.schedule))
        """Whether all of its kernels can be captured."""
        self._operands = Operands(optimised, self.schedule, device)
        self._outputs = Outputs([node.spec for node in optimised.outputs], device)
        self._lock = threading.RLock()
        self._bound = [_Bound() for _ in range(self._operands.inputs.turns)]

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
    def held_bytes(self) -> int:
        """Bytes it holds on to between runs: inputs, constants, copies of weights, and results that
        are not given away.

        What runs only use meanwhile is in an arena, which plans share.
        """
        copies = 0 if self._copies is None else self._copies.nbytes
        return self._operands.nbytes + self._outputs.nbytes + copies

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs a run has to be given."""
        return list(self._operands.inputs.by_name)

    @property
    def symbols(self) -> list[Symbol]:
        """The variables, tensors and inputs that a run reads or updates."""
        return list(self._operands.symbols)

    @property
    def is_stale(self) -> bool:
        """Whether variables have moved since it was last tied to them."""
        return self._operands.are_stale

    @property
    def is_captured(self) -> bool:
        """Whether runs are replayed."""
        return self._bound[0].graph is not None

    @checked
    def draw(self, path: str | PathLike[str] | None = None) -> Picture | Path:
        """The graph as it was written and as it runs, side by side, which a notebook shows; with a
        path it is written to that .svg file, and the path is returned.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (3,), fill=cd.constant(2.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cd.compile([x * x]).draw(Path(folder) / "graph.svg").name
        'graph.svg'
        """
        return draw_graph(path, {"as written": self.original, "as it runs": self.optimised})

    def _repr_html_(self) -> str:
        return self.explain(time=False)._repr_html_()

    @checked
    def explain(self, feeds: Mapping[str, Any] | None = None, *, time: bool = True) -> Explanation:
        """A table of the steps, to be printed or read: kernels, shapes, bytes, operations, times.

        The times come from complete runs, after which the variables have their values again.
        Inputs keep what they were last fed unless `feeds` has something else. On several ranks
        all of them must call this. `time=False` runs nothing.

        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (2, 3), fill=cd.constant(2.0))
        >>> explanation = cd.compile([op.exp(x)]).explain(time=False)
        >>> explanation
        step  op ...
        >>> explanation.rows[0].op, explanation.rows[0].nbytes
        ('exp', 48)
        """
        seconds = self._seconds(feeds) if time else None
        peaks = None
        if seconds is not None and self.device.kernels == "cpu":
            peaks = cpu_peaks_at_least(fastest(self.schedule, seconds))
        return self._explained(seconds, peaks)

    def _explained(
        self, seconds: Sequence[float] | None = None, peaks: Peaks | None = None
    ) -> Explanation:
        return explained(self.schedule, self.original, self.optimised, self.device, seconds, peaks)

    @checked
    def trace(
        self, path: str | PathLike[str], feeds: Mapping[str, Any] | None = None, *, runs: int = 3
    ) -> Path:
        """Write when each kernel ran, on which thread or stream, to a .json file; its path.

        Beside the kernels it has the copies, and how much of the planned memory is in use. Open it
        at ui.perfetto.dev or in chrome://tracing. As in `explain`, variables keep their values.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (3,), fill=cd.constant(2.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cd.compile([op.exp(x)]).trace(Path(folder) / "step.json").name
        'step.json'
        """
        if runs < 1:
            raise ConfigError.build("trace", expected="runs >= 1", got=f"{runs}")
        with self._rehearsed(feeds) as rehearsal:
            seen = watch(rehearsal, self.schedule, self.device, runs)
        return write_trace(path, seen, self._explained())

    def _seconds(self, feeds: Mapping[str, Any] | None) -> list[float]:
        """The time of each call; no run changes what the variables hold."""
        with self._rehearsed(feeds) as rehearsal:

            def prepare() -> Sequence[Runner]:
                rehearsal.restore()
                return rehearsal.prepare()

            return seconds_of_calls(prepare, self.device)

    @contextmanager
    def _rehearsed(self, feeds: Mapping[str, Any] | None) -> Iterator[Rehearsal]:
        """Runs that leave the variables as they were."""
        with self._lock:
            if self._choose_well is not None and not self.is_captured:
                # Whoever looks at kernels wants to see those that will stay.
                self._settle()
            given = feeds
            if given is None:
                # Copies: they are fed again, perhaps to the place they come from.
                given = {name: array.copy() for name, array in self._operands.inputs.fed().items()}
            before = [(symbol.value, symbol.value.copy()) for symbol in self._operands.updated]

            def restore() -> None:
                for tensor, old in before:
                    tensor[...] = old.numpy()
                    if not self.device.is_host:
                        # What is copied because of this is no part of a run.
                        tensor.memory.on_device()

            try:
                yield Rehearsal(restore, lambda: self._prepare(given).steps)
            finally:
                restore()
                self._let_go()

    # --- running

    def run(self, feeds: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Run once: feed the inputs, compute, commit the updates; the outputs as tensors."""
        if feeds is not None and not isinstance(feeds, Mapping):
            raise ConfigError.build(
                "Plan.run",
                expected="feeds= a dict of arrays by the names of inputs",
                got=shown(feeds),
            )
        with self._lock, self._turn:
            if self._has_run and self._choose_well is not None and not self.is_captured:
                self._settle()
            self._has_run = True
            bound = self._prepare(feeds)
            if self._operands.updated:
                # Nobody's, should the run fail on its way.
                self.device.last_writer = None
            if self.device.is_host and bound.graph is None:
                execute(bound.pieces)
            else:
                with self.device.span("run", self.device.stream):
                    if bound.graph is not None:
                        bound.graph.replay()
                    else:
                        self.device.stream.launch(partial(execute, bound.pieces))
            if self._operands.updated:
                self.device.last_writer = self._writer
            self._operands.inputs.launched()
            results = self._outputs.results()
            self._let_go()
            return results

    def _let_go(self) -> None:
        """Drop results that are too large to keep for the next run."""
        if not self.is_captured and self._outputs.let_go():
            self._unbind()

    def release(self) -> None:
        """Let go of the arrays that calls are tied to, until the next run ties them again."""
        with self._lock:
            if not self.is_captured:
                self._unbind()

    def _unbind(self) -> None:
        self._bound = [_Bound() for _ in self._bound]

    def capture(self) -> None:
        """Record the calls once; from now on `run` replays them. Addresses no longer change."""
        for kernel in not_capturable(self.schedule):
            raise DeviceError.build(
                f"capture of op.{kernel.op}",
                expected="kernels that only launch work",
                got=f"{kernel.name!r}, which waits for the device",
                hint="run the plan without capturing it",
            )
        with self._lock, self.device.turn:
            if self._choose_well is not None and not self._is_fused():
                self._settle()
            block = block_to_keep(self.device, self.arena_bytes)
            self._outputs.keep()
            for turn, bound in enumerate(self._bound):
                self._operands.inputs.turn = turn
                self._bind(bound, block)
                bound.graph = self._fused() or captured(self.device.stream, bound.pieces)
            self._operands.inputs.turn = 0

    def _schedule(self) -> StepSchedule:
        family = self.device.kernels
        # A limit may take several attempts, for which nothing is chosen again.
        choose = cache(self._choose)

        def build(order: Sequence[Node | Transfer], spread: bool) -> StepSchedule:
            return StepSchedule(
                self._roots, choose, _symbol_of, self._in_place, family, spread=spread, order=order
            )

        return within_limit(build, self._room, self.device, spread=family in LAUNCH_GROUPERS)

    def _settle(self) -> None:
        """Choose the kernels again, for good."""
        assert self._choose_well is not None
        self._choose_simple, self._choose_well = self._choose_well, None
        self._unbind()
        self._moved_out = None
        self.schedule = self._schedule()
        self._turn = _turn_of(self.device, self.schedule)

    def _is_fused(self) -> bool:
        """Whether all calls become one launch, for which no kernels need to be chosen."""
        if not can_fuse_step(self.device, self.schedule):
            return False
        self._outputs.keep()
        self._bind(self._bound[0], block_to_keep(self.device, self.arena_bytes))
        return self._fused() is not None

    def _fused(self) -> CapturedGraph | None:
        """All calls as one launch, where the device can do that for this plan."""
        if not can_fuse_step(self.device, self.schedule):
            return None

        schedule = StepSchedule(
            self._roots, self._choose, _symbol_of, self._in_place, self.device.kernels, reuse=False
        )
        if self._room is not None and schedule.arena_bytes > self._room.arena:
            return None
        return fuse_step(self.device, schedule, self._lookup_in, self._communicator)

    def _prepare(self, feeds: Mapping[str, Any] | None) -> _Bound:
        """Make everything ready for a run, and give the calls of it."""
        if self.is_stale:
            self._operands.renew()
            self._unbind()
        inputs = self._operands.inputs
        inputs.feed(feeds or {})
        if self._copies is not None:
            self._copies.make_ready(self._writer)
        self._operands.make_ready()
        if self._copies is not None:
            self._copies.note()
        if self._bound[inputs.turn].graph is None:
            arena = SharedArena.of(self.device)
            block = arena.at_least(self.arena_bytes)
            if self._outputs.must_move():
                self._unbind()
            bound = self._bound[inputs.turn]
            if block is not bound.block:
                arena.move_in(bound, block)
                self._bind(bound, block)
            if bound.patches:
                self._outputs.move(bound.patches)
        return self._bound[inputs.turn]

    def _bind(self, bound: _Bound, block: Block) -> None:
        """Tie the schedule to memory."""
        # New lists: the old ones may still be queued on a stream.
        bound.steps, bound.pieces, bound.patches = [], [], []
        bound.block = block
        if self._outputs.are_movable and not all(slot.is_copied for slot in self._outputs.slots):
            lookup = partial(self._lookup_in, block)
            # Calls that are bound anew have not been told where to write, not even to the memory
            # of the last result.
            self._outputs.forget_places()
            steps, bound.patches = bind_movable(
                self.schedule, lookup, self._communicator, self._outputs.slots
            )
        else:
            self._outputs.allocate()
            steps = self.schedule.bind(self._lookup_in(block), self._communicator)
        bound.steps = [runner for _, runner in steps]
        bound.pieces = grouped(self.device.kernels, steps)
        # The calls hold the arrays of results as well: let go before the references are counted.
        del steps
        self._outputs.settle()
        # What choosing and compiling kernels took goes back before the run takes its arena.
        trim_heap()

    def _lookup_in(self, block: Block, outputs: Sequence[Any] | None = None) -> Lookup:
        """Finds the array of a buffer; `block` is the arena, and `outputs` has the arrays of
        results if these are not where they are kept."""

        def lookup(buffer: Buffer) -> Any:
            root = buffer.root
            if root.place == "constant":
                assert isinstance(root.key, Node)
                return self._operands.constant(root.key)
            if root.place in ("arena", "host"):
                spec = buffer.spec
                stored = stored_shape(spec.shape, spec.order)
                where = block if root.place == "arena" else self._host_block()
                memory = self.device.array(where, root.offset, stored, spec.dtype)
                return laid_out(memory, spec.shape, spec.order)
            if isinstance(root.key, Symbol):
                return self._operands.array(root.key)
            assert isinstance(root.key, tuple)
            number = root.key[1]
            found = self._outputs.slots[number].array() if outputs is None else outputs[number]
            return seen_as(found, buffer.spec)

        return lookup

    def _host_block(self) -> Block:
        """Memory of the host for what the device has no room for meanwhile."""
        if self._moved_out is None:
            self._moved_out = self.device.allocate_host(
                self.schedule.host_bytes, owner="off-loaded"
            )
        return self._moved_out

    def _choose(self, node: Node) -> Kernel:
        if node.op.name != "scan":
            return self._choose_simple(node)
        loop = loop_kernel(
            node,
            self._choose,
            lambda each: self._operands.constant(each),
            self.device.kernels,
            in_place=self._in_place,
        )
        others = TABLE.kernels(node.op.name, self.device.kernels)
        if any(kernel.name != ORACLE and kernel.supports(node) for kernel in others):
            return self._choose_simple(node, loop)
        return loop


def _turn_of(device: Device, schedule: StepSchedule) -> AbstractContextManager[Any]:
    """What a run holds while it launches. One that waits for other ranks holds nothing: they may be
    threads that need it."""
    waits = any(True for _ in not_capturable(schedule))
    return nullcontext() if waits else device.turn


def _symbol_of(node: Node) -> Symbol | None:
    return node.attrs.get("symbol")
