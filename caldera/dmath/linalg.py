"""Linear algebra on arrays that ranks have parts of, as far as it is not that of `caldera.op`."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.dmath.array import Array
from caldera.errors import ShapeError
from caldera.lazy import Expr, lift
from caldera.sharding.ops import largest_singular
from caldera.tensor.dtype import part_of

MOST_STEPS = 60


def svd(
    a: Any, k: int | None = None, *, tolerance: float | None = None, seed: int = 0
) -> tuple[Expr, Expr, Expr]:
    """U, s and Vᵀ with a = U diag(s) Vᵀ, reduced; for the `k` largest singular values if that is
    given.

    All of them are found by one-sided block Jacobi, the largest by a randomised block Krylov method
    that ends when the error of each is below `tolerance` times the largest (50 times the rounding
    error of the dtype, if nothing is said); `svd_bound` gives what it ended with.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array(np.diag([3.0, 1.0, 2.0]), layout=dm.Rows())
    ...     u, s, vt = dm.svd(a, k=2)
    ...     s.numpy().round(6)
    array([3., 2.])
    """
    if k is None:
        return op.svd(a)
    u, s, vt, _ = _largest(a, k, tolerance, seed)
    return u, s, vt


def svd_bound(a: Any, k: int, *, tolerance: float | None = None, seed: int = 0) -> Expr:
    """For each of the `k` largest singular values that `svd` finds how far it can be from one.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array(np.diag([3.0, 1.0, 2.0]), layout=dm.Rows())
    ...     bool((dm.svd_bound(a, 1).numpy() < 1e-12).all())
    True
    """
    return _largest(a, k, tolerance, seed)[3]


def _largest(a: Any, k: int, tolerance: float | None, seed: int) -> tuple[Expr, ...]:
    node = lift(a)
    if len(node.shape) != 2 or not 1 <= k <= min(node.shape):
        raise ShapeError.build(
            "dm.svd", expected="a matrix, and k from 1 to its smaller size",
            got=f"shape {node.shape} and k={k}",
        )  # fmt: skip
    limit = 50 * float(np.finfo(part_of(node.dtype)).eps) if tolerance is None else tolerance
    made = largest_singular(node, k=k, tolerance=float(limit), steps=MOST_STEPS, seed=seed)
    return tuple(Array(each) for each in made)
