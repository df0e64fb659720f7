"""Decomposition of complex numbers into pairs of real ones, before any pass of arithmetic.

Each value becomes two nodes, its real and its imaginary part. All optimisations of real numbers
(algebra, fusion, kernels on every device) therefore apply to complex ones, and kernels do not have
to support them. Complex values in memory are variables, inputs, results and matrices to be
factorised. Their parts are interleaved there: `view_as_real` views such memory, and `complex`
writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caldera.compiler.passes.complex_functions import FUNCTIONS, Parts, is_real, nonzero
from caldera.core.graph import ITEM, LINEAR, Body, Node, Program, as_tuple, item, items, topological
from caldera.core.graph.ops import (
    add,
    cast,
    complex_,
    concat,
    constant,
    full,
    matmul,
    narrow,
    reshape,
    sub,
    view_as_complex,
    view_as_real,
)
from caldera.core.graph.ops.control import scan
from caldera.core.graph.ops.fourier import mirror
from caldera.core.tensor.dtype import bool_, is_complex, part_of

Value = Node | Parts


def complex_parts(program: Program) -> Program:
    """Return the same program, with complex numbers only in reads, writes and factorisations."""
    if not any(map(has_complex, program.order())):
        return program
    return program.with_roots(_Splitter().run(program.roots))


def has_complex(node: Node) -> bool:
    """Return True if a node has complex outputs, or complex numbers in its body."""
    if any(is_complex(spec.dtype) for spec in node.outputs):
        return True
    return node.op is scan and any(map(has_complex, node.attrs["body"].order()))


class _Splitter:
    def __init__(self) -> None:
        # What became of each output of a node: a real node, or two parts.
        self.values: dict[Node, tuple[Value, ...]] = {}
        # Complex values that are in memory as such.
        self.whole: dict[Node, Node] = {}
        # The pairs that a complex value was seen in.
        self.pairs: dict[Node, Node] = {}

    def run(self, roots: Sequence[Node]) -> list[Node]:
        self._visit_all(roots)
        return [self._in_memory(root) for root in roots]

    def _visit_all(self, roots: Sequence[Node]) -> None:
        for node in topological(roots, set(self.values)):
            if node not in self.values:
                self.values[node] = self._visit(node)

    def _visit(self, node: Node) -> tuple[Value, ...]:
        if node.op is ITEM:
            return (self._item(node),)
        if not has_complex(node) and not any(map(has_complex, node.inputs)):
            inputs = tuple(self._real(given) for given in node.inputs)
            return (node.op.rebuild(node, inputs),)
        name = node.op.name
        if name == "constant":
            value, dtype = node.attrs["value"], part_of(node.dtype)
            return ((constant(value.real, dtype), constant(value.imag, dtype)),)
        if not node.inputs:
            return (self._split(node, node),)
        if name in _RULES:
            return (_RULES[name](self, node),)
        if name in FUNCTIONS:
            return (FUNCTIONS[name](*map(self._value, node.inputs)),)
        if name in LINEAR and node.op.decompose is None:
            return self._each_part(node)
        return self._with_memory(node) if node.op.decompose is None else self._decomposed(node)

    # --- values of nodes that were visited

    def _value(self, node: Node) -> Value:
        return self.values[node][0]

    def _real(self, node: Node) -> Node:
        value = self._value(node)
        assert isinstance(value, Node), f"{node} is complex"
        return value

    def _parts(self, node: Node) -> Parts:
        value = self._value(node)
        assert isinstance(value, tuple), f"{node} is real"
        return value

    def _in_memory(self, node: Node) -> Node:
        """Return the value as one node: complex numbers with their parts side by side."""
        value = self._value(node)
        if isinstance(value, Node):
            return value
        if node not in self.whole:
            known = self.pairs.get(node)
            if known is None or not _is_written(known):
                self.whole[node] = complex_(*value)
            else:
                # A kernel's pairs have the same memory layout as complex numbers.
                self.whole[node] = view_as_complex(known)
        return self.whole[node]

    def _split(self, node: Node, whole: Node) -> Parts:
        self.whole[node] = whole
        return _halves(view_as_real(whole))

    def _item(self, node: Node) -> Value:
        value = self.values[node.inputs[0]]
        index = node.attrs["index"]
        if len(value) > 1:
            return value[index]
        maker = value[0]
        assert isinstance(maker, Node)
        new = item(maker, index)
        return self._split(node, new) if is_complex(node.dtype) else new

    # --- kinds of ops

    def _each_part(self, node: Node) -> tuple[Value, ...]:
        """A linear op with real coefficients, on the real parts and on the imaginary ones."""
        made = []
        for which in (0, 1):
            values = map(self._value, node.inputs)
            inputs = [each if isinstance(each, Node) else each[which] for each in values]
            made.append(items(node.op.node(*inputs, **_attrs_of_part(node, which))))
        return tuple(zip(*made, strict=True))

    def _decomposed(self, node: Node) -> tuple[Value, ...]:
        assert node.op.decompose is not None
        parts = as_tuple(node.op.decompose(*node.inputs, **node.attrs))
        self._visit_all(parts)
        return tuple(map(self._value, parts))

    def _with_memory(self, node: Node) -> tuple[Value, ...]:
        """Return an op whose kernels know complex numbers, or a loop that hands them on."""
        inputs = [self._in_memory(given) for given in node.inputs]
        attrs = dict(node.attrs)
        if node.op is scan:
            body: Body = attrs["body"]
            attrs["body"] = body.with_outputs(_Splitter().run(body.outputs))
        new = node.op.node(*inputs, **attrs)
        if len(node.outputs) == 1 and is_complex(node.dtype):
            return (self._split(node, new),)
        return (new,)

    # --- ops with a rule of their own

    def _cast(self, node: Node) -> Value:
        value = self._value(node.inputs[0])
        dtype = part_of(node.dtype)
        if isinstance(value, Node):
            real = cast(value, dtype)
            return real, full(real.shape, 0, dtype)
        if node.dtype == bool_:
            return nonzero(value)
        return cast(value[0], dtype), cast(value[1], dtype)

    def _view_as_real(self, node: Node) -> Value:
        given = node.inputs[0]
        known = self.pairs.get(given)
        return view_as_real(self._in_memory(given)) if known is None else known

    def _view_as_complex(self, node: Node) -> Value:
        self.pairs[node] = self._real(node.inputs[0])
        return _halves(self.pairs[node])

    def _matmul(self, node: Node) -> Value:
        (a, b), (c, d) = (self._parts(given) for given in node.inputs)

        def product(x: Node, y: Node) -> Node:
            return matmul(x, y, **node.attrs)

        if is_real((c, d)):
            return product(a, c), product(b, c)
        if is_real((a, b)):
            return product(a, c), product(a, d)
        return (
            sub(product(a, c), product(b, d)),
            add(product(a, d), product(b, c)),
        )

    def _prod(self, node: Node) -> Value:
        """Return the product of complex numbers, by repeated products of two halves."""
        x = self._parts(node.inputs[0])
        for axis in node.attrs["axis"]:
            x = _product_along(x, axis)
        return reshape(x[0], node.shape), reshape(x[1], node.shape)


_RULES: dict[str, Any] = {
    "cast": _Splitter._cast,
    "view_as_real": _Splitter._view_as_real,
    "view_as_complex": _Splitter._view_as_complex,
    "matmul": _Splitter._matmul,
    "prod": _Splitter._prod,
}


def _is_written(node: Node) -> bool:
    """Return True if a kernel writes it; other movements may be views, with gaps in memory."""
    return bool(node.inputs) and (node.op is mirror or node.op.kind != "movement")


def _halves(pairs: Node) -> Parts:
    last = len(pairs.shape) - 1
    first, second = (reshape(narrow(pairs, last, which, 1), pairs.shape[:-1]) for which in (0, 1))
    return first, second


def _attrs_of_part(node: Node, which: int) -> dict[str, Any]:
    if node.op.name != "pad":
        return dict(node.attrs)
    value = node.attrs["value"]
    return {**node.attrs, "value": value.imag if which else value.real}


def _product_along(x: Parts, axis: int) -> Parts:
    n = x[0].shape[axis]
    if n == 0:
        shape = (*x[0].shape[:axis], 1, *x[0].shape[axis + 1 :])
        return full(shape, 1, x[0].dtype), full(shape, 0, x[0].dtype)
    while n > 1:
        half = n // 2
        first, second = (
            (narrow(x[0], axis, start, half), narrow(x[1], axis, start, half))
            for start in (0, half)
        )
        made: Any = FUNCTIONS["mul"](first, second)
        if n % 2:
            rest = [narrow(part, axis, n - 1, 1) for part in x]
            made = tuple(concat((part, left), axis) for part, left in zip(made, rest, strict=True))
        x, n = made, half + n % 2
    return x
