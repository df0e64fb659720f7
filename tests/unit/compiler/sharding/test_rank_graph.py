"""Graphs in which ranks compute parts: each op gives what it would give for whole values, and so do
its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.comm import Communicator, Mesh, run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.distributions import Axis, BlockCyclic, Grid
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.ops import place
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.compiler.sharding.table_layout import TableLayout

RANKS = 2
SHAPE = (4, 6, 2, 3)
SCALE = np.linspace(-1.0, 2.0, 6)
W = np.random.default_rng(1).normal(size=(6, 6))
KERNEL = np.random.default_rng(2).normal(size=(2, 6, 1, 1))
TABLE = np.random.default_rng(3).normal(size=(9, 2))


def _dropped(x: Expr) -> Expr:
    return op.dropout(x, 0.4, state=np.array([3, 1]), offset=5, stream=7)


def _attended(x: Expr) -> Expr:
    mask = op.reshape(op.sum(x, axis=(1, 3)), (4, 1, 1, 2)) > 0.0
    return op.scaled_dot_product_attention(x, x * 2.0, x, mask=mask)


# What is computed, the axes along which x is split, and whether nothing is gathered before the end.
CASES: dict[str, tuple[Callable[[Any], Expr], tuple[int, ...], bool]] = {
    "broadcasting": (lambda x: op.tanh(x) * SCALE[:, None, None] + x, (0, 1), True),
    "a whole value beside it": (lambda x: x + op.reshape(np.arange(6.0), (6, 1, 1)), (1,), True),
    "sum over others": (lambda x: op.sum(x, axis=(2, 3)), (0, 1), True),
    "mean of each": (lambda x: op.mean(x, axis=(0,), keepdims=True), (1,), True),
    "sum over parts": (lambda x: op.sum(x, axis=1), (1,), True),
    "mean over parts": (lambda x: op.mean(x, axis=1) * 2.0 - op.sum(x, axis=1), (1,), True),
    "largest of parts": (lambda x: op.max(x, axis=1), (1,), False),
    "flat": (lambda x: op.reshape(x, (4, 36)), (0, 1), True),
    "in pieces": (lambda x: op.reshape(x, (4, 3, 2, 6)), (0, 1), True),
    "in other pieces": (lambda x: op.reshape(x, (24, 2, 3)), (1,), True),
    "transposed": (lambda x: op.transpose(x, (2, 1, 0, 3)), (0, 1), True),
    "broadcast": (lambda x: op.broadcast(x, (5, *SHAPE)), (0, 1), True),
    "padded elsewhere": (lambda x: op.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2))), (0, 1), True),
    "padded there": (lambda x: op.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0))), (1,), True),
    "cut elsewhere": (lambda x: x[:, :, 1:], (0, 1), True),
    "cut there": (lambda x: x[:, 1:4], (1,), True),
    "joined elsewhere": (lambda x: op.concat([x, x * x], axis=2), (0, 1), True),
    "joined there": (lambda x: op.concat([x, x], axis=1), (1,), True),
    "split elsewhere": (lambda x: op.split(x, 3, axis=3)[1], (0, 1), True),
    "pooled": (lambda x: op.max_pool2d(x, 2) + op.avg_pool2d(x, 2), (0, 1), True),
    "softmax over others": (lambda x: op.softmax(x, axis=3), (0, 1), True),
    "softmax over parts": (lambda x: op.log_softmax(x, axis=1), (1,), False),
    "layers": (lambda x: op.layer_norm(x, np.ones(3), np.zeros(3)), (0, 1), True),
    "neighbouring channels": (lambda x: op.local_response_norm(x), (0,), True),
    "dropout": (_dropped, (0, 1), True),
    "narrow product": (
        lambda x: op.linear(op.reshape(x, (4, 36)), TABLE.repeat(4, 0)),
        (0, 1),
        True,
    ),
    "wide product": (lambda x: op.linear(op.transpose(x, (0, 2, 3, 1)), W), (1,), False),
    "convolution": (lambda x: op.conv2d(x, KERNEL), (0, 1), True),
    "groups": (lambda x: op.conv2d(x, KERNEL.reshape(6, 2, 1, 1), groups=3), (0,), True),
    "rows of a table": (lambda x: op.embedding(TABLE, op.cast(x > 0.0, "int64")), (0, 1), True),
    "many products": (lambda x: op.matmul(W[:3, :2], x), (0, 1), True),
    "entropy": (
        lambda x: op.cross_entropy(op.reshape(x, (24, 6)), np.arange(24) % 6),
        (0,),
        True,
    ),
    "entropy of parts": (
        lambda x: op.cross_entropy(op.reshape(x, (4, 36)), np.arange(4)),
        (1,),
        False,
    ),
    "one of many": (lambda x: op.one_hot(op.cast(x > 0.0, "int64"), 3), (0, 1), True),
    "attention": (_attended, (0, 1), True),
    "batch norm": (
        lambda x: op.batch_norm(x, SCALE, SCALE + 1.0, SCALE, SCALE * SCALE + 1.0),
        (0, 1),
        True,
    ),
    "batch norm over ranks": (
        lambda x: op.batch_norm_over_ranks(x, SCALE, SCALE + 1.0)[0],
        (0, 1),
        True,
    ),
}


AXES = {"data": 1, "model": -1}


def _along(axis: int) -> CartesianLayout:
    """The first rank has more."""
    split = AxisSplit(RANKS, (0, SHAPE[axis] // 2 + 1, SHAPE[axis]), (0, 1))
    splits = tuple(split if each == axis else None for each in range(len(SHAPE)))
    return CartesianLayout(SHAPE, splits, (0, 1))


def _slope(function: Callable[[Any], Expr], x: Any) -> Expr:
    """Some number that depends on everything."""
    y = function(x)
    weights = np.cos(np.arange(int(np.prod(y.shape)), dtype="float64")).reshape(y.shape)
    return op.sum(y * weights) * 0.5


@pytest.mark.parametrize("name", CASES)
def test_parts_of_every_op(name: str) -> None:
    function, axes, apart = CASES[name]
    x = np.random.default_rng(0).normal(size=SHAPE)
    dense = op.var("x", SHAPE, fill=x, dtype="float64")
    expected = function(cd.tensor(x)).numpy()
    (slope,) = op.grad(_slope(function, dense), [dense], unused="zero")
    for axis in axes:
        layout = _along(axis)

        def work(
            comm: Communicator, axis: int = axis, layout: ShardLayout = layout
        ) -> tuple[Any, ...]:
            comm.axes = Mesh(comm, AXES).axes
            own = layout.part_of(x, comm.rank)
            here = op.var("x", own.shape, fill=own, dtype="float64")
            graph = RankGraph(comm.rank, RANKS, {}, "model")
            sizes = [layout.local_shape(rank)[axis] for rank in range(RANKS)]
            whole = op.all_gather(here, sizes, comm.rank, axis="model", dim=axis)
            graph.settle([function(whole).node])
            gathers = sum(move.terms == 1 for move in graph.moves)
            (found,) = graph.written([function(whole).node])
            loss = graph.share(_slope(function, whole).node)
            grads = op.grad(Expr(loss), [here], unused="zero")
            plan = cd.compile([Expr(found), *grads], communicator=comm)
            return *(each.numpy().copy() for each in plan.run()), gathers

        for rank, (found, gradient, gathers) in enumerate(run_virtual_ranks(RANKS, work)):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
            part = layout.part_of(slope.numpy(), rank)
            np.testing.assert_allclose(gradient, part, rtol=1e-9, atol=1e-11)
            assert (gathers == 0) == apart


# --- moves between any layouts

LAYOUTS: list[ShardLayout] = [
    replicated((6, 5), range(4)),
    Axis(0).of((6, 5), range(4)),
    Axis(1, cuts=(0, 0, 3, 4, 5)).of((6, 5), range(4)),
    Axis(1, ranks=(3, 1, 0, 2)).of((6, 5), range(4)),
    Grid(2, 2).of((6, 5), range(4)),
    Grid(2).of((6, 5), range(4)),
    BlockCyclic(1, grid=(4, 1)).of((6, 5), range(4)),
    TableLayout((6, 5), ((0, 2, 6), (0, 3, 5)), ((1,), (0,), (3,), (2,))),
    TableLayout((6, 5), ((0, 6), (0, 2, 5)), ((0, 3), (1, 2))),
]


def _targets(number: int) -> list[ShardLayout]:
    """Some of them for each, all of them for all."""
    return [*LAYOUTS[number + 1 :], *LAYOUTS[:number]][number % 3 :: 3]


def test_any_layout_to_any_other_and_the_gradient_back() -> None:
    """What a rank's part does to a loss comes back to it, from whichever ranks were given it."""
    x = np.random.default_rng(0).normal(size=(6, 5))
    dense = op.var("x", (6, 5), fill=x, dtype="float64")
    (slope,) = op.grad(_slope(op.square, dense), [dense])

    def work(comm: Communicator) -> list[Any]:
        found = []
        comm.axes = Mesh(comm, AXES).axes
        for number, source in enumerate(LAYOUTS):
            own = source.part_of(x, comm.rank)
            here = op.var("x", own.shape, fill=own, dtype="float64")
            whole = op.input("x", (6, 5), "float64")
            losses = []
            for target in _targets(number):
                parts = {whole.node: (here.node, source)}
                graph = RankGraph(comm.rank, 4, parts, "model", direct=True)
                moved = Expr(place(whole.node, target))
                losses.append(Expr(graph.share(_slope(op.square, moved).node)))
            grads = [op.grad(loss, [here])[0] for loss in losses]
            plan = cd.compile([*losses, *grads], communicator=comm)
            found.append([each.numpy().copy() for each in plan.run()])
        return found

    results = run_virtual_ranks(4, work)
    expected = float(_slope(op.square, cd.tensor(x)))
    for number, source in enumerate(LAYOUTS):
        count = len(_targets(number))
        for each in range(count):
            loss = sum(float(results[rank][number][each]) for rank in range(4))
            assert loss == pytest.approx(expected, rel=1e-12)
            parts = [results[rank][number][count + each] for rank in range(4)]
            total = np.zeros((6, 5))
            for rank, part in enumerate(parts):
                mine = np.zeros((6, 5))
                source.put(mine, rank, part)
                total += mine
            np.testing.assert_allclose(total, slope.numpy(), rtol=1e-9, atol=1e-11)
