"""Weight updates fused into gradient products, embedding rows and half-precision copies.

`W - rate * (x^T g + decay * W)` is a sum of W and a matrix product, each times a number: one call
of a BLAS, which then neither writes the gradient to memory nor reads it again. The gradient must
have no other reader. The velocity of descent with momentum is such a sum as well. The order of
addition differs from the written one, so the last digit may differ.

The gradient of an embedding is a table of zeros to which rows are added, and `W - rate * gradient`
would read and write all of W for a few rows. Instead the rows, times the rate, are added to W
itself. For a row named twice, its updates are added in order and not their sum, so its last digit
may differ.

In mixed precision a product reads a cast of its float32 weights. If a program updates these, the
update of the preceding run has the values of the cast in registers. A second variable stores them:
the update writes both, and products read the second one. It has the same bits. The casts must be
explicit, so this runs before `fuse` joins them with other loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caldera.compiler.passes.constants import source_of, uniform
from caldera.core.graph import Node, Op, Program, Symbol, rewrite, substitute, users_of
from caldera.core.graph.ops import (
    add,
    cast,
    constant,
    matmul,
    mul,
    neg,
    reshape,
    sub,
    variable,
    where,
)
from caldera.core.graph.ops.epilogue import matmul_accumulate
from caldera.core.graph.ops.indexing import scatter_add
from caldera.core.tensor.dtype import HALVES, DType, float32


def update_product(program: Program) -> Program:
    """Join products with the new value of the variable that they change."""
    return _joined_updates(program, matmul, _accumulated)


def _joined_updates(
    program: Program, gradient: Op, joined: Callable[[Node, Update], Node | None]
) -> Program:
    """Return the program with updates by an op's gradients rewritten by `joined`."""
    if not any(node.op is gradient for node in program.order()):
        return program
    finder = _UpdateFinder(program, gradient)
    held = {node.attrs["symbol"]: node for node in program.order() if "symbol" in node.attrs}
    replaced: dict[Node, Node] = {}
    for symbol, value in program.updates:
        weight = held.get(symbol)
        update = None if weight is None else finder.find(value, weight)
        found = None if weight is None or update is None else joined(weight, update)
        if found is not None:
            replaced[value] = found
    if not replaced:
        return program
    return program.with_roots(substitute(program.roots, replaced))


def _accumulated(weight: Node, update: Update) -> Node | None:
    if len(weight.shape) != 2 or weight.dtype in HALVES:
        return None
    a, b = update.gradient.inputs
    alpha, beta = update.alpha, update.beta
    if update.condition is not None:
        # For a rejected step alpha is 0, so its gradient has no effect, regardless of its values.
        alpha = where(update.condition, alpha, constant(0.0, alpha.dtype))
        beta = where(update.condition, beta, constant(1.0, beta.dtype))
    return matmul_accumulate(weight, a, b, alpha, beta, **update.gradient.attrs)


@dataclass(frozen=True)
class Update:
    """`alpha * gradient + beta * W` if `condition` is true or None, else W."""

    gradient: Node
    alpha: Node
    beta: Node
    condition: Node | None


Terms = dict[Node, Node]
"""A sum of weights and gradients: the factor of each, a number."""


class _UpdateFinder:
    """Finder of updates: variables whose new value is the old one plus an op's gradient.

    The gradient must have no other use.
    """

    def __init__(self, program: Program, gradient: Op) -> None:
        self.users = users_of(program.order())
        self.roots = set(program.roots)
        self._gradient = gradient

    def find(self, value: Node, weight: Node) -> Update | None:
        """Return the update if `value` is a sum of the weight and one product; else None."""
        if value is weight:
            return None
        condition, new = _unless_refused(value, weight)
        terms = self._terms(new, weight) or {}
        products = [node for node in terms if node is not weight]
        if weight not in terms or len(products) != 1 or not self._is_only_for(products[0], value):
            return None
        return Update(products[0], terms[products[0]], terms[weight], condition)

    def _terms(self, node: Node, weight: Node) -> Terms | None:
        if node is weight or (node.op is self._gradient and node.shape == weight.shape):
            return {node: constant(1.0, weight.dtype)}
        if node.op is mul:
            return self._scaled(node, weight)
        if node.op not in (neg, add, sub):
            return None
        total: Terms = {}
        for index, given in enumerate(node.inputs):
            terms = self._terms(given, weight)
            if terms is None:
                return None
            is_subtracted = node.op is not add and index == len(node.inputs) - 1
            for key, factor in terms.items():
                part = neg(factor) if is_subtracted else factor
                total[key] = add(total[key], part) if key in total else part
        return total

    def _scaled(self, node: Node, weight: Node) -> Terms | None:
        for matrix, factor in (node.inputs, node.inputs[::-1]):
            number = _number(factor)
            if number is not None:
                inner = self._terms(matrix, weight)
                return inner and {key: _times(each, number) for key, each in inner.items()}
        return None

    def _is_only_for(self, product: Node, value: Node) -> bool:
        """Return True if all readers of the product contribute only to this value."""
        pending = [product]
        while pending:
            node = pending.pop()
            if node is value:
                continue
            if node in self.roots:
                return False
            if node is not product and node.op not in (add, sub, mul, neg):
                return False
            pending.extend(self.users[node])
        return True


def _times(factor: Node, number: Node) -> Node:
    return number if factor.attrs.get("value") == 1 else mul(factor, number)


def _unless_refused(value: Node, weight: Node) -> tuple[Node | None, Node]:
    """Return the truth value on which a variable takes its new value at all, if there is one.

    The value.

    A step that overflowed is refused by `where(it went well, new, old)`.
    """
    if value.op is where and value.inputs[2] is weight:
        condition = _number(value.inputs[0])
        if condition is not None:
            return condition, value.inputs[1]
    return None, value


def _number(node: Node) -> Node | None:
    """Return the number that a node holds in every element; None if it may hold several."""
    node = source_of(node)
    return reshape(node, ()) if node.spec.size == 1 and len(node.shape) < 2 else None


def update_rows(program: Program) -> Program:
    """Add rows to the variable that they change."""
    return _joined_updates(program, scatter_add, _added)


def _added(weight: Node, update: Update) -> Node | None:
    start, indices, rows = update.gradient.inputs
    is_whole = update.beta.attrs.get("value") == 1 and uniform(start) == 0
    if not is_whole or rows.spec.size >= weight.spec.size:
        # Decay changes every row, and so does a batch that names them all.
        return None
    scaled = mul(rows, update.alpha)
    if update.condition is not None:
        # Adding -0.0 changes no value, not even the sign of zero.
        scaled = where(update.condition, scaled, constant(-0.0, rows.dtype))
    return scatter_add(weight, indices, scaled, **update.gradient.attrs)


VIEWS = frozenset({"reshape", "transpose", "broadcast_to"})
"""Ops whose result is a view of a variable."""

CopyOf = Callable[[Symbol, DType], Symbol | None]
"""The variable that holds another one in this dtype, or None if there can be none."""


def weight_copies(program: Program, copy_of: CopyOf) -> tuple[Program, dict[Symbol, Symbol]]:
    """Return the program that reads such copies and updates them.

    The variable that each is a copy of.
    """
    updates = dict(program.updates)
    copies: dict[tuple[Symbol, DType], Symbol | None] = {}

    def copied(node: Node, half: DType) -> Node | None:
        """Return a view of a variable's copy in place of a view of the variable."""
        if node.op.name in VIEWS:
            below = copied(node.inputs[0], half)
            return None if below is None else node.op.rebuild(node, (below,))
        symbol = node.attrs.get("symbol")
        if node.op is not variable or node.dtype != float32 or symbol not in updates:
            return None
        if (symbol, half) not in copies:
            copies[symbol, half] = copy_of(symbol, half)
        copy = copies[symbol, half]
        return None if copy is None else variable(symbol=copy)

    def rule(node: Node) -> Node | None:
        is_narrowing = node.op.name == "cast" and node.dtype in HALVES
        return copied(node.inputs[0], node.dtype) if is_narrowing else None

    new = program.with_roots(rewrite(program.roots, rule))
    values = dict(new.updates)
    made = {copy: (symbol, half) for (symbol, half), copy in copies.items() if copy is not None}
    written = tuple((copy, cast(values[symbol], half)) for copy, (symbol, half) in made.items())
    originals = {copy: symbol for copy, (symbol, _) in made.items()}
    return Program(new.outputs, new.updates + written), originals
