"""The numbers of which a loss is the mean: what weights and ranks need, one for each sample."""

from __future__ import annotations

from collections.abc import Callable

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.node import Node
from caldera.core.graph.program import topological

Function = Callable[[Expr, Expr], Expr]


def mean_by_sample(values: Expr) -> Expr:
    """Return the mean of all numbers of each sample, (N,)."""
    return op.mean(values, axis=tuple(range(1, values.ndim))) if values.ndim > 1 else values


def without_mean(function: Function, prediction: Expr, target: Expr) -> Expr | None:
    """Return the loss of each sample, of which the function returns the mean.

    None if it is no mean.

    Means may be added up, and multiplied by numbers that are the same for all samples.

    >>> import caldera as cd
    >>> from caldera import op
    >>> y, z = cd.tensor([[2.0], [4.0]]), cd.tensor([[0.0], [0.0]])
    >>> without_mean(lambda y, z: 0.5 * op.mean((y - z) ** 2), y, z).tolist()
    [2.0, 8.0]
    """
    # Adding one sample shows which axis is the batch axis.
    more = [
        op.input(name, (prediction.shape[0] + 1, *each.shape[1:]), dtype=each.dtype)
        for name, each in (("prediction", prediction), ("target", target))
    ]
    if _terms(function, *more) is None:
        return None
    return _terms(function, prediction, target)


def mixing_op(losses: Expr, prediction: Expr, target: Expr) -> str:
    """Return the name of a reduction over samples from which the losses follow; "" without one.

    >>> import caldera as cd
    >>> from caldera import op
    >>> y, z = cd.tensor([[2.0], [4.0]]) * 1.0, cd.tensor([[0.0], [0.0]]) * 1.0
    >>> mixing_op(op.sum((y - op.mean(y)) ** 2 - z, axis=1), y, z)
    'mean'
    """
    count, of_samples = prediction.shape[0], {lift(prediction), lift(target)}
    for node in topological([losses.node]):
        if any(given in of_samples for given in node.inputs):
            of_samples.add(node)
            if count > 1 and node.op.kind == "reduction" and node.shape[:1] != (count,):
                return node.op.name
    return ""


def _terms(function: Function, prediction: Expr, target: Expr) -> Expr | None:
    prediction, target = Expr(lift(prediction)), Expr(lift(target))
    count, value = prediction.shape[0], function(prediction, target)
    of_samples = {prediction.node, target.node}
    for node in topological([value.node]):
        if any(given in of_samples for given in node.inputs):
            of_samples.add(node)
    return _by_sample(value.node, count, of_samples)


def _by_sample(node: Node, count: int, of_samples: set[Node]) -> Expr | None:
    if node not in of_samples:
        return op.broadcast(Expr(node), (count,))
    if node.op.name == "mean":
        inner = Expr(node.inputs[0])
        return mean_by_sample(inner) if inner.shape[0] == count else None
    # Of a product or quotient only the first or only the second factor may depend on the samples.
    depend = [given in of_samples for given in node.inputs]
    linear = {"add", "sub", "neg", "cast"} | ({"mul"} if depend != [True, True] else set())
    if node.op.name not in linear | ({"div"} if depend == [True, False] else set()):
        return None
    parts = [_by_sample(given, count, of_samples) for given in node.inputs]
    if any(part is None for part in parts):
        return None
    return Expr(node.op(*[part.node for part in parts if part is not None], **node.attrs))
