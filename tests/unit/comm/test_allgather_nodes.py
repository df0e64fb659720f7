"""Parts that are put together and taken apart as nodes of a graph, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.comm import Communicator, Mesh, run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.errors import ShapeError

SIZES = [(2, 2), (1, 3, 2), (3, 0, 1, 2)]


def _numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _own(whole: np.ndarray, sizes: tuple[int, ...], rank: int, dim: int) -> np.ndarray:
    return np.split(whole, np.cumsum(sizes)[:-1], axis=dim)[rank]


def _results(comm: Communicator, *values: Expr) -> list[np.ndarray]:
    plan = cd.compile(list(values), communicator=comm)
    return [each.numpy().copy() for each in plan.run()]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", SIZES)
def test_gathering_and_its_gradient_equal_one_rank(sizes: tuple[int, ...], dim: int) -> None:
    """The loss of rank r is r + 1 times the sum of weights[r] * whole**2."""
    ranks, total = len(sizes), sum(sizes)
    shape = (total, 3) if dim == 0 else (3, total)
    whole, weights = _numbers(*shape), _numbers(ranks, *shape, seed=1)

    def work(comm: Communicator) -> list[np.ndarray]:
        own = _own(whole, sizes, comm.rank, dim)
        x = op.var("x", own.shape, fill=own, dtype="float64", device=f"loopback:{comm.rank}")
        gathered = op.all_gather(x, sizes, comm.rank, dim=dim)
        loss = (comm.rank + 1.0) * op.sum(op.square(gathered) * weights[comm.rank])
        return _results(comm, gathered, op.grad(loss, x))

    slope = 2 * whole * sum((rank + 1) * weights[rank] for rank in range(ranks))
    for rank, (found, gradient) in enumerate(run_virtual_ranks(ranks, work)):
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_allclose(gradient, _own(slope, sizes, rank, dim), rtol=1e-12)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", SIZES)
def test_scattering_a_sum_and_its_gradient_equal_one_rank(sizes: tuple[int, ...], dim: int) -> None:
    ranks, total = len(sizes), sum(sizes)
    shape = (total, 3) if dim == 0 else (3, total)
    terms, weights = _numbers(ranks, *shape), _numbers(*shape, seed=1)

    def work(comm: Communicator) -> list[np.ndarray]:
        term = terms[comm.rank]
        x = op.var("x", shape, fill=term, dtype="float64", device=f"loopback:{comm.rank}")
        part = op.sum_scatter(x, sizes, comm.rank, dim=dim)
        loss = op.sum(op.square(part) * _own(weights, sizes, comm.rank, dim))
        return _results(comm, part, op.grad(loss, x))

    whole = terms.sum(axis=0)
    for rank, (found, gradient) in enumerate(run_virtual_ranks(ranks, work)):
        np.testing.assert_allclose(found, _own(whole, sizes, rank, dim), rtol=1e-12)
        np.testing.assert_allclose(gradient, 2 * whole * weights, rtol=1e-12)


def test_one_after_the_other_along_two_axes_of_a_mesh() -> None:
    """What a gather is given may come from other collectives."""
    values = _numbers(2, 2)

    def work(comm: Communicator) -> Any:
        mesh = Mesh(comm, {"data": 2, "model": 2})
        comm.axes = mesh.axes
        data, model = mesh.coordinates["data"], mesh.coordinates["model"]
        x = op.var(
            "x",
            (1,),
            fill=values[data, model : model + 1],
            dtype="float64",
            device=f"loopback:{comm.rank}",
        )
        column = op.all_gather(op.all_sum(x, "data") * 2.0, (1, 1), model)
        again = op.all_gather(column[model : model + 1] + 1.0, (1, 1), model)
        return _results(comm, again, op.all_sum(x, "all"))

    for found, everything in run_virtual_ranks(4, work):
        np.testing.assert_allclose(found, 2 * values.sum(axis=0) + 1)
        np.testing.assert_allclose(everything, [values.sum()])


@pytest.mark.parametrize("ranks", [2, 4])
def test_they_move_the_bytes_of_all_other_parts(ranks: int) -> None:
    sizes = (8,) * ranks

    def work(comm: Communicator) -> list[int]:
        x = op.var("x", (8, 3), dtype="float64", device=f"loopback:{comm.rank}")
        y = op.var("y", (8 * ranks, 3), dtype="float64", device=f"loopback:{comm.rank}")
        sent = []
        for value in (op.all_gather(x, sizes, comm.rank), op.sum_scatter(y, sizes, comm.rank)):
            plan = cd.compile(value, communicator=comm)
            mark = comm.traffic.mark()
            plan.run()[0].numpy()
            sent.append(comm.traffic.since(mark).total.bytes_sent)
        return sent

    one_way = (ranks - 1) * 8 * 3 * 8
    assert run_virtual_ranks(ranks, work) == [[one_way, one_way]] * ranks


def test_parts_that_do_not_fit_are_refused() -> None:
    x = cd.tensor([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"op\.all_gather: expected 1 of \(1, 2\)"):
        op.all_gather(x, (1, 2), 0)
    with pytest.raises(ShapeError, match=r"op\.sum_scatter: expected 3 along axis 0"):
        op.sum_scatter(x, (1, 2), 0)
    with pytest.raises(ShapeError, match="a rank of the 2 that have parts"):
        op.all_gather(x, (1, 2), 2)
