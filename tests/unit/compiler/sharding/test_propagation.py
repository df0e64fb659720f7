"""Graphs of whole values as ranks run them: right in any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.comm import run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.sharding.distributions import BlockCyclic, Columns, Grid, Replicated, Rows
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import place
from caldera.compiler.sharding.propagation import Distributed, distribute
from caldera.core.graph.node import Spec, Symbol
from caldera.core.graph.ops.base import tensor
from tests.unit.compiler.sharding import fuzz
from tests.unit.compiler.sharding.interpreter import interpret

CASES = 180


@pytest.mark.parametrize("block", range(3))
def test_random_programs_are_those_of_numpy(block: int) -> None:
    """`python -m tests.unit.compiler.sharding.fuzz 1 SEED` repeats the case that an error names."""
    for seed in range(CASES // 3 * block, CASES // 3 * (block + 1)):
        fuzz.run(seed)


def leaf(layout: ShardLayout, values: np.ndarray, name: str = "x") -> tuple[Expr, Symbol]:
    symbol = Symbol(name, Spec(layout.shape, values.dtype), "tensor")
    return Expr(tensor(symbol=symbol)), symbol


def run(
    ranks: int,
    outputs: list[Expr],
    given: dict[Symbol, tuple[ShardLayout, np.ndarray]],
    compiled: bool = False,
) -> tuple[list[np.ndarray], Distributed]:
    """The whole outputs, and the program of rank 0."""
    layouts = {symbol: layout for symbol, (layout, _) in given.items()}
    nodes = [each.node for each in outputs]

    def work(comm: Any) -> Any:
        program = distribute(nodes, layouts, ranks=ranks, rank=comm.rank)
        parts = {s: layout.part_of(a, comm.rank) for s, (layout, a) in given.items()}
        if not compiled:
            return interpret(program, parts, comm), program
        for whole, own in program.leaves.items():
            own.value = cd.tensor(parts[whole])
        plan = compile_nodes(program.roots, communicator=comm)
        return [each.numpy() for each in plan.run()[: len(nodes)]], program

    done = run_virtual_ranks(ranks, work)
    program = done[0][1]
    found = [
        layout.whole_of([done[rank][0][number] for rank in range(ranks)])
        for number, layout in enumerate(program.layouts)
    ]
    return found, program


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_small_network_and_its_gradients(compiled: bool) -> None:
    a, w, b = numbers(12, 8), numbers(8, 6), numbers(6)
    layouts = [
        Rows().of((12, 8), range(4)),
        Grid(2, 2).of((8, 6), range(4)),
        Rows().of((6,), range(4)),
    ]
    (x, sx), (weight, sw), (bias, sb) = (
        leaf(layout, array, name)
        for layout, array, name in zip(layouts, (a, w, b), "xwb", strict=True)
    )
    loss = op.sum(op.square(op.tanh(x @ weight + bias)))
    outputs = [loss, *op.grad(loss, [x, weight, bias])]
    given = dict(zip((sx, sw, sb), zip(layouts, (a, w, b), strict=True), strict=True))
    found, _ = run(4, outputs, given, compiled)
    y = np.tanh(a @ w + b)
    g = 2 * y * (1 - y * y)
    for made, right in zip(found, (np.sum(y * y), g @ w.T, a.T @ g, g.sum(0)), strict=True):
        np.testing.assert_allclose(made, right, rtol=1e-12)


@pytest.mark.parametrize(
    "layout", [Rows(), Columns(), Grid(2, 2), BlockCyclic(3, grid=(4, 1)), Replicated(ranks=(2,))]
)
def test_random_numbers_are_the_same_in_any_layout(layout: Any) -> None:
    shape = (50, 40)
    where = layout.of(shape, range(4))
    cd.seed(3)
    values = op.random_normal(shape, dtype="float64")
    placed = Expr(place(values.node, where))
    (found,), program = run(4, [placed], {})
    (right,), _ = run(1, [values], {})
    assert found.tobytes() == right.tobytes()
    assert not program.moves


def test_convolution_and_its_gradients_in_any_layout() -> None:
    images, kernels = numbers(4, 3, 6, 6), numbers(5, 3, 3, 3)
    (dense, dx, dw), _ = _convolution(
        Replicated(ranks=(0,)), Replicated(ranks=(0,)), images, kernels
    )
    for first, second in ((Rows(), Replicated()), (Columns(), Rows()), (Grid(2, 2), Rows())):
        found, _ = _convolution(first, second, images, kernels)
        for made, right in zip(found, (dense, dx, dw), strict=True):
            np.testing.assert_allclose(made, right, rtol=1e-12, atol=1e-12)


def _convolution(
    first: Any, second: Any, images: np.ndarray, kernels: np.ndarray
) -> tuple[list[np.ndarray], Distributed]:
    xl, wl = first.of(images.shape, range(4)), second.of(kernels.shape, range(4))
    (x, sx), (w, sw) = leaf(xl, images), leaf(wl, kernels, "w")
    y = op.conv2d(x, w, padding=1)
    loss = op.sum(op.tanh(y))
    return run(4, [y, *op.grad(loss, [x, w])], {sx: (xl, images), sw: (wl, kernels)})


def test_products_stay_where_they_are() -> None:
    """Rows times a replicated matrix moves nothing; a contraction that is shared out is summed."""
    a, b = numbers(64, 32), numbers(32, 48)
    rows, whole = Rows().of(a.shape, range(4)), Replicated().of(b.shape, range(4))
    (x, sx), (y, sy) = leaf(rows, a), leaf(whole, b, "y")
    (found,), program = run(4, [x @ y], {sx: (rows, a), sy: (whole, b)})
    assert not program.moves
    np.testing.assert_allclose(found, a @ b, rtol=1e-12)
    columns, rows = Columns().of(a.shape, range(4)), Rows().of(b.shape, range(4))
    (x, sx), (y, sy) = leaf(columns, a), leaf(rows, b, "y")
    (found,), program = run(4, [x @ y], {sx: (columns, a), sy: (rows, b)})
    np.testing.assert_allclose(found, a @ b, rtol=1e-12, atol=1e-12)
    assert [move.terms for move in program.moves] == [4]
    assert program.choices[0].others


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_along_an_axis_that_is_shared_out(name: str) -> None:
    """Only the best of each rank moves, ties and nan are NumPy's."""
    a = np.round(numbers(40, 6))
    a[3:9, 1] = np.nan
    a[:, 2] = 5.0
    layout = BlockCyclic(3, grid=(4,)).of(a.shape, range(4))
    x, symbol = leaf(layout, a)
    (found,), program = run(4, [getattr(op, name)(x, axis=0)], {symbol: (layout, a)})
    assert np.array_equal(found, getattr(np, name)(a, axis=0))
    assert sum(move.nbytes for move in program.moves) < a.nbytes


def test_every_rank_writes_the_same_movements() -> None:
    a = numbers(7, 5)
    layout = Grid(3, 2).of(a.shape, range(6))
    x, symbol = leaf(layout, a)
    y = op.softmax(x @ op.transpose(x, (1, 0)), axis=0)[1:5]
    programs = [distribute([y.node], {symbol: layout}, ranks=7, rank=rank) for rank in range(7)]
    assert len({program.moves for program in programs}) == 1
    assert len({program.layouts for program in programs}) == 1
