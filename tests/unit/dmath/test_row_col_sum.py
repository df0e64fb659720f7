"""A vector and the sums of a matrix's rows or columns, fast and in one order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import dmath as dm
from caldera import op
from caldera.errors import CalderaError, ShapeError

LAYOUTS: tuple[Any, ...] = (dm.Rows(), dm.Columns(), dm.Blocks(2, 3), dm.Replicated())
SHAPES = ((7, 5), (0, 3), (2, 17))


def _matrix(m: int, n: int) -> np.ndarray:
    """Numbers of very different sizes: another order gives other bits."""
    rng = np.random.default_rng(10 * m + n)
    return rng.normal(size=(m, n)) * 10.0 ** rng.integers(-8, 8, size=(m, n))


def test_one_order_gives_the_same_bits_on_any_ranks_in_any_layout() -> None:
    seen: dict[Any, bytes] = {}
    for ranks in (1, 3):
        with dm.connect(threads=ranks):
            for shape in SHAPES:
                a = _matrix(*shape)
                for axis in (0, 1):
                    v = np.random.default_rng(1).normal(size=a.shape[1 - axis])
                    right, size = 2 * v + 0.5 * a.sum(axis), np.abs(a).sum(axis) + np.abs(v)
                    for layout in LAYOUTS:
                        A = dm.array(a, layout=layout)
                        for in_order in (True, False):
                            made = dm.add_row_col_sum(
                                v, A, axis, alpha=0.5, beta=2.0, deterministic=in_order
                            ).numpy()
                            assert np.all(np.abs(made - right) <= 1e-14 * size), (shape, layout)
                            if in_order:
                                first = seen.setdefault((shape, axis), made.tobytes())
                                assert made.tobytes() == first, (ranks, shape, axis, layout)


def test_gradients_dtypes_and_the_setting() -> None:
    a = _matrix(4, 3)
    with dm.connect(threads=2):
        A = dm.array(a, layout=dm.Rows())
        for in_order in (True, False):
            y = dm.add_row_col_sum(np.zeros(3), A, deterministic=in_order)
            (gradient,) = op.grad(op.sum(op.square(y)), [A])
            right = np.broadcast_to(2 * a.sum(0), a.shape)
            np.testing.assert_allclose(dm.evaluate([gradient])[0].numpy(), right, rtol=1e-12)
        ones = dm.array(np.ones((3000, 2), np.float16), layout=dm.Rows())
        total = dm.add_row_col_sum(np.zeros(2, np.float16), ones, deterministic=True)
        assert total.numpy().tolist() == [3000.0, 3000.0]
        with cd.settings.override(deterministic=True):
            text = str(dm.add_row_col_sum(np.zeros(3), A).explain())
        assert "ordered_sum" in text
        assert "ordered_sum" not in str(dm.add_row_col_sum(np.zeros(3), A).explain())


def test_what_does_not_fit_is_refused() -> None:
    a = np.ones((4, 3))
    for vector, matrix, axis in ((np.ones(4), a, 0), (np.ones(3), a, 2), (np.ones(3), a[0], 0)):
        with pytest.raises(ShapeError, match="a vector of its other size"):
            dm.add_row_col_sum(vector, matrix, axis)
    with pytest.raises(CalderaError, match="alpha"):
        dm.add_row_col_sum(np.ones(3), a, alpha="much")  # type: ignore[arg-type]


def test_parts_without_elements_keep_their_shapes() -> None:
    with dm.connect(threads=2):
        A = dm.array(np.ones((0, 3)), layout=dm.Columns())
        assert (A + 1).numpy().shape == (0, 3)
        assert A.sum(axis=0).numpy().tolist() == [0.0, 0.0, 0.0]
