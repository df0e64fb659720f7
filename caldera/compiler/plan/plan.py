"""A plan: a program scheduled for one device, bound to memory, ready to run again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

from caldera.base.arguments import checked
from caldera.compiler.plan.binding import PlanBinding
from caldera.compiler.plan.buffers import check_feeds
from caldera.compiler.plan.explain import Explanation
from caldera.compiler.plan.inspection import explain, timed_run, trace
from caldera.compiler.plan.loop import loop_kernel, not_capturable
from caldera.compiler.plan.memory_limit import Room, within_limit
from caldera.compiler.plan.operands import WeightCopies
from caldera.compiler.plan.order import can_fuse_step, execute
from caldera.compiler.plan.repeated_run import RepeatedRun, repeated_run
from caldera.compiler.plan.schedule import Root, StepSchedule, Transfer
from caldera.compiler.plan.scheduling import schedule_steps
from caldera.compiler.plan.timing import TimedRun
from caldera.core.graph import Node, Program, Symbol
from caldera.core.memory import Device
from caldera.core.tensor import Tensor
from caldera.draw.graph import draw_graph
from caldera.draw.svg import Picture
from caldera.errors import DeviceError
from caldera.kernels.table import LAUNCH_GROUPERS, TABLE, Kernel
from caldera.kernels.tuning.choice_store import ORACLE


class Plan:
    """Kernel calls over planned memory. Made by `cd.compile`; `run()` returns the outputs.

    `choose` selects the kernel of a node; it also receives kernels that were created for this node,
    if any. `choose_well` takes longer and is called before the second run: for a single run it is
    not worthwhile, and a first result should come soon. If the arena exceeds `room`, values are
    dropped and recomputed, or moved to the host until they are read. `copies` are half-precision
    copies of weights that the plan reads.

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
        self._roots = [Root(node, ("output", i)) for i, node in enumerate(optimised.outputs)]
        self._roots += [Root(node, symbol, overwrites=True) for symbol, node in optimised.updates]
        self.schedule = self._schedule()
        self._turn = _turn_of(device, self.schedule)
        self.can_capture = not any(not_capturable(self.schedule))
        """True if all of its kernels can be captured."""
        self._binding = PlanBinding(self.schedule, optimised, device, communicator, copies)
        self._again: RepeatedRun | None = None
        self._lock = threading.RLock()

    # --- facts

    @property
    def arena_bytes(self) -> int:
        """Bytes of the planned arena."""
        return self.schedule.arena_bytes

    @property
    def route(self) -> str:
        """Transport of its messages between ranks; empty if it sends none."""
        sends = any("message" in step.node.attrs for step in self.schedule.steps)
        return str(self._communicator.route(self.device.name)) if sends else ""

    @property
    def naive_bytes(self) -> int:
        """Bytes the intermediate values would take without shared memory."""
        return self.schedule.naive_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes retained between runs: inputs, constants, copies of weights, and kept results.

        Temporary memory of runs is in an arena, which plans share.
        """
        return self._binding.nbytes

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs a run has to be given."""
        return list(self._binding.operands.inputs.by_name)

    @property
    def symbols(self) -> list[Symbol]:
        """The variables, tensors and inputs that a run reads or updates."""
        return list(self._binding.operands.symbols)

    @property
    def is_stale(self) -> bool:
        """True if variables have moved since the plan was last bound to them."""
        return self._binding.operands.are_stale

    @property
    def is_captured(self) -> bool:
        """True if runs are replayed."""
        return self._binding.is_captured

    @checked
    def draw(self, path: str | PathLike[str] | None = None) -> Picture | Path:
        """Return the graph as it was written and as it runs, side by side, which a notebook shows;
        with a path it is written to that .svg file, and the path is returned.

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
        """Return a table of the steps: kernels, shapes, bytes, operations, times.

        The times come from complete runs, after which the variables have their values again. Inputs
        keep the last feeds unless `feeds` has others. On several ranks every rank must call this.
        With `time=False` the plan is not run.

        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (2, 3), fill=cd.constant(2.0))
        >>> explanation = cd.compile([op.exp(x)]).explain(time=False)
        >>> explanation
        step  op ...
        >>> explanation.rows[0].op, explanation.rows[0].nbytes
        ('exp', 48)
        """
        return explain(self, self._timed_run(feeds) if time else None)

    @checked
    def trace(
        self, path: str | PathLike[str], feeds: Mapping[str, Any] | None = None, *, runs: int = 3
    ) -> Path:
        """Write the time and the thread or stream of each kernel to a .json file; return its path.

        The file also contains the copies and the use of the planned memory. Open it at
        ui.perfetto.dev or in chrome://tracing. As in `explain`, variables keep their values.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import caldera as cd
        >>> from caldera import op
        >>> x = op.var("x", (3,), fill=cd.constant(2.0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cd.compile([op.exp(x)]).trace(Path(folder) / "step.json").name
        'step.json'
        """
        return trace(self, self._timed_run(feeds), path, runs)

    @contextmanager
    def _timed_run(self, feeds: Mapping[str, Any] | None) -> Iterator[TimedRun]:
        """Context of runs that leave the variables unchanged."""
        with self._lock:
            # Times and kernels are shown of the final choice.
            self._settle()
            with timed_run(self._binding, feeds) as run:
                yield run

    # --- running

    def run(self, feeds: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Run once: feed the inputs, compute, commit the updates; the outputs as tensors."""
        with self._lock:
            again = None if self._again is None else self._again(feeds)
            return self._run(feeds) if again is None else again

    def _run(self, feeds: Mapping[str, Any] | None) -> list[Tensor]:
        check_feeds(feeds)
        with self._turn:
            if self._has_run and self._choose_well is not None:
                self._settle()
            self._has_run = True
            binding = self._binding
            bound = binding.prepare(feeds)
            updates = binding.operands.updated
            if updates:
                # No plan's, should the run fail before its end.
                self.device.last_writer = None
            if self.device.is_host and bound.graph is None:
                execute(bound.pieces)
            else:
                with self.device.span("run", self.device.stream):
                    if bound.graph is not None:
                        bound.graph.replay()
                    else:
                        self.device.stream.launch(partial(execute, bound.pieces))
            if updates:
                self.device.last_writer = binding.writer
            binding.operands.inputs.launched()
            results = binding.outputs.results()
            binding.release_results()
            self._again = None if self._choose_well is not None else repeated_run(binding)
            return results

    def release(self) -> None:
        """Let go of the arrays that calls are tied to, until the next run ties them again."""
        with self._lock:
            if not self.is_captured:
                self._again = None
                self._binding.unbind()

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
            unshared = self._unshared()
            if self._choose_well is not None and not self._binding.can_fuse(unshared):
                self._settle()
                unshared = self._unshared()
            self._binding.capture(unshared)

    def _schedule(self) -> StepSchedule:
        family = self.device.kernels
        # A memory limit may take several attempts, which reuse the choices.
        choose = cache(self._choose)

        def build(order: Sequence[Node | Transfer], delay_reuse: bool) -> StepSchedule:
            return schedule_steps(
                self._roots,
                choose,
                _symbol_of,
                self._in_place,
                family,
                delay_reuse=delay_reuse,
                order=order,
            )

        return within_limit(build, self._room, self.device, delay_reuse=family in LAUNCH_GROUPERS)

    def _settle(self) -> None:
        """Choose the kernels permanently, unless this is done already or runs are replayed."""
        if self._choose_well is None or self.is_captured:
            return
        self._choose_simple, self._choose_well = self._choose_well, None
        self._binding.unbind()
        self.schedule = self._schedule()
        self._binding.use(self.schedule)
        self._turn = _turn_of(self.device, self.schedule)

    def _unshared(self) -> StepSchedule | None:
        """Return a schedule without reuse of memory if the device may run it as one launch."""
        if not can_fuse_step(self.device, self.schedule):
            return None
        schedule = schedule_steps(
            self._roots, self._choose, _symbol_of, self._in_place, self.device.kernels, reuse=False
        )
        fits = self._room is None or schedule.arena_bytes <= self._room.arena
        return schedule if fits else None

    def _choose(self, node: Node) -> Kernel:
        if node.op.name != "scan":
            return self._choose_simple(node)
        loop = loop_kernel(
            node,
            self._choose,
            lambda each: self._binding.operands.constant(each),
            self.device.kernels,
            in_place=self._in_place,
        )
        others = TABLE.kernels(node.op.name, self.device.kernels)
        if any(kernel.name != ORACLE and kernel.supports(node) for kernel in others):
            return self._choose_simple(node, loop)
        return loop


def _turn_of(device: Device, schedule: StepSchedule) -> AbstractContextManager[Any]:
    """Return the lock for launching a run.

    A run that waits for other ranks takes no lock: the ranks may be threads that need it.
    """
    waits = any(True for _ in not_capturable(schedule))
    return nullcontext() if waits else device.turn


def _symbol_of(node: Node) -> Symbol | None:
    return node.attrs.get("symbol")
