"""Graphs with factorisations, transforms and sorting as ranks run them, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.comm import run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.compiler.sharding.distributions import (
    BlockCyclic,
    Blocks,
    Columns,
    Grid,
    Replicated,
    Rows,
)
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import largest_singular
from caldera.compiler.sharding.propagation import Distributed, distribute
from caldera.compiler.sharding.rules import algorithms
from caldera.core.graph.node import Spec, Symbol
from caldera.core.graph.ops.base import tensor
from caldera.core.graph.program import topological
from tests.unit.compiler.sharding.algorithm_cases import small_panels
from tests.unit.compiler.sharding.interpreter import interpret
from tests.unit.compiler.sharding.test_algorithms import _small

__all__ = ["_small"]
Graph = Callable[..., list[Expr]]


@pytest.fixture(autouse=True)
def _no_whole_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "WHOLE_BYTES", -1)


def run(
    graph: Graph, arrays: list[np.ndarray], layouts: list[ShardLayout], ranks: int
) -> tuple[list[np.ndarray], Distributed]:
    """The whole results, and the program of rank 0."""
    symbols = [Symbol(f"x{i}", Spec(a.shape, a.dtype), "tensor") for i, a in enumerate(arrays)]
    nodes = [each.node for each in graph(*[Expr(tensor(symbol=symbol)) for symbol in symbols])]
    where = dict(zip(symbols, layouts, strict=True))

    def work(comm: Any) -> Any:
        program = distribute(nodes, where, ranks=ranks, rank=comm.rank)
        parts = {
            symbol: layout.part_of(array, comm.rank)
            for symbol, layout, array in zip(symbols, layouts, arrays, strict=True)
        }
        return interpret(program, parts, comm), program

    done = run_virtual_ranks(ranks, work)
    program = done[0][1]
    whole = [
        layout.whole_of([parts[number] for parts, _ in done])
        for number, layout in enumerate(program.layouts)
    ]
    return whole, program


def with_gradients(function: Callable[..., Any]) -> Graph:
    """The results, and the gradients of a loss that depends on all of them."""

    def graph(*inputs: Expr) -> list[Expr]:
        results = function(*inputs)
        made = list(results) if isinstance(results, tuple) else [results]
        real = [op.view_as_real(each) if each.dtype.kind == "c" else each for each in made]
        loss = sum(op.sum(op.sin(each + 0.3 * i)) for i, each in enumerate(real))
        return [*real, *op.grad(loss, list(inputs))]

    return graph


RNG = np.random.default_rng(11)
SQUARE = RNG.normal(size=(9, 9)) + 4 * np.eye(9)
TALL = RNG.normal(size=(23, 5))
CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "cholesky": (op.cholesky, [SQUARE @ SQUARE.T]),
    "solve": (op.solve, [SQUARE, RNG.normal(size=(9, 4))]),
    "inverse": (op.inverse, [SQUARE]),
    "determinant": (op.determinant, [SQUARE / 4]),
    "qr": (op.qr, [RNG.normal(size=(11, 9))]),
    "tall qr": (op.qr, [TALL]),
    "svd": (op.svd, [TALL]),
    "eigh": (op.eigh, [SQUARE]),
    "lstsq": (op.lstsq, [TALL, RNG.normal(size=(23, 2))]),
    "matmul": (op.matmul, [TALL, RNG.normal(size=(5, 7))]),
    "fft": (op.fft, [RNG.normal(size=(36,))]),
    "fft2": (op.fft2, [RNG.normal(size=(8, 6))]),
    "rfft": (op.rfft, [RNG.normal(size=(37,))]),
    "irfft": (lambda x: op.irfft(op.rfft(x) * 2.0), [RNG.normal(size=(30,))]),
    "cumsum": (lambda x: op.cumsum(x, axis=0), [RNG.normal(size=(17, 2))]),
    "sort": (lambda x: op.sort(x, axis=0), [RNG.normal(size=(29,))]),
    "top_k": (lambda x: op.top_k(x, 3, axis=0)[0], [RNG.normal(size=(19, 2))]),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_one_process(name: str) -> None:
    small_panels()
    function, arrays = CASES[name]
    graph = with_gradients(function)
    alone = [Rows().of(array.shape, range(1)) for array in arrays]
    wanted, _ = run(graph, arrays, alone, 1)
    for ranks, distribution in ((3, Blocks(3, 4)), (4, BlockCyclic(2, grid=(4,)))):
        layouts = [distribution.of(array.shape, range(ranks)) for array in arrays]
        found, program = run(graph, arrays, layouts, ranks)
        together = any(node.op.name == "spmd" for node in topological(program.roots))
        assert together or name in ("fft", "fft2", "matmul", "cumsum", "top_k")
        for mine, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-8, atol=1e-9)


def test_a_program_says_which_algorithm_was_taken_and_what_it_beat() -> None:
    a = np.zeros((256, 256))
    layouts = [Grid(2, 2).of(a.shape, range(4)), Columns().of(a.shape, range(4))]
    symbols = [Symbol("x", Spec(a.shape, a.dtype), "tensor") for _ in layouts]
    first, second = (Expr(tensor(symbol=symbol)) for symbol in symbols)
    where = dict(zip(symbols, layouts, strict=True))
    program = distribute([(first @ second).node], where, ranks=4, rank=0)
    (choice,) = program.choices
    names = [each.name for each in (choice.chosen, *choice.others)]
    assert "SUMMA 2x2, stationary C" in names
    assert all(each.seconds >= choice.chosen.seconds for each in choice.others)


def test_batches_are_shared_out_and_small_matrices_are_computed_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = SQUARE + np.arange(6.0)[:, None, None] * np.eye(9)
    found, program = run(lambda x: [op.inverse(x)], [batch], [Rows().of(batch.shape, range(3))], 3)
    np.testing.assert_allclose(found[0], np.linalg.inv(batch), atol=1e-12)
    assert not program.moves
    monkeypatch.setattr(algorithms, "WHOLE_BYTES", 1 << 20)
    _, program = run(lambda x: [op.inverse(x)], [SQUARE], [Rows().of((9, 9), range(3))], 3)
    assert program.layouts[0].is_replicated


@pytest.mark.parametrize("seed", range(4))
def test_convolutions_are_split_over_height_and_width_with_their_gradients(seed: int) -> None:
    rng, exchanged = np.random.default_rng(seed), 0
    for _ in range(6):
        groups = int(rng.integers(1, 3))
        stride, dilation = (tuple(rng.integers(1, 3, 2).tolist()) for _ in range(2))
        kernel = rng.normal(size=(2 * groups, 2, *rng.integers(1, 4, 2)))
        images = rng.normal(size=(3, 2 * groups, *rng.integers(7, 14, 2)))
        padding = tuple(rng.integers(0, 3, 2).tolist())

        def convolve(
            x: Expr, w: Expr, how: tuple = (stride, padding, dilation, groups)
        ) -> list[Expr]:
            stride, padding, dilation, groups = how
            y = op.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
            return [y, *op.grad(op.sum(op.sin(y)), [x, w])]

        ranks = int(rng.integers(2, 7))
        mesh = [(1, 1, ranks, 1), (1, 1, 1, ranks), (1, 1, 2, ranks // 2), (2, 1, ranks // 2, 1)]
        where = Grid(*mesh[rng.integers(4)]).of(images.shape, range(ranks))
        layouts = [where, Replicated().of(kernel.shape, range(ranks))]
        alone = [Rows().of(x.shape, range(1)) for x in (images, kernel)]
        found, program = run(convolve, [images, kernel], layouts, ranks)
        exchanged += sum(node.op.name == "halo" for node in topological(program.roots))
        wanted, _ = run(convolve, [images, kernel], alone, 1)
        for mine, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-10, atol=1e-10)
    assert exchanged >= 6


def test_the_largest_singular_values_in_a_graph() -> None:
    a = np.random.default_rng(2).normal(size=(30, 20))
    for ranks in (1, 3):
        layout = Columns().of(a.shape, range(ranks))

        def largest(x: Expr) -> list[Expr]:
            made = largest_singular.outputs(x.node, k=3, tolerance=1e-12, steps=60, seed=0)
            return [Expr(each) for each in made]

        (u, s, vt, bound), _ = run(largest, [a], [layout], ranks)
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False)[:3], rtol=1e-12)
        np.testing.assert_allclose(a @ vt.T, u * s, atol=1e-10)
        assert np.all(bound < 1e-10)
