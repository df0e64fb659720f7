"""Factorisations on grids of every shape, and how many messages a panel takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.compiler.sharding.algorithms.cholesky import cholesky
from caldera.compiler.sharding.algorithms.panels import grid_of
from caldera.compiler.sharding.algorithms.process_grid import ProcessGrid, grid_shapes, process_grid
from caldera.compiler.sharding.algorithms.qr import qr
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.algorithms.variant import cyclic_layout
from caldera.compiler.sharding.distributions import Rows
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import OPS, parameter
from tests.unit.compiler.sharding.algorithm_cases import NUMBERS, numbers

GRIDS = [shape for ranks in (1, 4, 6) for shape in grid_shapes(ranks)]


def on_grid(
    shape: tuple[int, int],
    block: int,
    a: np.ndarray,
    made: Sequence[tuple[int, int]],
    work: Callable[[np.ndarray, ProcessGrid], Sequence[np.ndarray]],
) -> list[np.ndarray]:
    """The whole results of a function of a rank's part of a block-cyclic matrix."""
    given = cyclic_layout((a.shape[0], a.shape[1]), block, shape)

    def run(comm: Communicator) -> Any:
        return work(given.part_of(a, comm.rank), process_grid(comm, *shape))

    parts = run_virtual_ranks(shape[0] * shape[1], run)
    found = []
    for number, size in enumerate(made):
        layout, whole = cyclic_layout(size, block, shape), np.zeros(size, a.dtype)
        for rank, each in enumerate(parts):
            layout.put(whole, rank, each[number])
        found.append(whole)
    return found


@pytest.mark.parametrize("dtype", NUMBERS)
def test_any_grid_has_the_factors_of_one_process(dtype: Any) -> None:
    def qr_of(part: np.ndarray, grid: ProcessGrid) -> tuple[np.ndarray, np.ndarray]:
        return qr(part, (m, n), block, grid)

    def cholesky_of(part: np.ndarray, grid: ProcessGrid) -> tuple[np.ndarray]:
        return (cholesky(part, m, block, grid),)

    rng = np.random.default_rng(np.dtype(dtype).num)
    for shape in GRIDS:
        m, n, block = (int(each) for each in rng.integers((0, 0, 1), (40, 40, 9)))
        k = min(m, n)
        a = numbers(rng, dtype, m, n)
        a[:, rng.random(n) < 0.1] = 0
        limit = 1e-4 if np.finfo(dtype).bits == 32 else 1e-12
        q, r = on_grid(shape, block, a, ((m, k), (k, n)), qr_of)
        np.testing.assert_allclose(q @ r, a, atol=limit)
        np.testing.assert_allclose(q.conj().T @ q, np.eye(k), atol=limit)
        assert np.array_equal(r, np.triu(r))
        assert np.all(np.diagonal(r).real >= 0)

        positive = (a @ a.conj().T + np.eye(m)).astype(dtype)
        # Nothing above the diagonal is read.
        given = np.tril(positive) + np.triu(np.full_like(positive, np.nan), 1)
        (lower,) = on_grid(shape, block, given, ((m, m),), cholesky_of)
        np.testing.assert_allclose(lower @ lower.conj().T, positive, atol=50 * limit)
        assert np.array_equal(lower, np.tril(lower))


def _messages(work: Callable[[np.ndarray, ProcessGrid], object], panels: int) -> float:
    """Messages of the rank that sends most, for each panel, on 3 x 3 ranks."""
    a = np.eye(4 * panels) + 0.01

    def run(comm: Communicator) -> int:
        grid = process_grid(comm, 3, 3)
        every = (comm, grid.along_row, grid.along_column)
        part = cyclic_layout((len(a), len(a)), 4, (3, 3)).part_of(a, comm.rank)
        marks = [each.traffic.mark() for each in every]
        work(part, grid)
        pairs = zip(every, marks, strict=True)
        return sum(each.traffic.since(mark).total.messages for each, mark in pairs)

    return max(run_virtual_ranks(9, run)) / panels


def _sent(work: Callable[[Communicator], object], ranks: int) -> int:
    """Bytes that all ranks send together, along a grid for factorisations too."""

    def run(comm: Communicator) -> int:
        grid = grid_of(comm)
        every = {id(each): each for each in (comm, grid.along_row, grid.along_column)}
        marks = [(each, each.traffic.mark()) for each in every.values()]
        work(comm)
        return sum(each.traffic.since(mark).total.bytes_sent for each, mark in marks)

    return sum(run_virtual_ranks(ranks, run))


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_what_is_not_symmetric_moves_one_triangle_at_most(ranks: int) -> None:
    n, block = 48, 4
    rng = np.random.default_rng(ranks)
    a = rng.normal(size=(n, n)) + 20 * np.eye(n)

    def lower(comm: Communicator, average: bool) -> np.ndarray:
        grid = grid_of(comm)
        part = cyclic_layout((n, n), block, (grid.rows, grid.columns)).part_of(a, comm.rank)
        return cholesky(part, n, block, grid, average=average)

    more = _sent(lambda comm: lower(comm, True), ranks) - _sent(lambda c: lower(c, False), ranks)
    assert 0 < more <= a.nbytes / 2


def test_a_panel_takes_few_messages() -> None:
    # Its owners send to those of their row and those of one column; one of them its diagonal.
    assert _messages(lambda part, grid: cholesky(part, 72, 4, grid), 18) < 2.1
    # Gathered and sent by a third of the ranks; a sum for the rest, for the next, and for Q.
    assert _messages(lambda part, grid: qr(part, (72, 72), 4, grid), 18) < 7


@pytest.mark.parametrize("ranks", [2, 4, 6, 9])
def test_qr_sends_what_its_cost_says(ranks: int) -> None:
    n = 96
    a = np.random.default_rng(ranks).normal(size=(n, n))
    node = OPS["qr"].node(parameter(0, Spec((n, n), np.dtype(np.float64))))
    variant = ALGORITHMS["qr"].variants(node, [Rows().of((n, n), range(ranks))], ranks)[0]

    def run(comm: Communicator) -> None:
        part = variant.inputs[0].part_of(a, comm.rank)
        ALGORITHMS["qr"].run([part], variant.inputs, variant.outputs, variant.options, comm)

    sent = _sent(run, ranks)
    assert 0.7 < variant.cost.bytes * ranks / sent < 1.4, sent
