"""Functions whose derivatives are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera.compiler.lazy import Expr, lift
from caldera.core.graph import Body, Node, describe, location, substitute, topological
from caldera.core.graph.ops import control, full
from caldera.core.tensor import is_inexact
from caldera.errors import GradientError, ShapeError
from caldera.op.control import argument

__all__ = ["custom_gradient"]


def custom_gradient(
    function: Callable[..., Any], backward: Callable[..., Any], *inputs: Any
) -> Any:
    """Return `function(*inputs)` with gradients from `backward(gradient, result, *inputs)`.

    `backward` returns a gradient for each input, or None for a zero gradient; for a single input it
    may return the gradient itself. If the function returns a tuple, `gradient` and `result` are
    tuples. Both functions are called once, to record them. Their results are expressions like any
    other, also in layers and loops, and the gradient can be differentiated again.

    Variables, and values of `op.input`, that the function reads have to be among the inputs, or
    behind `op.stop_gradient`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> def straight_through(gradient, result, x):
    ...     return gradient
    >>> x = op.var("x", (3,), fill=[0.2, 0.7, 1.8])
    >>> y = op.custom_gradient(op.round, straight_through, x)
    >>> y.tolist(), op.grad(op.sum(y * y), x).tolist()
    ([0.0, 1.0, 2.0], [0.0, 2.0, 4.0])
    """
    where = location("custom_gradient")
    given = [lift(each) for each in inputs]
    arguments = [argument("input", node.spec) for node in given]
    outcome = function(*map(Expr, arguments))
    several = isinstance(outcome, tuple | list)
    results = [lift(each) for each in (outcome if several else [outcome])]
    _check_closed(where, results, arguments)
    values = [argument("result", node.spec) for node in results]
    seeds = [argument("gradient", node.spec) for node in results]
    found = backward(
        tuple(map(Expr, seeds)) if several else Expr(seeds[0]),
        tuple(map(Expr, values)) if several else Expr(values[0]),
        *map(Expr, arguments),
    )
    gradients = _gradients(where, found, arguments)
    local = [*seeds, *values, *arguments]
    constants = control.close_over(local, gradients)
    made = control.with_gradient.outputs(
        *substitute(results, dict(zip(arguments, given, strict=True))),
        *given,
        *constants,
        results=len(results),
        count=len(given),
        backward=Body([*local, *constants], gradients),
    )
    return tuple(map(Expr, made)) if several else Expr(made[0])


def _gradients(where: str, found: Any, arguments: list[Node]) -> list[Node]:
    """Return the gradients that `backward` returned, for inputs of floating-point numbers."""
    parts = list(found) if isinstance(found, tuple | list) else [found]
    if len(parts) != len(arguments):
        raise GradientError.build(
            where,
            expected=f"a gradient, or None, for each of the {len(arguments)} inputs",
            got=f"{len(parts)}",
            hint="return them from backward as a tuple",
        )
    gradients = []
    for part, like in zip(parts, arguments, strict=True):
        if not is_inexact(like.dtype):
            continue
        node = full(like.shape, 0, like.dtype) if part is None else lift(part, like.dtype)
        if node.spec.logical != like.spec.logical:
            raise ShapeError.build(
                where, expected=f"a gradient like its input, {like.spec}", got=describe(node)
            )
        gradients.append(node)
    return gradients


def _check_closed(where: str, results: list[Node], arguments: list[Node]) -> None:
    """Raise if a variable or an input of a plan is read from outside: it would have no gradient."""
    smooth: dict[Node, Node] = {}
    for node in topological(results):
        is_leaf = node.op.name in ("variable", "input")
        if is_leaf and is_inexact(node.dtype) and node not in arguments:
            smooth[node] = node
        through = next((smooth[each] for each in node.inputs if each in smooth), None)
        if through is not None and node.op.name != "stop_gradient":
            smooth[node] = through
    read = next((smooth[each] for each in results if each in smooth), None)
    if read is not None:
        raise GradientError.build(
            where,
            expected="a function that reads variables as inputs",
            got=describe(read),
            hint="pass it as an input, or apply op.stop_gradient to it",
        )
