"""Cases for collectives: alone, a sum over ranks is the value itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift, wrap
from caldera.core.graph.ops.collective import (
    Message,
    all_gather_flat,
    all_reduce,
    cut,
    finish_collective,
    reduce_scatter_flat,
    start_collective,
    tied,
    turn,
)
from caldera.core.graph.ops.normalisation import batch_norm_over_ranks_grad
from tests.unit.ops.case import Case, numbers
from tests.unit.ops.cases.normalisation import EPS, batch

CASES = [
    Case("all_sum", lambda x: op.all_sum(x) * x, (numbers(*shape),), lambda x: x * x, order=2)
    for shape in ((), (3,), (2, 0), (2, 3))
]


CASES += [
    Case(
        "tied",
        lambda x, y: Expr(tied(lift(x), lift(y))),
        (numbers(2, 3), numbers(4)),
        lambda x, y: x,
        order=2,
    )
]
# Alone, the only part is the whole.
CASES += [
    Case(
        name,
        lambda x, make=make: make(x, (x.shape[1],), 0, dim=1) * x,
        (numbers(*shape),),
        lambda x: x * x,
        order=2,
    )
    for name, make in (("all_gather", op.all_gather), ("sum_scatter", op.sum_scatter))
    for shape in ((2, 3), (3, 0))
]


def _together(*values: Any, **how: Any) -> list[Expr]:
    message = Message("sum", "data", (0,), **how)
    return [Expr(node) for node in all_reduce([lift(value) for value in values], message)]


def _there_and_back(x: Any, y: Any) -> list[Expr]:
    parts = reduce_scatter_flat([lift(x), lift(y)], Message("scatter", "data", (0,)))
    whole = all_gather_flat(parts, [x.shape, y.shape], Message("gather", "data", (1,), now=True))
    return [Expr(node) for node in whole]


def _to_oneself(x: Any) -> Expr:
    """What a rank sends to itself arrives, after something has been computed."""
    value = lift(x)
    places, token = start_collective([value], Message("send", "data", (0,), peer=0), None)
    token = turn.node(lift(x * 2.0), token, action="twice", number=(1,))
    coming = Message("receive", "data", (2,), peer=0, brings=(value.spec,))
    room, token = start_collective((), coming, token)
    arrived, token = finish_collective(room, coming, token)
    _, token = finish_collective(places, Message("send", "data", (0,), peer=0), token)
    # What nobody needs is not sent: a sum of nothing keeps the token.
    return Expr(cut(arrived, [value.shape])[0]) + op.sum(op.cast(Expr(token), x.dtype))


CASES += [
    Case("turn", _to_oneself, (numbers(2, 3).T,), lambda x: x, differentiable=False),
    Case(
        "collective_start",
        _together,
        (numbers(2, 3), numbers()),
        lambda x, y: (x, y),
        differentiable=False,
    ),
    Case(
        "collective_finish",
        _there_and_back,
        (numbers(2, 3).T, numbers(4)),
        lambda x, y: (x, y),
        differentiable=False,
    ),
    Case(
        "collective_finish",
        lambda x, y: _together(x, y, leaves=(0, 2, 2))[0],
        (numbers(2, 3), numbers(2, 3, seed=1)),
        lambda x, y: x + y,
        differentiable=False,
        name="leaves of a tree",
    ),
]


def _over_ranks(x: Any, scale: Any, shift: Any, axis: int = 1) -> tuple[Expr, ...]:
    return op.batch_norm_over_ranks(x, scale, shift, eps=EPS, axis=axis)[:3]


def _gradient(*given: Any) -> Any:
    return wrap(
        batch_norm_over_ranks_grad.outputs(
            *map(lift, given), axis=1, eps=EPS, mesh="data", number=(0,)
        )
    )


_S, _T = numbers(3, seed=1), numbers(3, seed=2)
CASES += [
    Case(
        "batch_norm_over_ranks",
        lambda x, s, t, a=axis: _over_ranks(x, s, t, a),
        (numbers(*shape), _S, _T),
        lambda x, s, t, a=axis: batch(x, s, t, a),
        order=2,
        name=f"axis {axis}",
    )
    for shape, axis in [((4, 3), 1), ((2, 3, 2), 1), ((2, 2, 3), -1)]
]
CASES += [
    Case(
        "batch_norm_over_ranks",
        lambda x, s, t: _over_ranks(x, s, t)[0],
        (numbers(0, 3), _S, _T),
        lambda x, s, t: np.zeros((0, 3)),
        name="no samples",
    ),
    Case(
        "batch_norm_over_ranks_grad",
        _gradient,
        (numbers(4, 3), numbers(4, 3, seed=5), _S, _T, numbers(3, low=0.5), np.array(4.0)),
    ),
]
