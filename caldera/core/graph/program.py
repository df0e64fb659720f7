"""A program: what is computed and which variables change.

All reads see the values from before the run; all updates commit together at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera.core.graph.body import rewrite, topological
from caldera.core.graph.node import Node, Symbol
from caldera.core.graph.opdef import ITEM, Nodes
from caldera.errors import CalderaError


@dataclass(frozen=True)
class Program:
    """Outputs, and for each updated variable the node of its new value."""

    outputs: Nodes
    updates: tuple[tuple[Symbol, Node], ...] = ()

    @property
    def roots(self) -> Nodes:
        """Every node that has to be computed."""
        return self.outputs + tuple(value for _, value in self.updates)

    def with_roots(self, roots: Sequence[Node]) -> Program:
        """The same program over rewritten roots."""
        if tuple(roots) == self.roots:
            # Most passes find nothing to change: the order of the nodes is known.
            return self
        count = len(self.outputs)
        targets = [symbol for symbol, _ in self.updates]
        return Program(tuple(roots[:count]), tuple(zip(targets, roots[count:], strict=True)))

    def order(self) -> Sequence[Node]:
        """All nodes, inputs before users."""
        # Not a cached_property: before Python 3.12 threads wait for each other at those.
        kept: dict[str, tuple[Node, ...]] = self.__dict__
        order = kept.get("_order")
        if order is None:
            order = kept["_order"] = tuple(topological(self.roots))
        return order


def program_of(outputs: Sequence[Node], updates: Sequence[Node] = ()) -> Program:
    """The program that computes `outputs` and performs every `assign` in `updates` or below."""
    changed: dict[Symbol, Node] = {}
    for node in topological([*outputs, *updates]):
        _check_leaf(node)
        if node.op.name != "assign":
            continue
        symbol: Symbol = node.inputs[0].attrs["symbol"]
        if changed.setdefault(symbol, node.inputs[1]) is not node.inputs[1]:
            raise CalderaError.build(
                "op.assign",
                expected="at most one new value for a variable in a program",
                got=f"two for {symbol.name}",
                hint="combine them into one expression",
            )
    # The value of an assignment is the new value; the update itself is now on the program.
    program = Program(tuple(outputs), tuple(changed.items()))
    return program.with_roots(rewrite(program.roots, _value_of_assign))


def _check_leaf(node: Node) -> None:
    symbol = node.attrs.get("symbol")
    if symbol is not None and symbol.role == "parameter":
        raise CalderaError.build(
            "eval",
            expected="values that exist outside of a loop",
            got=f"{symbol.name} {symbol.spec}, an argument of a body",
            hint="return it from the body, as a carry or a y",
        )


def _value_of_assign(node: Node) -> Node | None:
    return node.inputs[1] if node.op.name == "assign" else None


Outputs = Sequence[Node | None]
Rule = Callable[[Node, Nodes], Outputs | None]


def rebuild(program: Program, rule: Rule) -> Program:
    """Rebuild bottom-up; `rule(node, new_inputs)` may give a new node for each output of a node.

    It gives None to keep the node, and None for an output that nobody reads.
    """
    new: dict[Node, Node] = {}
    replaced: dict[Node, Outputs] = {}
    for node in program.order():
        if node.op is ITEM and node.inputs[0] in replaced:
            output = replaced[node.inputs[0]][node.attrs["index"]]
            assert output is not None, f"{node} is read after all"
            new[node] = output
            continue
        inputs = tuple([new[given] for given in node.inputs])
        outputs = rule(node, inputs)
        if outputs is None:
            new[node] = node.op.rebuild(node, inputs)
            continue
        replaced[node] = outputs
        # A node with several outputs is read by its items alone: what stands here is never used.
        new[node] = outputs[0] if len(node.outputs) == 1 and outputs[0] is not None else node
    return program.with_roots([new[root] for root in program.roots])
