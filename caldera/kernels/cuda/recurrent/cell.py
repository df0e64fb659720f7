"""Loop bodies as recurrent cells: the work of a thread for one unit of a row at a step.

All layers of `nn.recurrent` are loops whose body has one product with fixed weights. All other
operations are element-wise, on vectors of `units` numbers, several of which may be adjacent in one
array (gates). The same holds for their gradients. This module recognises such a body and writes the
operations before and after its product as statements; `cell_source` makes a struct from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from caldera.core.graph import ITEM, Body, Node, as_tuple, rewrite, topological
from caldera.core.graph.ops.control import fused
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import float32
from caldera.kernels.cuda.codegen import HALVES, STORED, applied, can_apply, computed_type, literal

Phase = Literal["before", "after"]
SINGLE = -1
"""The vector of an array that has one number for all units."""
WORD = 4
"""Bytes."""
_KINDS = {"float16": "Half", "bfloat16": "Bfloat"}


@dataclass(frozen=True)
class Leaf:
    """Vector of a parameter of the body."""

    number: int
    vector: int

    @property
    def name(self) -> str:
        """Name of the field that stores it."""
        return f"x{self.number}" + ("" if self.vector == SINGLE else f"_{self.vector}")


@dataclass(frozen=True)
class RecurrentCell:
    """Computation of a step for a unit of a row.

    `left` has the values that are multiplied, one for each vector; the product has `right` vectors.
    `outputs` has the values of each output of the body, with the phase in which they are computed.
    """

    rows: int
    units: int
    kind: str
    """Multiplication on tensor cores: the struct of recurrent.cuh."""
    weights: int
    """Index of the parameter that is the matrix of the product."""
    transposed: bool
    left: tuple[str, ...]
    right: int
    outputs: tuple[tuple[tuple[Phase, str], ...], ...]
    statements: dict[Phase, list[str]]
    kept: dict[str, str]
    """Values from before the product that are needed after it, with their types."""
    leaves: tuple[Leaf, ...]
    """Vectors that are read, besides the weights."""
    ahead: tuple[Leaf, ...]
    """Leaves that can be copied to shared memory while the previous step is computed."""


def cell_of(node: Node) -> RecurrentCell | None:
    """Return the cell of a loop; None if its body is none."""
    return _cell_of(node.attrs["body"], node.attrs["carries"], node.attrs["sequences"])


@lru_cache(maxsize=64)
def _cell_of(body: Body, carries: int, sequences: int) -> RecurrentCell | None:
    try:
        return _Writer(body, carries, sequences).cell()
    except _NotACellError:
        return None


class _NotACellError(Exception):
    """Raised if the body contains an operation that the kernel does not support."""


def _expect(condition: bool) -> None:
    if not condition:
        raise _NotACellError


def _inlined(node: Node) -> Node | None:
    """Expand fused bodies and epilogues to their component ops."""
    if node.op is ITEM and node.inputs[0].op is fused:
        whole = node.inputs[0]
        results: Sequence[Node] = whole.attrs["body"](*whole.inputs)
        return results[node.attrs["index"]]
    if node.op is fused and len(node.outputs) == 1:
        (result,) = node.attrs["body"](*node.inputs)
        return rewrite([result], _inlined)[0]
    if node.op.name == "matmul_epilogue":
        assert node.op.decompose is not None
        return as_tuple(node.op.decompose(*node.inputs, **node.attrs))[0]
    return None


@dataclass
class _Writer:
    body: Body
    carries: int
    sequences: int
    statements: dict[Phase, list[str]] = field(default_factory=lambda: {"before": [], "after": []})
    known: dict[tuple[Node, int], str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    leaves: dict[Leaf, None] = field(default_factory=dict)

    def cell(self) -> RecurrentCell:
        """Return the cell, or _NotACellError."""
        _expect(self.carries > 0 and len(self.body.parameters[0].shape) == 2)
        self.rows, self.units = self.body.parameters[0].shape
        _expect(self.rows > 0 and self.units > 0)
        outputs = rewrite(self.body.outputs, _inlined)
        order = topological(outputs)
        products = [node for node in order if node.op is matmul]
        _expect(len(products) == 1)
        (self.product,) = products
        self.late = _users(order, self.product)
        weights, transposed = self._weights()
        multiplied = self.product.inputs[0]
        return RecurrentCell(
            self.rows,
            self.units,
            self._kind(),
            weights,
            transposed,
            tuple(self._value(multiplied, k, "before") for k in range(self._vectors(multiplied))),
            self._vectors(self.product),
            tuple(self._output(number, node) for number, node in enumerate(outputs)),
            self.statements,
            self.kept,
            tuple(self.leaves),
            tuple(filter(self._is_ahead, self.leaves)),
        )

    # --- what the body is

    def _is_ahead(self, leaf: Leaf) -> bool:
        is_given = self.carries <= leaf.number < self.carries + self.sequences
        # Asynchronous copies of a GPU have at least four bytes.
        return is_given and self.body.parameters[leaf.number].dtype.itemsize == WORD

    def _weights(self) -> tuple[int, bool]:
        given, transposed = self.product.inputs[1], bool(self.product.attrs["tb"])
        if given.op.name == "transpose" and given.attrs["axes"] == (1, 0):
            given, transposed = given.inputs[0], not transposed
        _expect(given.op.name == "parameter" and len(given.shape) == 2)
        _expect(not self.product.attrs["ta"])
        number = int(given.attrs["index"])
        _expect(number >= self.carries + self.sequences)
        return number, transposed

    def _kind(self) -> str:
        first, second = (each.dtype for each in self.product.inputs)
        if first == second == self.product.dtype == float32:
            return "Rounded" if self.product.attrs.get("compute") == "tf32" else "Exact"
        _expect(first == second and first.name in _KINDS)
        return _KINDS[first.name]

    def _vectors(self, node: Node) -> int:
        """Return the number of vectors of all units in the rows of a node."""
        _expect(len(node.shape) == 2 and node.shape[0] == self.rows)
        _expect(node.shape[1] % self.units == 0)
        return int(node.shape[1]) // self.units

    def _output(self, number: int, node: Node) -> tuple[tuple[Phase, str], ...]:
        phase: Phase = "after" if number < self.carries or node in self.late else "before"
        return tuple((phase, self._value(node, k, phase)) for k in range(self._vectors(node)))

    # --- values

    def _value(self, node: Node, vector: int, phase: Phase) -> str:
        """Return the expression for a node's value in a vector of this unit, as in `phase`."""
        key = (node, vector)
        made: Phase = "after" if node in self.late else "before"
        if key not in self.known:
            self.known[key] = self._made(node, vector, made)
        name = self.known[key]
        if made == "before" and phase == "after" and name.startswith("v"):
            self.kept[name] = computed_type(node.dtype.name)
        return name

    def _made(self, node: Node, vector: int, phase: Phase) -> str:
        op, dtype = node.op.name, node.dtype.name
        if op == "parameter":
            return self._leaf(node, vector)
        if op == "constant":
            return literal(node.attrs["value"], dtype)
        if node is self.product:
            sum_ = f"right[{vector}]"
            if dtype not in HALVES:
                return sum_
            return self._statement(node, f"rounded<{STORED[dtype]}>({sum_})", phase)
        if node.op.kind == "movement" or op in ("broadcast_to", "reshape"):
            source, place = self._moved(node, vector)
            return self._value(source, place, phase)
        _expect(node.op.kind == "elementwise" and set(node.attrs) <= {"dtype"})
        _expect(all(can_apply(op, given.dtype.name) for given in node.inputs))
        operands = [self._value(x, self._aligned(x, node, vector), phase) for x in node.inputs]
        sources = tuple(given.dtype.name for given in node.inputs)
        return self._statement(node, applied((op, dtype, sources, ()), operands), phase)

    def _statement(self, node: Node, text: str, phase: Phase) -> str:
        name = f"v{sum(map(len, self.statements.values()))}"
        self.statements[phase].append(f"{computed_type(node.dtype.name)} {name} = {text};")
        return name

    def _leaf(self, node: Node, vector: int) -> str:
        number, shape = int(node.attrs["index"]), node.shape
        _expect(node.dtype.name in STORED and len(shape) <= 2)
        _expect(len(shape) < 2 or shape[0] in (1, self.rows))
        if vector != SINGLE:
            _expect(shape[-1] % self.units == 0 and vector < shape[-1] // self.units)
        # A carry is stored as declared, independent of the shape in which it is read.
        leaf = Leaf(number, max(vector, 0) if number < self.carries else vector)
        self.leaves[leaf] = None
        held = "given" if number < self.carries + self.sequences else "fixed"
        return f"{'carry' if number < self.carries else held}.{leaf.name}"

    def _aligned(self, given: Node, node: Node, vector: int) -> int:
        """Return the vector of an operand that corresponds to this vector of a node."""
        shape = given.shape
        if not shape or (shape[-1] == 1 and node.shape[-1:] != (1,)):
            return SINGLE
        _expect(len(shape) <= len(node.shape) and shape[-1] == node.shape[-1])
        return vector

    def _moved(self, node: Node, vector: int) -> tuple[Node, int]:
        """Return the source of a value that is only moved."""
        op, first = node.op.name, node.inputs[0]
        if op == "reshape":
            _expect(_without_ones(first.shape) == _without_ones(node.shape))
        if op in ("reshape", "broadcast_to"):
            return first, self._aligned(first, node, vector)
        if op == "slice":
            self._vectors(first)
            rows, (start, stop, step) = node.attrs["bounds"]
            _expect(rows == (0, self.rows, 1) and step == 1)
            _expect(start % self.units == 0 and (stop - start) % self.units == 0)
            return first, start // self.units + vector
        _expect(op == "concat" and node.attrs["axis"] == 1 and len(node.shape) == 2)
        for given in node.inputs:
            if vector < self._vectors(given):
                return given, vector
            vector -= self._vectors(given)
        raise _NotACellError


def _users(order: Sequence[Node], product: Node) -> set[Node]:
    """Return all nodes that depend on the product, including the product."""
    found = {product}
    for node in order:
        if any(given in found for given in node.inputs):
            found.add(node)
    return found


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without the axes of length 1 that it begins with."""
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    return tuple(shape[first:])
