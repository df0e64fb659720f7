"""Products of dense layers in 8-bit floating-point numbers, between layers in bfloat16.

The program is in bfloat16 already. Each factor of a layer's products is multiplied so that its
largest number is the largest of the format, rounded to 8 bits, and multiplied along rows, as tensor
cores require. Inputs and weights are "e4m3", gradients "e5m2". A matrix that several products read
is rounded once, as it is and transposed.

The first and the last layer stay in bfloat16, and so do small layers: rounding their factors would
take longer than their products gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.compiler.passes.constants import source_of
from caldera.core.graph import ITEM, Node, Program, item
from caldera.core.graph.node import Symbol
from caldera.core.graph.ops import constant, div, matmul, mul, reshape
from caldera.core.graph.ops.float8 import float8_factor, float8_matmul, to_float8
from caldera.core.tensor.dtype import bfloat16, float32
from caldera.core.tensor.shape import Shape, size

MULTIPLE = 16
"""Divisor of all sides: tensor cores read rows at aligned addresses."""
WORTHWHILE = 600.0
"""Least 1 / (1 / rows + 1 / columns + 1 / length) of a product in 8 bits.

The gain grows with rows x columns x length, the time of rounding with the sizes of the three
matrices. On an H200 they are equal at about 500.
"""


@dataclass(frozen=True)
class _Factor:
    """A factor of a product as a matrix: the value, and True if its rows are not the sums'."""

    value: Node
    form: str
    transposed: bool

    @property
    def shape(self) -> Shape:
        """Shape of the value as a matrix."""
        shape = self.value.shape
        return (size(shape[:-1]), shape[-1])

    @property
    def extent(self) -> tuple[int, int]:
        """Length of the side that the result keeps, and of the sums."""
        first, second = self.shape
        return (second, first) if self.transposed else (first, second)


Factors = tuple[_Factor, _Factor]


def float8_products(program: Program) -> Program:
    """Return the program with the products of inner dense layers in 8 bits."""
    order = program.order()
    chosen = _chosen(order)
    layouts: dict[tuple[Node, str], set[bool]] = {}
    for factors in chosen.values():
        for each in factors:
            layouts.setdefault((each.value, each.form), set()).add(each.transposed)
    new: dict[Node, Node] = {}
    rounded: dict[tuple[Node, str], _Rounded] = {}

    def operand(factor: _Factor) -> _Rounded:
        key = (factor.value, factor.form)
        if key not in rounded:
            value = reshape(new[factor.value], factor.shape)
            rounded[key] = _Rounded.of(value, factor.form, tuple(sorted(layouts[key])))
        return rounded[key]

    for node in order:
        if node in chosen:
            new[node] = _product(node, chosen[node], *map(operand, chosen[node]))
        elif node.op is ITEM:
            new[node] = item(new[node.inputs[0]], node.attrs["index"])
        else:
            new[node] = node.op.rebuild(node, tuple(new[each] for each in node.inputs))
    return program.with_roots([new[root] for root in program.roots])


@dataclass(frozen=True)
class _Rounded:
    """A matrix in 8 bits: its bytes in each requested layout, and the factor."""

    bytes: dict[bool, Node]
    factor: Node

    @classmethod
    def of(cls, value: Node, form: str, transposed: tuple[bool, ...]) -> _Rounded:
        factor = float8_factor(value, form=form)
        node = to_float8.node(value, factor, form=form, transposed=transposed)
        results = [node] if len(transposed) == 1 else [item(node, i) for i in range(2)]
        return cls(dict(zip(transposed, results, strict=True)), factor)


def _product(node: Node, factors: Factors, a: _Rounded, b: _Rounded) -> Node:
    left, right = factors
    scale = div(constant(1.0, float32), mul(a.factor, b.factor))
    result = float8_matmul(
        a.bytes[left.transposed],
        b.bytes[right.transposed],
        scale,
        forms=(left.form, right.form),
        dtype=node.dtype,
        # Gradients add up many small terms.
        fast=left.form == right.form,
    )
    return reshape(result, node.shape)


# --- the products


@dataclass(frozen=True)
class _Use:
    """A product with a weight: position of the weight, and whether it is transposed there."""

    symbol: Symbol
    position: int
    transposed: bool


def _chosen(order: Sequence[Node]) -> dict[Node, Factors]:
    """Return the products to compute in 8 bits, with their factors."""
    products = [node for node in order if node.op is matmul and node.dtype == bfloat16]
    uses = {node: use for node in products if (use := _use(node)) is not None}
    forward: dict[Symbol, Node] = {}
    for node, use in uses.items():
        forward.setdefault(use.symbol, node)
    inner = _between_layers(order, set(forward.values()))
    chosen: dict[Node, Factors] = {}
    inputs: set[Node] = set()
    for node, use in uses.items():
        first = forward[use.symbol]
        if first not in inner:
            continue
        gives = uses[first] == use
        factors = _factors(node, use.position, "e4m3" if gives else "e5m2")
        if factors is not None and _pays(factors):
            chosen[node] = factors
            if gives:
                inputs.add(_value_of(node.inputs[1 - use.position]))
    for node in products:
        known = [_value_of(each) in inputs for each in node.inputs]
        if node not in uses and sum(known) == 1:
            factors = _factors(node, known.index(True), "e5m2")
            if factors is not None and _pays(factors):
                chosen[node] = factors
    return chosen


def _use(node: Node) -> _Use | None:
    """Return the use of a weight in a product, if one of its factors is a weight."""
    for position, given in enumerate(node.inputs):
        source = source_of(given, ("cast",))
        if source.op.name == "variable" and len(source.shape) == 2:
            transposed = node.attrs["tb" if position else "ta"]
            return _Use(source.attrs["symbol"], position, transposed)
    return None


def _value_of(node: Node) -> Node:
    return source_of(node, ("reshape", "cast"))


def _factors(node: Node, known: int, form: str) -> Factors | None:
    """Return both factors as matrices: the factor at `known` is "e4m3", its partner `form`.

    The result is None for batches of products.
    """
    a, b = node.inputs
    ta, tb = node.attrs["ta"], node.attrs["tb"]
    if len(b.shape) != 2 or (len(a.shape) != 2 and ta):
        return None
    forms = ("e4m3", form) if known == 0 else (form, "e4m3")
    return _Factor(a, forms[0], ta), _Factor(b, forms[1], not tb)


def _pays(factors: Factors) -> bool:
    (rows, length), (columns, _) = (each.extent for each in factors)
    sides = (rows, columns, length)
    if not all(sides) or any(side % MULTIPLE for side in sides):
        return False
    return 1 / sum(1 / side for side in sides) >= WORTHWHILE


def _between_layers(order: Sequence[Node], forward: set[Node]) -> set[Node]:
    """Return the layers' products that neither come first nor last."""
    after: set[Node] = set()
    for node in order:
        if any(given in after or given in forward for given in node.inputs):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(order):
        if node in before or node in forward:
            before.update(node.inputs)
    return forward & after & before
