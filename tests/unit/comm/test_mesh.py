"""Grids of ranks with named axes."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.comm import Communicator, Mesh, SingleProcess, run_virtual_ranks
from caldera.errors import CommError


def test_coordinates_and_sums_along_each_axis() -> None:
    shape = {"data": 2, "pipeline": 3, "model": 2}

    def work(comm: Communicator) -> tuple[dict[str, int], list[float]]:
        mesh = Mesh(comm, shape)
        sums = []
        for name in shape:
            axis = mesh.axis(name)
            assert axis.rank == mesh.coordinates[name]
            assert axis.size == mesh.shape[name]
            total = np.empty(1)
            axis.Allreduce(np.array([float(comm.rank)]), total)
            sums.append(total.item())
        return mesh.coordinates, sums

    grid = np.arange(12.0).reshape(2, 3, 2)
    for rank, (coordinates, sums) in enumerate(run_virtual_ranks(12, work)):
        at = np.unravel_index(rank, grid.shape)
        assert list(coordinates.values()) == list(at)
        expected = [grid.sum(axis)[tuple(np.delete(at, axis))] for axis in range(3)]
        assert sums == expected


def test_one_axis_takes_what_is_left() -> None:
    assert run_virtual_ranks(6, lambda comm: Mesh(comm, {"data": -1, "model": 3}).shape)[0] == {
        "data": 2,
        "model": 3,
    }


@pytest.mark.parametrize("axes", [{}, {"data": 2}, {"data": 0}, {"data": -1, "model": -1}])
def test_axes_that_do_not_fit_are_refused(axes: dict[str, int]) -> None:
    with pytest.raises(CommError, match="multiply to 1 ranks"):
        Mesh(SingleProcess(), axes)


def test_an_unknown_axis_is_named() -> None:
    with pytest.raises(CommError, match="one of the axes data, got 'model'"):
        Mesh(SingleProcess(), {"data": 1}).axis("model")
