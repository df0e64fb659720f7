"""Interned graph nodes, device pins, and the weak table behind the interning.

A node is pure structure: an op, its inputs, its static attributes, and the shape and dtype of
each output (and, once it is decided, its memory layout). Nodes are immutable and interned, so two
equal expressions are one object and common subexpressions merge when they are written. A node
refers to no value, device or rank.

An expression written inside `pinned(...)` becomes a separate node that carries the name of the
device: the same expression elsewhere is another node. Only the plan reads the name. The nodes of
a gradient belong to the device of their op.

`WeakTable` keeps no value alive and needs no lock between threads. A WeakValueDictionary would
need one, and takes twice as long for a new value: planning creates mostly new nodes.
"""

from __future__ import annotations

import itertools
import struct
import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from caldera.core.graph.memory_format import Order, order_name
from caldera.core.tensor import DType, Shape, size

if TYPE_CHECKING:
    from caldera.core.graph.opdef import Op


_current: ContextVar[str | None] = ContextVar("caldera_pin", default=None)
_is_used = False


class _Pinned:
    """A block of code: one of every few nodes is written in one, so it is entered quickly."""

    __slots__ = ("_device", "_token")

    def __init__(self, device: str | None) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._token: Token[str | None] = _current.set(self._device)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def pinned(device: str | None) -> _Pinned:
    """Nodes written inside belong on the device of this name; with None nowhere.

    >>> from caldera.core.graph.ops.base import constant
    >>> from caldera.core.graph.ops.elementwise import exp
    >>> import numpy as np
    >>> x = constant(0.25, np.dtype("float32"))
    >>> with pinned("cpu"):
    ...     node = exp(x)
    >>> node.pin, exp(x).pin
    ('cpu', None)
    """
    global _is_used
    _is_used = _is_used or device is not None
    return _Pinned(device)


def current_pin() -> str | None:
    """Return the name of the device that new nodes are pinned to, or None."""
    return _current.get()


def any_pins() -> bool:
    """Return True if any node may be pinned."""
    return _is_used


_written_here: ContextVar[set[Node] | None] = ContextVar("caldera_written", default=None)
_is_recording = False


@contextmanager
def written() -> Iterator[set[Node]]:
    """Collect the nodes that a block creates, including existing ones.

    >>> from caldera.core.graph.ops.base import full
    >>> from caldera.core.tensor.dtype import float32
    >>> before = full((2,), 1.0, float32)
    >>> with written() as found:
    ...     again = full((2,), 1.0, float32)
    >>> again in found
    True
    """
    global _is_recording
    _is_recording = True
    outer, found = _written_here.get(), set[Node]()
    token = _written_here.set(found)
    try:
        yield found
    finally:
        _written_here.reset(token)
        if outer is not None:
            outer |= found


Value = TypeVar("Value")


class _Entry(weakref.ref[Any]):
    __slots__ = ("key",)
    key: Hashable


class WeakTable(Generic[Value]):
    """Dictionary that holds weak references to its values.

    >>> from caldera.core.graph.node import WeakTable
    >>> table, first, second = WeakTable(), set("a"), set("a")
    >>> table.setdefault("ones", first) is table.setdefault("ones", second) is first
    True
    >>> del first
    >>> table.setdefault("ones", second) is second
    True
    """

    def __init__(self) -> None:
        entries: dict[Hashable, _Entry] = {}
        self._entries = entries

        def forget(entry: _Entry) -> None:
            # Only if it is dead: another value may have come to its place in the meantime.
            _remove_dead_weakref(entries, entry.key)

        self._forget = forget

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """Return the value, or None."""
        known = self._entries.get(key)
        return None if known is None else known()

    def setdefault(self, key: Hashable, value: Value) -> Value:
        """Return the value that is there; else this one, which is there from now on."""
        entry = _Entry(value, self._forget)
        entry.key = key
        while True:
            # Atomic: concurrent threads all receive the first entry.
            known = self._entries.setdefault(key, entry)
            found: Value | None = known()
            if found is not None:
                return found
            # Another thread is about to forget it.
            self._forget(known)


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of a value, and the order of its axes in memory (None: row major).

    Plans and kernels use the order; rules of ops never see it.
    """

    shape: Shape
    dtype: DType
    order: Order | None = None

    @property
    def logical(self) -> Spec:
        """Spec without the memory order."""
        return self if self.order is None else Spec(self.shape, self.dtype)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return size(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes the value takes."""
        return size(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        text = f"{self.shape} {self.dtype.name}"
        return text if self.order is None else f"{text} {order_name(self.order)}"


class Symbol:
    """Identity of a value that a graph reads but does not compute.

    `role` is "variable" (state, may be assigned), "input" (fed at each run), "tensor" (a user's
    live data), "array" (a constant array) or "parameter" (an argument of a body being traced).
    `value` belongs to the creator of the symbol; the graph never reads it. `users` are stored for
    the lifetime of the symbol, since they are only reachable through it.
    """

    __slots__ = ("__weakref__", "name", "role", "serial", "spec", "users", "value")
    _serials = itertools.count()
    rebinds = 0
    """Number of times any symbol received a new value; users of cached values compare it."""

    def __init__(self, name: str, spec: Spec, role: str, value: Any = None) -> None:
        self.name = name
        self.spec = spec
        self.role = role
        self.value = value
        self.serial = next(Symbol._serials)
        self.users: dict[Hashable, object] = {}

    def move(self, value: Any) -> None:
        """Replace the value by another of the same shape and dtype."""
        self.value = value
        Symbol.rebinds += 1

    def __repr__(self) -> str:
        return f"<{self.role} {self.name or self.serial} {self.spec}>"


class Node:
    """An op applied to inputs. Make one by calling an `Op`; equal calls give the same node."""

    __slots__ = (
        "__weakref__",
        "attrs",
        "attrs_key",
        "inputs",
        "op",
        "outputs",
        "pin",
        "serial",
        "simplified_by",
    )
    _serials = itertools.count()

    op: Op
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    attrs_key: Hashable
    outputs: tuple[Spec, ...]
    pin: str | None
    """Name of the device it is pinned to, or None; see `pins`."""
    serial: int
    simplified_by: object
    """Rules that were last tried on it without a match."""

    @property
    def spec(self) -> Spec:
        """Shape and dtype of the only output."""
        (spec,) = self.outputs
        return spec

    @property
    def shape(self) -> Shape:
        """Shape of the only output."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Dtype of the only output."""
        return self.spec.dtype

    def __repr__(self) -> str:
        return f"<{describe(self)}>"


_table: WeakTable[Node] = WeakTable()


def frozen(value: Any) -> Hashable:
    """Return a key under which attribute values are equal only if type and bits are.

    1, True and 1.0 differ, and so do 0.0 and -0.0.
    """
    kind = type(value)
    if kind is int or kind is str:
        return kind, value
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    if isinstance(value, complex):
        return complex, struct.pack("<2d", value.real, value.imag)
    if isinstance(value, tuple):
        return tuple([frozen(part) for part in value])
    if isinstance(value, Symbol):
        return Symbol, id(value)
    return kind, value


def intern(
    op: Op, inputs: tuple[Node, ...], attrs: Mapping[str, Any], outputs: tuple[Spec, ...]
) -> Node:
    """Return the node with this structure, existing or new."""
    attrs_key = tuple([(name, frozen(attrs[name])) for name in sorted(attrs)]) if attrs else ()
    return _interned(op, inputs, attrs, attrs_key, outputs)


def intern_like(node: Node, inputs: tuple[Node, ...], outputs: tuple[Spec, ...]) -> Node:
    """Return the node that differs from another only in inputs and outputs."""
    return _interned(node.op, inputs, node.attrs, node.attrs_key, outputs)


def _interned(
    op: Op,
    inputs: tuple[Node, ...],
    attrs: Mapping[str, Any],
    attrs_key: Hashable,
    outputs: tuple[Spec, ...],
) -> Node:
    # Leaves differ only in attributes, which may include the dtype; all other nodes are determined
    # by op, inputs and attributes, except for the memory order. `a + b` and `b + a` are one node,
    # which keeps the order of the first. Keys contain no references: a node keeps its components
    # alive, so object ids are valid as long as its entry.
    if op.commutative and inputs[0].serial > inputs[1].serial:
        operands = tuple(map(id, inputs[::-1]))
    else:
        operands = tuple(map(id, inputs))
    orders = outputs[0].order if len(outputs) == 1 else tuple([each.order for each in outputs])
    # Leaves have a fixed location.
    pin = current_pin() if inputs else None
    key = (op, operands, attrs_key, orders, pin)
    found = _table.get(key)
    if found is None:
        node = Node()
        node.op = op
        node.inputs = inputs
        node.attrs = attrs
        node.attrs_key = attrs_key
        node.outputs = outputs
        node.pin = pin
        node.simplified_by = None
        node.serial = next(Node._serials)
        found = _table.setdefault(key, node)
    if _is_recording:
        here = _written_here.get()
        if here is not None:
            here.add(found)
    return found


def describe(node: Node, depth: int = 2) -> str:
    """Return the node as a reader would write it, with its shape: `matmul(W, X) (6, 3) float32`."""
    specs = " and ".join(str(spec) for spec in node.outputs)
    return f"{_written(node, depth)} {specs}"


def _written(node: Node, depth: int) -> str:
    symbol = node.attrs.get("symbol")
    if isinstance(symbol, Symbol):
        return symbol.name or symbol.role
    if node.op.name == "constant":
        return repr(node.attrs["value"])
    if node.op.name == "item":
        return f"{_written(node.inputs[0], depth)}[{node.attrs['index']}]"
    if not node.inputs:
        return node.op.name
    if depth == 0:
        return f"{node.op.name}(…)"
    return f"{node.op.name}({', '.join(_written(child, depth - 1) for child in node.inputs)})"
