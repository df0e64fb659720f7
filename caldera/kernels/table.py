"""Which code runs an op on a device: a table from (op, device family) to candidate kernels.

Gradients, layers and passes never choose a device; the plan asks this table. A kernel does not run
an op by itself: `bind` ties it to the arrays of one call and gives back a function of no arguments,
so that everything that can be decided once is decided once.

The calls of a step may be grouped and joined. A grouper receives bound calls in order and returns
pieces to run: independent calls of the same form run as one, perhaps in another order, always with
the same result; and it returns which pieces may run concurrently. A joiner receives the calls of a
step in order, each with the op its kernel is registered for, an allocator of zeroed device memory,
and a predicate for scratch arrays. It returns a launch that runs any number of steps, or None if
that is impossible or would not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape
from caldera.errors import ConfigError, DeviceError

Array = Any
"""What a device's `array` gives: a numpy.ndarray, on a card one that only kernels may read."""
Runner = Callable[[], object]
COPY = "copy"
"""What kernels that copy are registered for."""


@dataclass(frozen=True)
class Call:
    """One node with the arrays it reads and writes, and the workspace its kernel asked for.

    `shares` has its kernel's.
    """

    node: Node
    outputs: tuple[Array, ...]
    inputs: tuple[Array, ...]
    workspace: Array = None
    communicator: Any = None
    shares: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Kernel:
    """One way to run an op on a family of devices.

    `priority` orders the candidates before anything was measured: the highest serves first, and
    among equals the one that expects to take the fewest seconds by its own `estimate`.
    `in_place` says whether an output may share the memory of an input of its shape and dtype.
    `places` has for each input the byte of the first output at which the kernel would put it, if it
    does nothing else with it (None elsewhere): who makes the input may write it there at once.
    `capturable` is false for one whose calls cannot be recorded and replayed by the device,
    `measured` for one that made-up inputs say nothing about (positions that are not there, matrices
    that have no inverse), or that is known to be fast. Of such kernels the estimates choose.
    `shares` names what its calls use besides the arrays they are given, such as counters: calls
    that share something must not run at the same time.
    `limit` has the bytes of workspace that it was given, where they are not those of the settings.
    `threads` has the largest number of threads that it uses, where it is not that of the settings.
    `serial` is true for a call of a library that uses one thread, however many there are.
    `varies` is true for what a library names first, or second, for each shape: that may be another
    algorithm each time, so that what it took for one shape says nothing about others.
    `source` names the code that computes the result, by default the module of `bind`. Kernels of
    one source share its mistakes, so their agreement does not confirm a result.
    """

    op: str
    family: str
    name: str
    bind: Callable[[Call], Runner]
    supports: Callable[[Node], bool] = lambda node: True
    workspace: Callable[[Node], int] = lambda node: 0
    priority: int = 0
    in_place: Callable[[Node], bool] = lambda node: False
    places: Callable[[Node], Sequence[int | None]] = lambda node: ()
    estimate: Callable[[Node], float] = lambda node: 0.0
    capturable: bool = True
    measured: bool = True
    shares: frozenset[str] = frozenset()
    limit: int | None = None
    threads: int | None = None
    serial: bool = False
    varies: bool = False
    source: str = ""

    @property
    def origin(self) -> str:
        """Code that computes the result: `source`, or the module that defines `bind`."""
        bind = self.bind
        while isinstance(bind, partial):
            bind = bind.func
        return self.source or bind.__module__


@dataclass
class KernelTable:
    """All kernels, by op and device family; `version` grows with each change."""

    version: int = 0
    rooms: dict[str, str] = field(default_factory=dict)
    """By family, the module that registers its kernels when it is imported."""
    _kernels: dict[tuple[str, str], list[Kernel]] = field(default_factory=dict)

    def add(self, kernel: Kernel) -> None:
        """Register a kernel; its name must be new for this op and family."""
        row = self._kernels.setdefault((kernel.op, kernel.family), [])
        if any(other.name == kernel.name for other in row):
            raise ConfigError.build(
                "kernel table",
                expected="a new name",
                got=f"a second {kernel.name!r} for {kernel.op}",
            )
        self.version += 1
        row.append(kernel)
        row.sort(key=lambda each: -each.priority)

    def forget(self, op: str) -> None:
        """Take out all kernels of an op."""
        self.version += 1
        for key in [key for key in self._kernels if key[0] == op]:
            del self._kernels[key]

    def load(self, family: str) -> None:
        """Register the kernels of a family of devices, if that was not done yet.

        Lookups do so for the CPU: a script that computes nothing does not pay for its kernels. For
        others whoever has such a device says so.
        """
        if family in self.rooms:
            # Taken out afterwards: a thread that comes meanwhile waits for the same import.
            import_module(self.rooms[family])
            self.rooms.pop(family, None)

    def copy(self, family: str) -> Kernel:
        """How a family copies a value to memory in which it lies differently; that is no op."""
        return self.kernels(COPY, family)[0]

    def has(self, op: str, family: str) -> bool:
        """Whether any kernel is registered for this op."""
        return bool(self.kernels(op, family))

    def candidates(
        self,
        node: Node,
        family: str,
        workspace_limit: int | None = None,
        others: Sequence[Kernel] = (),
    ) -> list[Kernel]:
        """The kernels that can run this node within the workspace allowed, best guess first.

        `others` were made for this very node, and stand beside those of the table.
        """
        found = [
            kernel
            for kernel in (*self.kernels(node.op.name, family), *others)
            if kernel.supports(node)
            and (workspace_limit is None or kernel.workspace(node) <= workspace_limit)
        ]
        if not found:
            raise DeviceError.build(
                f"op.{node.op.name}",
                expected=f"a kernel for {family!r} devices",
                got=f"none for {', '.join(str(given.outputs[0]) for given in node.inputs)}",
                hint="run it on another device, or raise settings.workspace_limit",
            )
        if len({kernel.priority for kernel in found}) < len(found):
            found.sort(key=lambda kernel: (-kernel.priority, kernel.estimate(node)))
        else:
            # Most of the time none is as good as another: estimates would change nothing.
            found.sort(key=lambda kernel: -kernel.priority)
        return found

    def kernels(self, op: str, family: str) -> tuple[Kernel, ...]:
        """All kernels for an op, best guess first."""
        if family == "cpu" and family in self.rooms:
            self.load(family)
        return tuple(self._kernels.get((op, family), ()))

    def names(self, op: str, family: str) -> list[str]:
        """The names of the kernels for an op, best guess first."""
        return [kernel.name for kernel in self.kernels(op, family)]


TABLE = KernelTable(
    rooms={"cpu": "caldera.kernels.native.families", "cuda": "caldera.kernels.cuda"}
)
"""The one table; `kernels.reference` fills it when it is imported, the other rooms when asked."""

PRECISION_CHECKS: dict[str, Callable[[str], None]] = {}
"""What refuses a precision that devices of a family cannot compute in; a room of kernels puts its
own here when it is loaded."""

_CHANNELS_LAST = frozenset({"cpu", "cuda"})


def wants_channels_last(family: str) -> bool:
    """Whether plans for this family should lay images out channels last.

    Channels are what convolutions, pooling and normalisation vectorise over. Every kernel takes
    row-major images as well; these are slower.

    >>> wants_channels_last("cpu")
    True
    """
    return family in _CHANNELS_LAST


class AddressedRunner:
    """A function of arrays, which it finds by their addresses when it is run: whoever writes over
    one of `slots` has it work on other memory, without being bound anew.

    >>> first, second, third = np.zeros(2), np.zeros(2), np.zeros(2)
    >>> add = AddressedRunner(lambda x, y: np.add(x, 1, out=y), first, second)
    >>> add.slots[1] = third.ctypes.data
    >>> add()
    >>> second.tolist(), third.tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """

    def __init__(self, work: Callable[..., object], *arrays: np.ndarray) -> None:
        self._work = work
        self._arrays = list(arrays)
        self._known = [array.__array_interface__["data"][0] for array in arrays]
        self.slots = np.array(self._known, np.int64)

    def __call__(self) -> None:
        addresses = self.slots.tolist()
        if addresses != self._known:
            for number, (old, new) in enumerate(zip(self._known, addresses, strict=True)):
                if old != new:
                    self._arrays[number] = np.asarray(_Memory(self._arrays[number], new))
            self._known = addresses
        self._work(*self._arrays)


class _Memory:
    """An array of the same kind at another address."""

    def __init__(self, like: np.ndarray, address: int) -> None:
        self.__array_interface__ = {**like.__array_interface__, "data": (address, False)}


Steps = Callable[[int], Runner]
Fresh = Callable[[Shape, str], Array]
"""Memory of a shape and a dtype that belongs to the step alone."""
StepFuser = Callable[[Sequence[tuple[str, Call]], Fresh, Callable[[Array], bool]], Steps | None]

STEP_FUSERS: dict[str, StepFuser] = {}
"""By family; the rooms of kernels fill it when they are imported."""


@dataclass(frozen=True)
class StepPiece:
    """A part of a step: what runs it, the numbers of those before it that have to be done first,
    and about how long it takes."""

    run: Runner
    after: frozenset[int] = frozenset()
    seconds: float = 0.0


LaunchGrouper = Callable[[Sequence[tuple[Call, Runner]]], list[StepPiece]]

LAUNCH_GROUPERS: dict[str, LaunchGrouper] = {}
"""By family, in the same way."""
