"""Graphs in which ranks compute parts: each op gives what it would give for whole values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.comm import Communicator, Mesh, run_virtual_ranks
from caldera.graph.body import topological
from caldera.lazy import Expr
from caldera.parallel.layout import Split, evenly, reshaped
from caldera.parallel.tensor.layer_sharding import LEAST, chosen_layers, splits_of
from caldera.parallel.tensor.sharding_propagation import ShardingPropagation

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
    "mean over parts": (lambda x: op.mean(x, axis=1), (1,), False),
    "largest of parts": (lambda x: op.max(x, axis=1), (1,), False),
    "flat": (lambda x: op.reshape(x, (4, 36)), (0, 1), True),
    "in pieces": (lambda x: op.reshape(x, (4, 3, 2, 6)), (0, 1), True),
    "in other pieces": (lambda x: op.reshape(x, (24, 2, 3)), (1,), False),
    "transposed": (lambda x: op.transpose(x, (2, 1, 0, 3)), (0, 1), True),
    "broadcast": (lambda x: op.broadcast(x, (5, *SHAPE)), (0, 1), True),
    "padded elsewhere": (lambda x: op.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2))), (0, 1), True),
    "padded there": (lambda x: op.pad(x, ((0, 0), (1, 0), (0, 0), (0, 0))), (1,), False),
    "cut elsewhere": (lambda x: x[:, :, 1:], (0, 1), True),
    "cut there": (lambda x: x[:, 1:4], (1,), False),
    "joined elsewhere": (lambda x: op.concat([x, x * x], axis=2), (0, 1), True),
    "joined there": (lambda x: op.concat([x, x], axis=1), (1,), False),
    "split elsewhere": (lambda x: op.split(x, 3, axis=3)[1], (0, 1), True),
    "pooled": (lambda x: op.max_pool2d(x, 2) + op.avg_pool2d(x, 2), (0, 1), True),
    "softmax over others": (lambda x: op.softmax(x, axis=3), (0, 1), True),
    "softmax over parts": (lambda x: op.log_softmax(x, axis=1), (1,), False),
    "layers": (lambda x: op.layer_norm(x, np.ones(3), np.zeros(3)), (0, 1), True),
    "neighbouring channels": (lambda x: op.local_response_norm(x), (0,), True),
    "dropout": (_dropped, (0, 1), True),
    "narrow product": (
        lambda x: op.linear(op.reshape(x, (4, 36)), TABLE.repeat(4, 0)), (0, 1), True,
    ),
    "wide product": (lambda x: op.linear(op.transpose(x, (0, 2, 3, 1)), W), (1,), False),
    "convolution": (lambda x: op.conv2d(x, KERNEL), (0, 1), True),
    "groups": (lambda x: op.conv2d(x, KERNEL.reshape(6, 2, 1, 1), groups=3), (0,), True),
    "rows of a table": (lambda x: op.embedding(TABLE, op.cast(x > 0.0, "int64")), (0, 1), True),
    "many products": (lambda x: op.matmul(W[:3, :2], x), (0, 1), True),
    "attention": (_attended, (0, 1), True),
    "batch norm": (
        lambda x: op.batch_norm(x, SCALE, SCALE + 1.0, SCALE, SCALE * SCALE + 1.0), (0, 1), True,
    ),
    "batch norm over ranks": (
        lambda x: op.batch_norm_over_ranks(x, SCALE, SCALE + 1.0)[0], (0, 1), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_parts_of_every_op(name: str) -> None:
    function, axes, apart = CASES[name]
    x = np.random.default_rng(0).normal(size=SHAPE)
    expected = function(cd.tensor(x)).numpy()
    for axis in axes:
        # The first rank has more.
        split = Split(axis, (0, SHAPE[axis] // 2 + 1, SHAPE[axis]))

        def work(comm: Communicator, split: Split = split) -> tuple[np.ndarray, int]:
            comm.axes = Mesh(comm, {"data": 1, "model": RANKS}).axes
            own = split.part_of(x, comm.rank)
            here = op.var("x", own.shape, fill=own, dtype="float64")
            whole = op.input("x", SHAPE, "float64")
            graph = ShardingPropagation(comm.rank, RANKS, {whole.node: (here.node, split)})
            root = function(whole).node
            (found,) = graph.written([root])
            at_the_end = int(graph.placement(root) is not None)
            plan = cd.compile(Expr(found), communicator=comm)
            gathers = sum(step.node.op.name == "collective_start" and
                          step.node.attrs["message"].kind == "gather"
                          for step in plan.schedule.steps)  # fmt: skip
            return plan.run()[0].numpy().copy(), gathers - at_the_end

        for found, gathers in run_virtual_ranks(RANKS, work):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
            assert (gathers == 0) == apart


def test_blocks_are_put_together_in_their_order() -> None:
    whole = np.arange(24).reshape(2, 12)
    split = evenly(1, 12, 3, unit=2, blocks=2)
    assert split.sizes == (4, 4, 4)
    parts = [split.part_of(whole, rank) for rank in range(3)]
    assert parts[1].tolist() == [[2, 3, 8, 9], [14, 15, 20, 21]]
    np.testing.assert_array_equal(split.whole_of(parts, whole.shape), whole)

    def work(comm: Communicator) -> np.ndarray:
        here = op.var("x", (2, 4), fill=parts[comm.rank], dtype="int64")
        made = Expr(split.whole(here.node, comm.rank))
        return cd.compile(made, communicator=comm).run()[0].numpy().copy()

    for found in run_virtual_ranks(3, work):
        np.testing.assert_array_equal(found, whole)


def test_reshaping_keeps_parts_or_says_that_it_does_not() -> None:
    heads = evenly(2, 24, 2, unit=4, blocks=3)
    assert reshaped(heads, (5, 6, 24), (30, 24)) == Split(1, (0, 4, 8), 3)
    assert reshaped(evenly(0, 5, 2), (5, 6, 24), (30, 24)) == Split(0, (0, 18, 30))
    assert reshaped(evenly(1, 6, 2), (5, 6, 24), (30, 24)) is None
    assert reshaped(evenly(1, 8, 3), (5, 8), (5, 2, 4)) is None
    # Nobody has samples here.
    assert reshaped(evenly(1, 6, 2), (0, 6, 4), (0, 24)) == Split(1, (0, 12, 24))


def test_the_layers_of_alexnet() -> None:
    """Convolutions keep their samples; the first dense layer begins with the only gather of
    features, the second ends with a sum, and the last gives parts of its outputs."""
    network = nn.Sequential(nn.models.alexnet(input_shape=(3, 224, 224), classes=1000))
    x = op.all_gather(op.input("x", (3, 3, 224, 224)), (3, 2), 0)
    with nn.trace(training=True, random=op.random_state(), allocate=False, several_ranks=True):
        y = network(x)
    chosen = chosen_layers(network, RANKS, None, least=LEAST, dense_only=True)
    splits = splits_of(chosen, [y], rank=0, ranks=RANKS)
    weights = [split.axis for variable, split in splits.items() if variable.ndim == 2]
    assert weights == [1, 0, 1]
    parts = {
        whole.node: (op.input(whole.name, split.shape(whole.shape, 0)).node, split)
        for whole, split in splits.items()
    }
    (found,) = ShardingPropagation(0, RANKS, parts).written([y.node])
    moved = [node for node in topological([found]) if node.op.name in ("all_gather", "all_sum")]
    assert [(node.op.name, node.shape) for node in moved] == [
        ("all_gather", (5, 9216)), ("all_sum", (5, 4096)), ("all_gather", (5, 1000)),
    ]  # fmt: skip
