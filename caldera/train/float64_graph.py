"""A graph in double precision: the same ops on float64 copies of its variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.graph.body import Body, topological
from caldera.graph.node import Node, Spec, Symbol
from caldera.graph.opdef import ITEM, item, parameter
from caldera.lazy import Variable, input, lift, var
from caldera.tensor.dtype import float64, is_float


class Float64Graph:
    """What graphs become when everything in them that is floating-point is float64.

    `variables` has the copy of each floating-point variable that was met; the originals, and all
    that is not floating-point, stay as they are.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.lazy import Expr
    >>> w = op.var("w", (2,), fill=cd.constant(3.0))
    >>> widened = Float64Graph()
    >>> Expr(widened.node((w * w).node)).dtype.name, list(widened.variables) == [w.symbol]
    ('float64', True)
    """

    def __init__(self) -> None:
        self.variables: dict[Symbol, Variable] = {}
        self._new: dict[Node, Node] = {}

    def node(self, root: Node) -> Node:
        """The node that computes the same in float64."""
        for each in topological([root]):
            if each not in self._new:
                self._new[each] = self._rebuilt(each)
        return self._new[root]

    def _rebuilt(self, node: Node) -> Node:
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol):
            return self._leaf(node, symbol)
        inputs = [self._new[given] for given in node.inputs]
        if node.op is ITEM:
            return item(inputs[0], node.attrs["index"])
        attrs = {name: _attribute(value) for name, value in node.attrs.items()}
        return node.op.node(*inputs, **attrs)

    def _leaf(self, node: Node, symbol: Symbol) -> Node:
        if not is_float(symbol.spec.dtype):
            return node
        if symbol.role == "input":
            return input(symbol.name, symbol.spec.shape, float64).node
        value = symbol.value.numpy().astype(float64)
        if symbol.role != "variable":
            return lift(value)
        copy = var(symbol.name, symbol.spec.shape, fill=value, dtype=float64)
        self.variables[symbol] = copy
        return copy.node


def _attribute(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return float64 if is_float(value) else value
    if isinstance(value, Spec):
        return _spec(value)
    return _body(value) if isinstance(value, Body) else value


def _spec(spec: Spec) -> Spec:
    return Spec(spec.shape, float64) if is_float(spec.dtype) else spec


def _body(body: Body) -> Body:
    widened = Float64Graph()
    outputs = [widened.node(output) for output in body.outputs]
    arguments = [parameter(index, _spec(spec)) for index, spec in enumerate(body.parameters)]
    return Body(arguments, outputs)
