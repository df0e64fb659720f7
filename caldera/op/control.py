"""Loops, choices, assignment, and sums over ranks, as expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, Variable, lift, lift_all
from caldera.core.graph import (
    ITEM,
    Body,
    Node,
    Op,
    Spec,
    Symbol,
    describe,
    location,
    topological,
)
from caldera.core.graph.node import written
from caldera.core.graph.ops import (
    base,
    broadcast_to,
    cast,
    collective,
    control,
    full,
    input_,
    logical_and,
    logical_not,
)
from caldera.core.graph.ops.elementwise import guarded
from caldera.core.graph.ops.elementwise import where as choose
from caldera.core.tensor import Tensor, bool_, is_inexact, is_integer, normalise_axis
from caldera.errors import CalderaError, DtypeError, ShapeError
from caldera.op.creation import eye

__all__ = ["all_gather", "all_sum", "assign", "cond", "scan", "sum_scatter", "while_loop"]

_MATRIX_OPS = frozenset(
    {"cholesky", "determinant", "eig", "eigh", "inverse", "pinv", "qr", "slogdet", "solve", "svd"}
)
"""Ops that reject matrices by value, or whose derivatives do."""


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    reverse: bool = False,
    length: int | None = None,
) -> tuple[Any, Any]:
    """Loop over axis 0 of `xs`: `body(carry, x) -> (carry, y)` for each step.

    The result is the last carry and all `y`, stacked along axis 0. Carry, x and y are each one
    expression, or (nested) tuples of expressions; y may be None. A step must return the carry with
    unchanged shapes and dtypes. Without `xs` the number of steps is `length`, and x is None.
    `reverse` runs the steps from last to first; y of step t still has index t.

    The body is called once, to record it. It may read any expression from outside, with the same
    value at every step. This includes random numbers: for new ones at each step, pass them an
    `offset` computed from the carry or x. It must not assign variables.

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
    sequences = [lift(x) for x in leaves_of(xs)]
    steps = _length(where, sequences, length)
    starts = [lift(value) for value in leaves_of(init)]
    carries = [argument("carry", node.spec) for node in starts]
    elements = [argument("x", Spec(node.shape[1:], node.dtype)) for node in sequences]
    arguments = [*carries, *elements]
    outcome = body(like_structure(init, iter(carries)), like_structure(xs, iter(elements)))
    carry, y = _checked_outcome(where, outcome, init)
    after = [lift(new, old.dtype) for new, old in zip(leaves_of(carry), starts, strict=True)]
    outputs = [*after, *[lift(value) for value in leaves_of(y)]]
    _check_body(where, arguments, outputs)
    constants = control.close_over(arguments, outputs)
    found = control.scan.outputs(
        *starts,
        *sequences,
        *constants,
        body=Body([*arguments, *constants], outputs),
        carries=len(starts),
        sequences=len(sequences),
        length=steps,
        reverse=reverse,
    )
    results = iter(found)
    return like_structure(init, results), like_structure(y, results)


def _checked_outcome(where: str, outcome: Any, init: Any) -> tuple[Any, Any]:
    """Return the carry and the y that a body returned."""
    require(
        isinstance(outcome, tuple) and len(outcome) == 2,
        where,
        "a body that returns (carry, y)",
        type(outcome).__name__,
        hint="return (carry, None) if there is no y",
        error=CalderaError,
    )
    carry, y = outcome
    _expect_like(where, init, carry, "a carry built like the first one")
    return carry, y


def while_loop(
    condition: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, steps: int
) -> Any:
    """Apply `body(carry) -> carry` while `condition(carry)` is true, at most `steps` times.

    The carry is one expression, or tuples of expressions, as for `op.scan`; the condition is one
    truth value. All steps are computed, and steps after the end leave the carry unchanged. So the
    loop has derivatives, to which these steps do not contribute, and takes the time of `steps`
    steps.

    >>> from caldera import op
    >>> op.while_loop(lambda x: x < 100.0, lambda x: x * 2.0, 3.0, steps=20).item()
    192.0
    """
    where = location("while_loop")

    def step(state: Any, _: None) -> tuple[Any, None]:
        going, carry = state
        new = _side(going.node, body, carry)
        _expect_like(where, carry, new, "a carry built like the first one")
        pairs = zip(leaves_of(new), leaves_of(carry), strict=True)
        held = [_held(where, going.node, value, lift(old)) for value, old in pairs]
        kept = like_structure(carry, iter(held))
        return (Expr(logical_and(going.node, _truth(where, condition(kept)))), kept), None

    start = like_structure(init, iter([lift(value) for value in leaves_of(init)]))
    first = Expr(_truth(where, condition(start)))
    (_, last), _ = scan(step, (first, start), length=steps)
    return last


def cond(
    predicate: Any, when_true: Callable[..., Any], when_false: Callable[..., Any], *operands: Any
) -> Any:
    """Return `when_true(*operands)` or `when_false(*operands)`, depending on one truth value.

    Results are expressions, or tuples of expressions, with the same shapes on both sides. Both are
    computed, and one is selected. The derivative flows only through the selected side, even if the
    derivative of the unselected side is infinite or nan. (For a selection element by element, use
    `op.where`.)

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0])
    >>> op.cond(op.sum(x) > 2.0, lambda x: x * 10.0, lambda x: -x, x).tolist()
    [10.0, 20.0]
    """
    where = location("cond")
    truth = _truth(where, predicate)
    first = _side(truth, when_true, *operands)
    second = _side(logical_not(truth), when_false, *operands)
    _expect_like(where, first, second, "results built alike on both sides")
    chosen = []
    for pair in zip(leaves_of(first), leaves_of(second), strict=True):
        yes, no = lift_all(*pair)
        if yes.shape != no.shape:
            raise ShapeError.build(
                where,
                expected="results of the same shape",
                got=f"{describe(yes)} and {describe(no)}",
            )
        chosen.append(choose(truth, yes, no))
    return like_structure(first, iter(chosen))


def _side(taken: Node, write: Callable[..., Any], *operands: Any) -> Any:
    """Rewrite the result of one side of a choice so that it is harmless if not selected.

    Expressions read from outside then have no derivative, which might be infinite or nan. Positions
    beyond the end of an axis and singular matrices, which would raise errors, are replaced by 0 and
    by the identity.
    """
    with written() as made:
        outcome = write(*operands)
    values = leaves_of(outcome)
    needed: set[Node] = set()
    pending = [value.node for value in values if isinstance(value, Expr)]
    while pending:
        node = pending.pop()
        if node in made and node.inputs and node not in needed:
            needed.add(node)
            pending += node.inputs
    new: dict[Node, Node] = {}
    for node in sorted(needed, key=lambda each: each.serial):
        # Items of a node from outside, and identifiers of random numbers and variables.
        if node.op is not ITEM or node.inputs[0] in new:
            keeps = node.op is ITEM or node.op.kind in ("random", "state")
            inputs = [
                new.get(each) or (each if keeps else _harmless(each, taken)) for each in node.inputs
            ]
            new[node] = node.op.rebuild(node, tuple(_accepted(node, inputs, taken)))
    return _mapped(outcome, lambda each: Expr(new.get(each.node, each.node)))


def _accepted(node: Node, inputs: list[Node], taken: Node) -> list[Node]:
    """Return operands that no kernel refuses, where the side is not taken."""
    if node.op.name in _MATRIX_OPS:
        first = inputs[0]
        identity = eye(*first.shape[-2:], dtype=first.dtype).node
        return [choose(taken, first, identity), *inputs[1:]]
    if node.op.kind == "movement" and len(inputs) > 1:
        return [
            choose(taken, each, full((), 0, each.dtype)) if is_integer(each.dtype) else each
            for each in inputs
        ]
    return inputs


def _harmless(node: Node, taken: Node) -> Node:
    if node.op.name in ("constant", "iota", "array"):
        return node
    if is_integer(node.dtype):
        return choose(taken, node, full((), 0, node.dtype))
    return guarded(node, taken) if is_inexact(node.dtype) else node


def _expect_like(where: str, first: Any, second: Any, expected: str) -> None:
    if _skeleton(first) != _skeleton(second):
        raise CalderaError.build(
            where, expected=f"{expected}, {_skeleton(first)}", got=str(_skeleton(second))
        )


def _truth(where: str, value: Any) -> Node:
    node = lift(value)
    if node.shape != () or node.dtype != bool_:
        raise ShapeError.build(
            where,
            expected="a boolean scalar",
            got=describe(node),
            hint="compare, and use op.any or op.all",
        )
    return node


def _held(where: str, going: Node, value: Any, old: Node) -> Node:
    """Return the new value of a carry, or the old one when the loop has ended."""
    new = lift(value, old.dtype)
    if new.spec != old.spec:
        raise ShapeError.build(
            where,
            expected=f"a body that returns its carry as {old.spec}",
            got=describe(new),
            hint="cast or reshape the carry inside the body",
        )
    return choose(going, new, old)


# --- structures: nested tuples (or lists of expressions) with values in their places


def _is_structure(value: Any) -> bool:
    # A list of numbers is an array; one that holds expressions is meant as several values.
    return isinstance(value, tuple) or (
        isinstance(value, list) and any(isinstance(part, Expr | Tensor) for part in value)
    )


def leaves_of(value: Any) -> list[Any]:
    """Return the values in nested tuples, in order."""
    if value is None:
        return []
    if _is_structure(value):
        return [leaf for part in value for leaf in leaves_of(part)]
    return [value]


def like_structure(value: Any, nodes: Iterator[Node]) -> Any:
    """Return the structure of `value` with the next nodes in place of its leaves."""
    if value is None:
        return None
    if _is_structure(value):
        return tuple(like_structure(part, nodes) for part in value)
    return Expr(next(nodes))


def _mapped(value: Any, function: Callable[[Expr], Expr]) -> Any:
    """Return the structure of `value` with a function of each expression in its place."""
    if _is_structure(value):
        return tuple(_mapped(part, function) for part in value)
    return function(value) if isinstance(value, Expr) else value


def _skeleton(value: Any) -> Any:
    if value is None or not _is_structure(value):
        return None if value is None else "value"
    return tuple(_skeleton(part) for part in value)


# --- what a body may be


def argument(name: str, spec: Spec) -> Node:
    """Return a placeholder node for an argument of a body."""
    # A separate symbol, so that arguments of nested loops are never confused.
    return input_(symbol=Symbol(name, spec, "parameter"))


def _length(where: str, sequences: Sequence[Node], length: int | None) -> int:
    if any(not node.shape for node in sequences):
        got = ", ".join(describe(node) for node in sequences if not node.shape)
        raise ShapeError.build(where, expected="sequences with an axis of steps", got=got)
    lengths = {node.shape[0] for node in sequences} | ({length} if length is not None else set())
    if len(lengths) != 1 or min(lengths) < 0:
        shapes = ", ".join(describe(node) for node in sequences) or "none"
        raise ShapeError.build(
            where,
            expected="a common number of steps: sequences of equal length, or length=",
            got=f"sequences {shapes} and length={length}",
        )
    return lengths.pop()


def _check_body(where: str, arguments: Sequence[Node], outputs: Sequence[Node]) -> None:
    require(outputs, where, "a carry or a y", "neither", error=CalderaError)
    # The arguments are newer than all outside nodes, so newer nodes were created by the body.
    start = min((node.serial for node in arguments), default=0)
    for node in topological(outputs):
        if node.op.name == "assign" and node.serial > start:
            raise CalderaError.build(
                where,
                expected="a body without assignments",
                got=describe(node),
                hint="carry the value, and assign it after the loop",
            )


def assign(target: Variable, value: Any) -> Expr:
    """Assign a new value to a variable: evaluating this or a dependent expression stores it.

    All reads in one run see the old values; all assignments are committed together at its end.

    >>> import caldera as cd
    >>> from caldera import op
    >>> n = op.var("n", (), fill=cd.constant(1.0))
    >>> op.assign(n, n * 10.0).eval().item(), n.numpy().item()
    (10.0, 10.0)
    """
    require(
        isinstance(target, Variable),
        "op.assign",
        "a variable made by op.var",
        type(target).__name__,
        hint="only variables keep a value between runs",
        error=DtypeError,
    )
    new = lift(value, target.dtype)
    if new.shape == () and target.shape != ():
        new = broadcast_to(new, target.shape)
    return Expr(base.assign(target.node, cast(new, target.dtype)))


def all_sum(x: Any, axis: str = "data") -> Expr:
    """Return the sum of `x` over all ranks along a named axis of the mesh; `x` without ranks.

    The plan receives its communicator from `cd.compile(..., communicator=)`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.all_sum(cd.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return Expr(collective.all_sum(lift(x), axis=axis, number=collective.next_number()))


def all_gather(x: Any, sizes: Sequence[int], rank: int, dim: int = 0, axis: str = "model") -> Expr:
    """Concatenate the parts of all ranks along a named axis of the mesh, along axis `dim`.

    `sizes` has the length of each rank's part; `x` is the part of `rank`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     x = cd.tensor([1.0, 2.0][: comm.rank + 1])
    ...     whole = op.all_gather(x, (1, 2), comm.rank)
    ...     return cd.compile(whole, communicator=comm).run()[0].tolist()
    >>> run_virtual_ranks(2, work)
    [[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
    """
    return _parts(collective.all_gather, "all_gather", x, sizes, rank, dim, axis)


def sum_scatter(x: Any, sizes: Sequence[int], rank: int, dim: int = 0, axis: str = "model") -> Expr:
    """Return this rank's part, along `dim`, of the sum of `x` over ranks; see `all_gather`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     x = cd.tensor([1.0, 2.0, 3.0])
    ...     part = op.sum_scatter(x, (1, 2), comm.rank)
    ...     return cd.compile(part, communicator=comm).run()[0].tolist()
    >>> run_virtual_ranks(2, work)
    [[2.0], [4.0, 6.0]]
    """
    return _parts(collective.sum_scatter, "sum_scatter", x, sizes, rank, dim, axis)


def _parts(
    make: Op, name: str, x: Any, sizes: Sequence[int], rank: int, dim: int, axis: str
) -> Expr:
    node, where = lift(x), location(name)
    require(
        0 <= rank < len(sizes),
        where,
        f"a rank of the {len(sizes)} that have parts",
        rank,
        error=ShapeError,
    )
    return Expr(
        make(
            node,
            axis=axis,
            dim=normalise_axis(dim, len(node.shape), where),
            sizes=tuple(sizes),
            rank=rank,
            number=collective.next_number(),
        )
    )
