"""Images of plans: the native calls of a bound plan without this process's addresses.

A plan is bound to memory that is reserved and never touched. The signature of each kernel states
whether a slot has an array, the address of code, or a number. An array is stored as its segment and
the offset in it; a library adds the address of the segment when a model is created.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from caldera.compiler.plan.schedule import Buffer, Step
from caldera.core.graph import Node, Order, Spec, Symbol, laid_out, seen_as, stored_shape
from caldera.core.memory import ALIGNMENT
from caldera.errors import ConfigError
from caldera.export.functions import FunctionPlan
from caldera.kernels.native.codegen import NativeCall, NativeRunner, address_of
from caldera.kernels.native.codegen.compiler import CodeAddress
from caldera.kernels.native.codegen.kernel import AddressTable
from caldera.kernels.reference import evaluate

ARENA, VARIABLES, OWN, CODE, FIRST_PORT = 0, 1, 2, 3, 4
"""Segments: intermediate values, weights and states, arrays of kernels, machine code; then inputs
and outputs, which are the caller's."""


class Relocation(NamedTuple):
    """A slot that contains an address: an offset in a segment, or the number of a kernel."""

    slot: int
    segment: int
    offset: int


class ImageCall(NamedTuple):
    """A kernel by its number, the first of its slots, and the number of parts.

    `status` is the slot with the address of the kernel's error flag, or -1; `op` is the operation.
    """

    kernel: int
    first_slot: int
    parts: int
    status: int
    op: str


@dataclass(frozen=True)
class Port:
    """An input or output of a plan: its shape, and the order in which the plan stores it."""

    name: str
    spec: Spec
    order: Order | None

    @property
    def is_reordered(self) -> bool:
        """True if the plan stores the elements in another order than a caller."""
        return self.order is not None and self.order != tuple(range(self.spec.rank))


@dataclass
class PlanImage:
    """One plan for `rows` samples, to be written to a library."""

    rows: int
    inputs: list[Port]
    outputs: list[Port]
    arena_bytes: int
    slots: list[int] = field(default_factory=list)
    calls: list[ImageCall] = field(default_factory=list)
    relocations: list[Relocation] = field(default_factory=list)
    own: bytearray = field(default_factory=bytearray)


class VariableLayout:
    """Offsets of the variables in the memory of a model, which all plans of a library share."""

    def __init__(self) -> None:
        self.offsets: dict[Symbol, int] = {}
        self.nbytes = 0

    def add(self, symbol: Symbol) -> int:
        """Return the offset of a variable; a new one is placed behind all earlier variables."""
        if symbol not in self.offsets:
            self.offsets[symbol] = self.nbytes
            self.nbytes += _padded(symbol.spec.nbytes)
        return self.offsets[symbol]


class KernelNumbers:
    """The kernels of a library, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.kernels: list[CodeAddress] = []

    def number(self, kernel: CodeAddress) -> int:
        """Return the number of a kernel."""
        if kernel.name not in self._numbers:
            self._numbers[kernel.name] = len(self.kernels)
            self.kernels.append(kernel)
        return self._numbers[kernel.name]


class _Reserved:
    """Address ranges for the values of a plan. The system provides no pages until one is used."""

    def __init__(self, sizes: Sequence[int]) -> None:
        # A gap after each range: an empty array at the end of a range belongs to no other range.
        starts = np.cumsum([0, *(_padded(size) + ALIGNMENT for size in sizes)]).tolist()
        try:
            self._memory = np.frombuffer(mmap.mmap(-1, starts[-1] + ALIGNMENT), np.uint8)
        except (OSError, OverflowError):
            raise ConfigError.build(
                "export",
                expected="plans whose values fit into the address space",
                got=f"{starts[-1]} bytes",
                hint="choose smaller numbers of rows with batch=",
            ) from None
        base = address_of(self._memory)
        self.ranges = [(base + start, size) for start, size in zip(starts[:-1], sizes, strict=True)]
        self._starts = [start for start, _ in self.ranges]

    def array(self, number: int, offset: int, spec: Spec, order: Order | None) -> Any:
        """Return the array at an offset of a range."""
        begin = self._starts[number] - self._starts[0] + offset
        flat = self._memory[begin : begin + spec.nbytes].view(spec.dtype)
        return laid_out(flat.reshape(stored_shape(spec.shape, order)), spec.shape, order)

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the number of the range that contains an address, and the offset in it."""
        number = bisect_right(self._starts, address) - 1
        if number < 0 or address > self._starts[number] + _padded(self.ranges[number][1]):
            return None
        return number, address - self._starts[number]


class PlanImager:
    """Makes the images of plans for one target, which share kernels; all share the variables."""

    def __init__(self, variables: VariableLayout) -> None:
        self.variables = variables
        self.kernels = KernelNumbers()

    def image(self, function: FunctionPlan, rows: int) -> PlanImage:
        """Return the image of a plan for a number of rows."""
        return _Binding(self, function, rows).image()


class _Binding:
    """A plan bound to reserved memory."""

    def __init__(self, owner: PlanImager, function: FunctionPlan, rows: int) -> None:
        plan, inputs, outputs = function
        self._owner = owner
        self._schedule = schedule = plan.schedule
        self._orders = {b.key: b.spec.order for b in schedule.buffers if isinstance(b.key, Symbol)}
        self._symbols = sorted(self._orders, key=lambda symbol: symbol.serial)
        self._inputs = list(inputs)
        self._outputs = [node.spec for node in plan.optimised.outputs]
        found = {each.name: order for each, order in self._orders.items() if each.role == "input"}
        self._image = PlanImage(
            rows,
            [Port(name, spec, found.get(name)) for name, spec in inputs.items()],
            [
                Port(name, spec, spec.order)
                for name, spec in zip(outputs, self._outputs, strict=True)
            ],
            schedule.arena_bytes,
        )
        specs = [*(each.spec for each in self._symbols), *self._outputs]
        self._reserved = _Reserved([schedule.arena_bytes, *(each.nbytes for each in specs)])
        first = FIRST_PORT + len(inputs)
        self._segments = [(ARENA, 0), *map(self._segment, self._symbols)]
        self._segments += [(first + i, 0) for i in range(len(self._outputs))]
        self._constants: dict[Node, np.ndarray] = {}
        self._own: dict[int, tuple[np.ndarray, int]] = {}

    def _segment(self, symbol: Symbol) -> tuple[int, int]:
        """Return the segment of a symbol, and its offset there."""
        if symbol.role == "input":
            return FIRST_PORT + self._inputs.index(symbol.name), 0
        # The array of a constant tensor is not reserved: it is an array of a kernel's own.
        return VARIABLES, self._owner.variables.add(symbol) if symbol.role == "variable" else 0

    def image(self) -> PlanImage:
        """Bind the calls, and return them with relocations."""
        bound = self._schedule.bind(self._lookup)
        for step, (_, runner) in zip(self._schedule.steps, bound, strict=True):
            if not isinstance(runner, NativeRunner):
                raise refused(step)
            for call in runner.calls:
                self._add(step, call)
        return self._image

    def _lookup(self, buffer: Buffer) -> Any:
        root = buffer.root
        if root.place == "constant":
            assert isinstance(root.key, Node)
            if root.key not in self._constants:
                self._constants[root.key] = np.ascontiguousarray(evaluate(root.key, ())[0])
            return self._constants[root.key]
        if root.place == "arena":
            return self._reserved.array(0, root.offset, buffer.spec, buffer.spec.order)
        if isinstance(root.key, Symbol):
            symbol = root.key
            if symbol.role == "array":
                array = symbol.value.numpy()
                return laid_out(np.ascontiguousarray(array), symbol.spec.shape, root.spec.order)
            number = 1 + self._symbols.index(symbol)
            return self._reserved.array(number, 0, symbol.spec, root.spec.order)
        assert isinstance(root.key, tuple), "a plan on the host has all buffers in host memory"
        number = root.key[1]
        spec = self._outputs[number]
        found = self._reserved.array(1 + len(self._symbols) + number, 0, spec, spec.order)
        return seen_as(found, buffer.spec)

    def _add(self, step: Step, call: NativeCall) -> None:
        image, first = self._image, len(self._image.slots)
        status = -1
        for position, (value, word) in enumerate(
            zip(call.values(), call.slots.tolist(), strict=True)
        ):
            slot = first + position
            if isinstance(value, np.ndarray):
                if isinstance(value, AddressTable):
                    raise refused(step)
                segment, offset = self._place(value)
                image.relocations.append(Relocation(slot, segment, offset))
                status = slot if value is call.status else status
                word = 0
            elif isinstance(value, CodeAddress):
                number = self._owner.kernels.number(value)
                image.relocations.append(Relocation(slot, CODE, number))
                word = 0
            image.slots.append(word)
        assert isinstance(call.address, CodeAddress)
        kernel = self._owner.kernels.number(call.address)
        image.calls.append(ImageCall(kernel, first, call.parts, status, step.node.op.name))

    def _place(self, array: np.ndarray) -> tuple[int, int]:
        address = address_of(array)
        found = self._reserved.find(address)
        if found is None:
            return OWN, self._place_own(array, address)
        segment, start = self._segments[found[0]]
        return segment, start + found[1]

    def _place_own(self, array: np.ndarray, address: int) -> int:
        """Return the offset of an array that belongs to a kernel, with all that it is a view of."""
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        start = address_of(whole)
        if start not in self._own:
            own = self._image.own
            own.extend(bytes(_padded(len(own)) - len(own)))
            self._own[start] = whole, len(own)
            own.extend(whole.tobytes("A"))
        return self._own[start][1] + address - start


def refused(step: Step) -> ConfigError:
    """Return the error for a step that no library can contain."""
    return ConfigError.build(
        f"export of op.{step.node.op.name}",
        expected="operations with machine code for CPUs",
        got=f"kernel {step.kernel.name!r}, which needs Python",
        hint="replace the operation, or run this model with Caldera",
    )


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
