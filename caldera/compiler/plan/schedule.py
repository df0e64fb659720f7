"""Schedules: kernel calls in order, the buffers they read and write, and offsets in an arena.

A schedule has no addresses; `bind` ties it to real memory. A program has one, and so has the body
of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from caldera.compiler.plan.views import ViewFunction
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.kernels.table import TABLE, Call, Kernel, Runner

Place = Literal["arena", "external", "constant", "host"]
Key = Symbol | Node | tuple[str, int]
"""Whose memory it is: a symbol's, a constant node's, or a numbered place such as ("output", 0)."""
Lookup = Callable[["Buffer"], Any]
Chooser = Callable[[Node], Kernel]


@dataclass(eq=False)
class Buffer:
    """Memory for one value: a part of the arena, or something that belongs to others.

    `shared` is the buffer whose memory it takes over, `within` one in which it lies from some byte
    on.
    """

    spec: Spec
    place: Place
    key: Key | None = None
    first: int = -1
    last: int = -1
    offset: int = 0
    shared: Buffer | None = None
    within: tuple[Buffer, int] | None = None

    @property
    def root(self) -> Buffer:
        """The buffer whose memory this one uses."""
        buffer = self
        while buffer.shared is not None:
            buffer = buffer.shared
        return buffer


@dataclass(frozen=True)
class BufferView:
    """A view of a buffer."""

    buffer: Buffer
    meta_array: np.ndarray
    views: tuple[ViewFunction, ...] = ()

    def array_in(self, array: Any) -> Any:
        """This value, given the buffer's array."""
        for function in self.views:
            array = function(array)
        return array


@dataclass
class Step:
    """One kernel call."""

    node: Node
    kernel: Kernel
    inputs: tuple[BufferView, ...]
    outputs: tuple[Buffer, ...]
    workspace: Buffer | None = None
    is_again: bool = False
    """Whether it computes what was computed before and dropped."""
    transfer: Transfer | None = None
    """What it copies between device and host, because there is no room for it meanwhile."""


@dataclass(frozen=True)
class Transfer:
    """Output number `output` of a node is copied to the host, or back from there."""

    node: Node
    output: int
    to_host: bool


@dataclass(frozen=True)
class Root:
    """A node whose value is wanted in a place of its own.

    `overwrites` is the external buffer that the place is also read as during the run, if any: the
    value may be written there directly only once nobody reads it any more.
    """

    node: Node
    key: Key
    overwrites: bool = False


@dataclass(eq=False)
class StepSchedule:
    """Steps and the layout of their arena; made by `schedule_steps`.

    `order` has the nodes, inputs before users; `family` is that of the kernels. `naive_bytes` is
    the size of the arena without reuse, `host_bytes` that of the values moved to the host.
    """

    steps: list[Step]
    buffers: list[Buffer]
    order: Sequence[Node | Transfer]
    family: str
    arena_bytes: int
    naive_bytes: int
    host_bytes: int

    @property
    def copy(self) -> Kernel:
        """The kernel that copies a value."""
        return TABLE.copy(self.family)

    def call(self, step: Step, lookup: Lookup, communicator: Any = None) -> Call:
        """A step on real memory: `lookup` gives the array of a buffer."""
        inputs = tuple(value.array_in(lookup(value.buffer)) for value in step.inputs)
        outputs = tuple(lookup(buffer) for buffer in step.outputs)
        workspace = None if step.workspace is None else lookup(step.workspace)
        return Call(step.node, outputs, inputs, workspace, communicator, step.kernel.shares)

    def calls(self, lookup: Lookup, communicator: Any = None) -> Iterator[tuple[Kernel, Call]]:
        """Every step on real memory, with its kernel."""
        for step in self.steps:
            yield step.kernel, self.call(step, lookup, communicator)

    def bind(self, lookup: Lookup, communicator: Any = None) -> list[tuple[Call, Runner]]:
        """What runs the steps, one after the other."""
        calls = self.calls(lookup, communicator)
        return [(call, kernel.bind(call)) for kernel, call in calls]
