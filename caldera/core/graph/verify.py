"""Verification that a program is well formed; tests run it after every pass.

A failure shows the node with its inputs and readers, since the pass went wrong there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from caldera.core.graph import (
    ITEM,
    OPS,
    Body,
    Mismatch,
    Node,
    Program,
    Spec,
    Symbol,
    describe,
    intern,
    item,
    pinned,
    topological,
    users_of,
)
from caldera.errors import CalderaError

NEIGHBOURS = 6
"""Maximum number of inputs and readers shown in a failure."""


class MalformedGraphError(CalderaError, AssertionError):
    """A program that breaks a rule of graphs: an error of the pass that rewrote it.

    >>> issubclass(MalformedGraphError, AssertionError)
    True
    """


def verify(program: Program, after: str = "") -> None:
    """Raise `MalformedGraphError` unless the program keeps every rule of graphs.

    `after` names the pass that made it.

    >>> from caldera.core.graph.ops.base import constant
    >>> from caldera.core.graph.program import Program
    >>> from caldera.core.tensor.dtype import float32
    >>> verify(Program((constant(1.0, float32),)))
    """
    path = (f"after {after}",) if after else ()
    check = _Checker(topological(program.roots), path, parameters=None)
    check.all_nodes()
    check.roots(program.roots)
    updated: set[Symbol] = set()
    for symbol, node in program.updates:
        check.expect(
            node,
            symbol.role == "variable",
            f"it is the new value of {symbol}, which is no variable",
        )
        check.expect(node, symbol not in updated, f"it is a second new value of {symbol}")
        check.expect(
            node,
            symbol.spec == node.spec,
            f"it is the new value of {symbol}, which has another shape or dtype",
        )
        updated.add(symbol)


class _Checker:
    """The rules, for the nodes of a program or of a body."""

    def __init__(
        self, order: Sequence[Node], path: tuple[str, ...], parameters: tuple[Spec, ...] | None
    ) -> None:
        self.order = order
        self.path = path
        self.parameters = parameters

    def fail(self, node: Node, problem: str) -> NoReturn:
        """Raise, with the neighbourhood of the node."""
        readers = users_of(self.order).get(node, [])
        lines = [f"{': '.join(('malformed graph', *self.path))}: {problem}"]
        lines.append(f"  node      {_shown(node)}")
        attrs = [f"{name}={value!r}" for name, value in node.attrs.items()]
        lines += [f"  attribute {text}" for text in attrs]
        lines += [f"  input     {_shown(given)}" for given in node.inputs[:NEIGHBOURS]]
        lines += [f"  read by   {_shown(reader)}" for reader in readers[:NEIGHBOURS]]
        raise MalformedGraphError("\n".join(lines))

    def expect(self, node: Node, fits: bool, problem: str) -> None:
        """Raise unless it fits."""
        if not fits:
            self.fail(node, problem)

    def roots(self, roots: Sequence[Node]) -> None:
        """Check that each root is a single value, not a node with several outputs."""
        for node in roots:
            self.expect(
                node,
                len(node.outputs) == 1,
                "all of a node with several outputs leaves as if it were one value",
            )

    def all_nodes(self) -> None:
        """Apply every rule to every node, and to the bodies that nodes contain."""
        for node in self.order:
            self.attributes(node)
            self.leaf(node)
            if node.op is ITEM:
                self.item(node)
            else:
                self.inferred(node)
            for value in node.attrs.values():
                if isinstance(value, Body):
                    self.body(node, value)

    def attributes(self, node: Node) -> None:
        """Check that ops are registered, attributes hashable, and updates not in the graph."""
        self.expect(
            node,
            OPS.get(node.op.name) is node.op,
            f"its op is not the one registered as {node.op.name!r}",
        )
        self.expect(
            node,
            node.op.name != "assign",
            "the graph contains an assign; updates belong to the program",
        )
        for name, value in node.attrs.items():
            try:
                hash(value)
            except TypeError:
                self.fail(node, f"attribute {name} is not hashable")

    def leaf(self, node: Node) -> None:
        """Check that parameters occur only in bodies, and that bodies read no outside values."""
        symbol = node.attrs.get("symbol")
        if isinstance(symbol, Symbol):
            self.expect(
                node,
                self.parameters is None,
                "a body reads something from outside that is no argument",
            )
            self.expect(
                node, symbol.role != "parameter", "an argument of a body is used outside the body"
            )
        if node.op.name == "parameter":
            if self.parameters is None:
                self.fail(node, "an argument of a body is used outside the body")
            index, spec = node.attrs["index"], node.attrs["spec"]
            self.expect(
                node,
                0 <= index < len(self.parameters),
                f"the body has only {len(self.parameters)} arguments",
            )
            self.expect(
                node,
                self.parameters[index] == spec,
                f"the body's argument {index} is {self.parameters[index]}",
            )

    def item(self, node: Node) -> None:
        """An item takes one output that exists of a node that has several."""
        index = node.attrs.get("index")
        if len(node.inputs) != 1 or not isinstance(index, int):
            self.fail(node, "an item has one input and an index")
        (given,) = node.inputs
        self.expect(node, len(given.outputs) > 1, "an item is taken of a node with one output")
        self.expect(
            node, 0 <= index < len(given.outputs), f"there are only {len(given.outputs)} outputs"
        )
        self.expect(
            node,
            node.outputs == (given.outputs[index],),
            f"output {index} is {given.outputs[index]}",
        )
        self.expect(node, item(given, index) is node, "another node of the same structure exists")

    def inferred(self, node: Node) -> None:
        """Check that outputs follow from the op and its inputs, and that no equal node exists."""
        for given in node.inputs:
            self.expect(
                node,
                len(given.outputs) == 1,
                f"it reads all outputs of op.{given.op.name} as if they were one",
            )
        specs = [given.spec.logical for given in node.inputs]
        try:
            inferred = node.op.infer(*specs, **node.attrs)
        except Mismatch as mismatch:
            self.fail(node, f"its op refuses these inputs and expects {mismatch.expected}")
        except CalderaError as error:
            self.fail(node, f"its op refuses these inputs: {error}")
        except (TypeError, ValueError) as error:
            self.fail(node, f"its op does not take these inputs and attributes: {error}")
        outputs = (inferred,) if isinstance(inferred, Spec) else tuple(inferred)
        # Passes determine the memory layout of a value; the op determines the rest.
        if [spec.logical for spec in node.outputs] != [spec.logical for spec in outputs]:
            self.fail(node, f"its op returns {' and '.join(map(str, outputs))}")
        for spec in node.outputs:
            if spec.order is not None and sorted(spec.order) != list(range(spec.rank)):
                self.fail(node, f"the order {spec.order} is no order of its axes")
        with pinned(node.pin):
            found = intern(node.op, node.inputs, dict(node.attrs), node.outputs)
        self.expect(node, found is node, "another node of the same structure exists")

    def body(self, node: Node, body: Body) -> None:
        """Apply all rules to the body of a node."""
        path = (*self.path, f"in the body of op.{node.op.name}")
        inside = _Checker(body.order(), path, body.parameters)
        inside.all_nodes()
        inside.roots(body.outputs)


def _shown(node: Node) -> str:
    try:
        return f"#{node.serial} {describe(node, 1)}"
    except (IndexError, KeyError):
        # Too broken to be written as a reader would.
        return f"#{node.serial} {node.op.name} of {len(node.inputs)} inputs"
