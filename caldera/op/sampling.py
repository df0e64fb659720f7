"""Random choices: orders, and indices drawn with given probabilities.

They are functions of the same random numbers as all others (see `op.random_uniform`), and take the
same `state`, `offset` and `stream`.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.node import Node, describe
from caldera.core.graph.opdef import location
from caldera.core.graph.ops.base import cast
from caldera.core.graph.ops.elementwise import greater, log, log1p, minimum, mul, neg, sub, where
from caldera.core.graph.ops.indexing import gather, sort, top_k
from caldera.core.graph.ops.leaf import constant, iota
from caldera.core.graph.ops.movement import narrow
from caldera.core.graph.ops.reduction import cumsum, max_
from caldera.core.tensor.dtype import float64, int64
from caldera.core.tensor.shape import as_shape, normalise_axis
from caldera.errors import ShapeError
from caldera.op.arguments import as_count
from caldera.op.random import random_uniform
from caldera.op.selection import searchsorted


def permutation(
    x: Any,
    axis: int = 0,
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """The numbers below `x` in random order (int64), or the parts of `x` along `axis`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> sorted(op.permutation(5).tolist()), sorted(op.permutation([1.0, 2.0]).tolist())
    ([0, 1, 2, 3, 4], [1.0, 2.0])
    """
    node = None if isinstance(x, int) else lift(x)
    if node is None:
        (length,) = as_shape((x,), location("permutation"))
    else:
        which = normalise_axis(axis, len(node.shape), location("permutation"))
        length = node.shape[which]
    # 53 random digits: ties, which would keep their order, do not occur.
    draws = random_uniform((length,), dtype="float64", state=state, offset=offset, stream=stream)
    order = sort.outputs(draws.node, axis=0, descending=False)[1]
    return Expr(order if node is None else gather(node, order, axis=which))


def multinomial(
    probabilities: Any,
    samples: int,
    replacement: bool = True,
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """So many random indices (int64) along the last axis, each drawn with its probability.

    Probabilities are 0 or more and need not add up to 1; other axes are rows of their own. Without
    `replacement` no index is drawn twice (those of probability 0 come last, if nothing is left).

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> op.multinomial(cd.tensor([0.0, 1.0, 0.0]), 3).tolist()
    [1, 1, 1]
    >>> sorted(op.multinomial(cd.tensor([0.1, 5.0, 3.0]), 3, replacement=False).tolist())
    [0, 1, 2]
    """
    node = as_float(lift(probabilities))
    count = as_count(samples, "samples", "multinomial")
    *batch, length = node.shape or (0,)
    least = 1 if replacement else count
    if length < least:
        raise ShapeError.build(
            location("multinomial"),
            expected=f"probabilities of at least {least} indices",
            got=describe(node),
        )
    how: dict[str, Any] = {"state": state, "offset": offset, "stream": stream}
    if replacement:
        draws = random_uniform((*batch, count), dtype=float64, **how).node
        running = cumsum(cast(node, float64), axis=len(batch), reverse=False)
        total = narrow(running, len(batch), length - 1, 1)
        found = searchsorted(Expr(running), Expr(mul(draws, total)), "right")
        # Rounding may reach the total, but never an index of probability 0 behind the last.
        return Expr(minimum(found.node, _last_positive(node)))
    # The largest of log(p) and Gumbel noise (Yellott, 1977); p = 0 gives -inf.
    draws = random_uniform((*batch, length), dtype=float64, **how).node
    exponential = neg(log1p(neg(draws)))
    keys = sub(log(cast(node, float64)), log(exponential))
    return Expr(top_k.outputs(keys, k=count, axis=len(batch))[1])


def _last_positive(probabilities: Node) -> Node:
    """The last index along the last axis whose probability is not 0 (keeping the axis)."""
    axis = len(probabilities.shape) - 1
    places = iota(shape=probabilities.shape, axis=axis, dtype=int64)
    positive = greater(probabilities, constant(0, probabilities.dtype))
    return max_(where(positive, places, constant(0, int64)), axis=(axis,), keepdims=True)
