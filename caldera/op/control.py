"""Loops as expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from caldera.errors import CalderaError, ShapeError
from caldera.graph.body import Body, topological
from caldera.graph.node import Node, Spec, Symbol, describe
from caldera.graph.opdef import location
from caldera.graph.ops import control
from caldera.graph.ops.leaf import input_
from caldera.lazy import Expr, lift
from caldera.tensor import Tensor


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    reverse: bool = False,
    length: int | None = None,
) -> tuple[Any, Any]:
    """A loop over axis 0 of `xs`: `body(carry, x) -> (carry, y)` for each step.

    The result is the last carry and all `y`, stacked along axis 0. Carry, x and y are each one
    expression, or tuples of them (also nested); y may be None. A step must give back the carry with
    the shapes and dtypes it came in. Without `xs` the number of steps is `length`, and x is None.
    `reverse` goes through the steps from the last to the first; y of step t still stands at t.

    The body is called once, to write it down: it may read any expression from outside, all of which
    are the same at every step, random numbers too (give them an `offset` made from the carry or x
    for new ones). It may not assign variables.

    >>> import caldera as cd
    >>> from caldera import op
    >>> def step(total, x):
    ...     total = total + x
    ...     return total, total * 10.0
    >>> last, scaled = op.scan(step, 0.0, cd.tensor([1.0, 2.0, 3.0]))
    >>> last.item(), scaled.tolist()
    (6.0, [10.0, 30.0, 60.0])
    """
    where = location("scan")
    sequences = [lift(x) for x in _leaves(xs)]
    steps = _length(where, sequences, length)
    starts = [lift(value) for value in _leaves(init)]
    carries = [_argument("carry", node.spec) for node in starts]
    elements = [_argument("x", Spec(node.shape[1:], node.dtype)) for node in sequences]
    arguments = [*carries, *elements]
    outcome = body(_like(init, iter(carries)), _like(xs, iter(elements)))
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        raise CalderaError.build(
            where, expected="a body that returns (carry, y)", got=type(outcome).__name__,
            hint="return (carry, None) if there is no y",
        )  # fmt: skip
    carry, y = outcome
    if _skeleton(carry) != _skeleton(init):
        raise CalderaError.build(
            where, expected=f"a carry built like the first one, {_skeleton(init)}",
            got=str(_skeleton(carry)),
        )  # fmt: skip
    after = [lift(new, old.dtype) for new, old in zip(_leaves(carry), starts, strict=True)]
    outputs = [*after, *[lift(value) for value in _leaves(y)]]
    _check_body(where, arguments, outputs)
    constants = control.close_over(arguments, outputs)
    node = control.scan.node(
        *starts, *sequences, *constants, body=Body([*arguments, *constants], outputs),
        carries=len(starts), sequences=len(sequences), length=steps, reverse=reverse,
    )  # fmt: skip
    results = iter(control.items(node))
    return _like(init, results), _like(y, results)


# --- structures: nested tuples (or lists of expressions) with values in their places


def _is_structure(value: Any) -> bool:
    # A list of numbers is an array; one that holds expressions is meant as several values.
    return isinstance(value, tuple) or (
        isinstance(value, list) and any(isinstance(part, Expr | Tensor) for part in value)
    )


def _leaves(value: Any) -> list[Any]:
    if value is None:
        return []
    if _is_structure(value):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _like(value: Any, nodes: Iterator[Node]) -> Any:
    """The structure of `value` with the next nodes in place of its leaves."""
    if value is None:
        return None
    if _is_structure(value):
        return tuple(_like(part, nodes) for part in value)
    return Expr(next(nodes))


def _skeleton(value: Any) -> Any:
    if value is None or not _is_structure(value):
        return None if value is None else "value"
    return tuple(_skeleton(part) for part in value)


# --- what a body may be


def _argument(name: str, spec: Spec) -> Node:
    # A symbol of its own, so that arguments of loops inside loops are never taken for each other.
    node: Node = input_(symbol=Symbol(name, spec, "parameter"))
    return node


def _length(where: str, sequences: Sequence[Node], length: int | None) -> int:
    if any(not node.shape for node in sequences):
        got = ", ".join(describe(node) for node in sequences if not node.shape)
        raise ShapeError.build(where, expected="sequences with an axis of steps", got=got)
    lengths = {node.shape[0] for node in sequences} | ({length} if length is not None else set())
    if len(lengths) != 1 or min(lengths) < 0:
        shapes = ", ".join(describe(node) for node in sequences) or "none"
        raise ShapeError.build(
            where, expected="one number of steps: sequences of one length, or length=",
            got=f"sequences {shapes} and length={length}",
        )  # fmt: skip
    return lengths.pop()


def _check_body(where: str, arguments: Sequence[Node], outputs: Sequence[Node]) -> None:
    if not outputs:
        raise CalderaError.build(where, expected="a carry or a y", got="neither")
    # The arguments are younger than everything outside, so what is younger was made by the body.
    start = min((node.serial for node in arguments), default=0)
    for node in topological(outputs):
        if node.op.name == "assign" and node.serial > start:
            raise CalderaError.build(
                where, expected="a body without assignments", got=describe(node),
                hint="carry the value, and assign it after the loop",
            )  # fmt: skip
