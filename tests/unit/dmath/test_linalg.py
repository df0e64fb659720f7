"""Linear algebra as a user calls it."""

from __future__ import annotations

import numpy as np
import pytest

from caldera import dmath as dm
from caldera import op
from caldera.compiler.sharding.rules import algorithms
from caldera.errors import ShapeError


def test_solutions_factors_and_transforms_of_arrays_that_ranks_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(algorithms, "WHOLE_BYTES", -1)
    rng = np.random.default_rng(0)
    a, y = rng.normal(size=(30, 30)) + 8 * np.eye(30), rng.normal(size=(30, 3))
    with dm.connect(threads=3):
        A, Y = dm.array(a, layout=dm.Blocks(7, 11)), dm.array(y, layout=dm.Columns())
        np.testing.assert_allclose(dm.solve(A, Y).numpy(), np.linalg.solve(a, y), atol=1e-12)
        u, s, vt = dm.svd(A)
        np.testing.assert_allclose(((u * s) @ vt).numpy(), a, atol=1e-11)
        q, r = np.linalg.qr(A)
        np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-12)
        np.testing.assert_allclose(dm.fft2(A).numpy(), np.fft.fft2(a), atol=1e-11)
        (gradient,) = op.grad(op.sum(op.square(dm.solve(A, Y))), [A])
        x = np.linalg.solve(a, y)
        right = -2 * np.linalg.solve(a.T, x) @ x.T
        np.testing.assert_allclose(dm.evaluate([gradient])[0].numpy(), right, atol=1e-10)


def test_the_largest_singular_values_and_their_bound() -> None:
    a = np.random.default_rng(1).normal(size=(40, 25))
    with dm.connect(threads=2):
        A = dm.array(a, layout=dm.Rows())
        _, s, _ = dm.svd(A, k=4)
        np.testing.assert_allclose(s.numpy(), np.linalg.svd(a, compute_uv=False)[:4], rtol=1e-12)
        assert np.all(dm.svd_bound(A, 4).numpy() < 1e-10)
        with pytest.raises(ShapeError, match="k=26"):
            dm.svd(A, k=26)
