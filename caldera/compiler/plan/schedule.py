"""Schedules: kernel calls in order, the buffers and views they use, and offsets in an arena.

A schedule has no addresses; `bind` ties it to real memory. A program has one, and so has the body
of a loop. A movement op that needs no copy is a view: its result is in the memory of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided

from caldera.core.graph import Node, Spec, Symbol, as_numbers, as_pairs, dense_strides, laid_out
from caldera.core.tensor.shape import Shape
from caldera.kernels.native.codegen.program import compiled_together
from caldera.kernels.table import TABLE, Call, Kernel, Runner

ViewFunction = Callable[[Any], Any]


def _arranged(node: Node) -> ViewFunction:
    """Return the input as it lies, where that is the order wanted already."""
    spec = node.spec
    wanted = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)

    def view(x: Any) -> Any:
        pairs = zip(spec.shape, x.strides, wanted, strict=True)
        if spec.size and any(n > 1 and stride != other for n, stride, other in pairs):
            raise ValueError("the elements have a different order in memory")
        # The strides of axes of length 1 may be anything; kernels receive the canonical strides.
        flat = x.transpose(spec.order or range(spec.rank)).reshape(-1, copy=False)
        return laid_out(flat, spec.shape, spec.order)

    return view


def _reversed(axes: Any, rank: int) -> tuple[slice, ...]:
    turned = {axes} if isinstance(axes, int) else set(axes)
    return tuple(slice(None, None, -1 if axis in turned else None) for axis in range(rank))


def _broadcast(x: Any, shape: Shape) -> Any:
    """Broadcast as NumPy does; also valid for arrays on a GPU, whose elements must not be read."""
    missing = len(shape) - x.ndim
    strides = [0] * missing + [
        step if length == wanted else 0
        for step, length, wanted in zip(x.strides, x.shape, shape[missing:], strict=True)
    ]
    return as_strided(x.view(np.ndarray), shape, strides, writeable=False).view(type(x))


_VIEWS: dict[str, Callable[[Node], ViewFunction]] = {
    # copy=False makes NumPy refuse a reshape that would have to copy.
    "reshape": lambda node: lambda x: x.reshape(node.shape, copy=False),
    "transpose": lambda node: lambda x: x.transpose(node.attrs["axes"]),
    "slice": lambda node: lambda x: x[tuple(slice(*bound) for bound in node.attrs["bounds"])],
    "flip": lambda node: lambda x: x[_reversed(node.attrs["axis"], x.ndim)],
    "arrange": _arranged,
    "broadcast_to": lambda node: lambda x: _broadcast(x, node.shape),
    "view_as_real": lambda node: as_pairs,
    "view_as_complex": lambda node: as_numbers,
}


@lru_cache(maxsize=1 << 12)
def meta_array(spec: Spec) -> np.ndarray:
    """Return an array with the right shape, dtype and strides, but without memory.

    Its elements must never be read; it is used only for its strides.
    """
    strides = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)
    return as_strided(np.empty(1, spec.dtype), spec.shape, strides)


def view_of(node: Node, base: np.ndarray) -> tuple[ViewFunction, np.ndarray] | None:
    """Return a function that views an input as `node`, and its result for `base`."""
    make = _VIEWS.get(node.op.name)
    if make is None:
        return None
    function = make(node)
    try:
        return function, function(base)
    except ValueError:
        return None


def is_all_of(seen: np.ndarray, base: Spec, spec: Spec) -> bool:
    """Return True if a view contains all bytes of its base, in the order of a spec."""
    wanted = dense_strides(spec.shape, spec.order, spec.dtype.itemsize)
    pairs = zip(spec.shape, seen.strides, wanted, strict=True)
    return base.nbytes == spec.nbytes and all(n == 1 or step == other for n, step, other in pairs)


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
        """Return the array of this value, from the buffer's array."""
        for function in self.views:
            array = function(array)
        return array


@dataclass
class Step:
    """Kernel call of a plan."""

    node: Node
    kernel: Kernel
    inputs: tuple[BufferView, ...]
    outputs: tuple[Buffer, ...]
    workspace: Buffer | None = None
    is_again: bool = False
    """True if it recomputes a dropped value."""
    transfer: Transfer | None = None
    """Value that it copies between device and host, for lack of memory."""


@dataclass(frozen=True)
class Transfer:
    """Output number `output` of a node is copied to the host, or back from there."""

    node: Node
    output: int
    to_host: bool


@dataclass(frozen=True)
class Root:
    """A node whose value is required in separate memory.

    `overwrites` is the external buffer that occupies the same memory during the run, if any: the
    value may be written there directly only after its last reader.
    """

    node: Node
    key: Key
    overwrites: bool = False


@dataclass(eq=False)
class StepSchedule:
    """Steps and the layout of their arena; made by `schedule_steps`.

    `order` has the nodes, inputs before users; `family` is the kernels' device family.
    `naive_bytes` is the size of the arena without reuse, `host_bytes` the bytes moved to the host.
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
        """Return the call of a step on real memory: `lookup` returns the array of a buffer."""
        inputs = tuple(value.array_in(lookup(value.buffer)) for value in step.inputs)
        outputs = tuple(lookup(buffer) for buffer in step.outputs)
        workspace = None if step.workspace is None else lookup(step.workspace)
        return Call(step.node, outputs, inputs, workspace, communicator, step.kernel.shares)

    def calls(self, lookup: Lookup, communicator: Any = None) -> Iterator[tuple[Kernel, Call]]:
        """Yield every step on real memory, with its kernel."""
        for step in self.steps:
            yield step.kernel, self.call(step, lookup, communicator)

    def bind(self, lookup: Lookup, communicator: Any = None) -> list[tuple[Call, Runner]]:
        """Return the bound runners of the steps, in order."""
        calls = self.calls(lookup, communicator)
        with compiled_together():
            return [(call, kernel.bind(call)) for kernel, call in calls]
