"""Table of kernels: from (op, device family) to candidate kernels.

Gradients, layers and passes never choose a device; the plan reads this table. `Kernel.bind` binds a
kernel to the arrays of a call and returns a function without arguments, so that every decision is
made only once.

The calls of a step may be grouped and joined. A grouper receives bound calls in order and returns
pieces to run. Independent calls of the same form run as one piece, possibly in another order,
always with the same result. The grouper also returns which pieces may run concurrently. A joiner
receives the calls of a step in order, each with the op its kernel is registered for, an allocator
of zeroed device memory, and a predicate for scratch arrays. It returns a launch that runs any
number of steps, or None if that is impossible or not worthwhile.
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
"""Array of a device: a numpy.ndarray, or on a GPU an array that only kernels may read."""
Runner = Callable[[], object]
COPY = "copy"
"""Name under which copy kernels are registered."""


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
    """Implementation of an op on a family of devices.

    - `priority`: order of the candidates before any measurement. The highest serves first, and
      among equals the kernel with the shortest time by its own `estimate`.
    - `in_place`: returns True if an output may share the memory of an input of its shape and dtype.
    - `places`: for each input, the byte of the first output to which the kernel would copy it, if
      it does not use it otherwise (else None). The producer of the input may write it there
      directly.
    - `capturable`: False if the device cannot record and replay its calls.
    - `measured`: False if artificial inputs do not represent its time (invalid positions, singular
      matrices), or if it is known to be fast. Such kernels are chosen by their estimates.
    - `shares`: names of resources that its calls use besides their arrays, such as counters. Calls
      that share a resource must not run concurrently.
    - `limit`: workspace limit in bytes, if it differs from the settings.
    - `threads`: maximum number of threads, if it differs from the settings.
    - `serial`: True for a library call that uses one thread regardless of the number available.
    - `varies`: True for the first or second algorithm that a library suggests for each shape. It
      may be a different algorithm each time, so a time for one shape does not predict times for
      others.
    - `source`: name of the code that computes the result, by default the module of `bind`. Kernels
      of one source share its mistakes, so their agreement does not confirm a result.
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
    later: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """By op and family, the modules to import when the kernels of the op are first needed."""
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
        """Register the kernels of a family of devices, if they are not registered yet.

        Lookups do so for the CPU: a script that computes no values does not load its kernels. For
        other families, the device's code calls this.
        """
        if family in self.rooms:
            # Removed afterwards: a concurrent thread waits for the same import.
            import_module(self.rooms[family])
            self.rooms.pop(family, None)

    def copy(self, family: str) -> Kernel:
        """Return a family's function that copies a value to another memory layout; not an op."""
        return self.kernels(COPY, family)[0]

    def has(self, op: str, family: str) -> bool:
        """Return True if any kernel is registered for this op."""
        return (op, family) in self.later or bool(self.kernels(op, family))

    def candidates(
        self,
        node: Node,
        family: str,
        workspace_limit: int | None = None,
        others: Sequence[Kernel] = (),
    ) -> list[Kernel]:
        """Return the kernels that can run this node within the workspace limit, best guess first.

        `others` were created for this node, and are added to the kernels of the table.
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
            # Usually priorities are distinct: estimates would not change the order.
            found.sort(key=lambda kernel: -kernel.priority)
        return found

    def kernels(self, op: str, family: str) -> tuple[Kernel, ...]:
        """Return all kernels for an op, by decreasing priority."""
        if family == "cpu" and family in self.rooms:
            self.load(family)
        for module in self.later.get((op, family), ()):
            import_module(module)
        # Removed afterwards, as in `load`.
        self.later.pop((op, family), None)
        return tuple(self._kernels.get((op, family), ()))

    def names(self, op: str, family: str) -> list[str]:
        """Return the names of the kernels for an op, best guess first."""
        return [kernel.name for kernel in self.kernels(op, family)]


TABLE = KernelTable(
    rooms={"cpu": "caldera.kernels.native.families", "cuda": "caldera.kernels.cuda"}
)
"""Global table; importing `kernels.reference` fills it, more packages are loaded on demand."""

PRECISION_CHECKS: dict[str, Callable[[str], None]] = {}
"""Checks by family that reject unsupported precisions, added by kernel packages on import."""

_CHANNELS_LAST = frozenset({"cpu", "cuda"})


def wants_channels_last(family: str) -> bool:
    """Return True if plans for this family should store images with channels last.

    Convolutions, pooling and normalisation vectorise over channels. Every kernel accepts row-major
    images as well, but is slower on them.

    >>> wants_channels_last("cpu")
    True
    """
    return family in _CHANNELS_LAST


class AddressedRunner:
    """A function of arrays, located by their addresses at run time.

    Writing to `slots` makes it use different memory, without binding it again.

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
"""Allocator of memory of a shape and a dtype, used only by the step."""
StepFuser = Callable[[Sequence[tuple[str, Call]], Fresh, Callable[[Array], bool]], Steps | None]

STEP_FUSERS: dict[str, StepFuser] = {}
"""Functions that run several steps in one launch, by device family.

The packages of kernels add theirs on import.
"""


@dataclass(frozen=True)
class StepPiece:
    """Part of a step: its function, the indices of its prerequisites, and its estimated seconds."""

    run: Runner
    after: frozenset[int] = frozenset()
    seconds: float = 0.0


LaunchGrouper = Callable[[Sequence[tuple[Call, Runner]]], list[StepPiece]]

LAUNCH_GROUPERS: dict[str, LaunchGrouper] = {}
"""Functions that group the calls of a step, by device family; see `STEP_FUSERS`."""
