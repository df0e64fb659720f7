"""Linear algebra on distributed arrays, in addition to the functions of `caldera.op`."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import refusal, require
from caldera.base.config import settings
from caldera.compiler.lazy import Expr, lift
from caldera.compiler.sharding.ops import largest_singular, ordered_sum, place
from caldera.core.tensor.dtype import part_of
from caldera.dmath.array import Array
from caldera.errors import ShapeError

MOST_STEPS = 60


def svd(
    a: Any, k: int | None = None, *, tolerance: float | None = None, seed: int = 0
) -> tuple[Expr, Expr, Expr]:
    """Return U, s and Vᵀ with a = U diag(s) Vᵀ, reduced, or for the `k` largest singular values.

    The full decomposition uses a bidiagonal matrix, or one-sided block Jacobi where that does not
    fit into the memory of a rank. The largest values use a randomised block Krylov method. It stops
    when the error of each value is below `tolerance` times the largest value, by default 50 times
    the rounding error of the dtype. `svd_bound` returns the final error bounds.

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
    """Return an error bound for each of the `k` largest singular values of `svd`.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array(np.diag([3.0, 1.0, 2.0]), layout=dm.Rows())
    ...     bool((dm.svd_bound(a, 1).numpy() < 1e-12).all())
    True
    """
    return _largest(a, k, tolerance, seed)[3]


def add_row_col_sum(
    vector: Any,
    matrix: Any,
    axis: int = 0,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    deterministic: bool | None = None,
) -> Array:
    """Return beta * vector + alpha * the sum of a matrix over rows, or over columns with axis=1.

    This is dMath's AddRowColSumMatrix, used for bias gradients. The fast form sums locally, then
    over ranks. With `deterministic` all values are added in a fixed order, which returns the same
    bits on any number of ranks and in any layout, at the cost of a transfer where the summed lines
    are split. The default is `cd.settings.deterministic`.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array(np.arange(6.0).reshape(3, 2), layout=dm.Rows())
    ...     dm.add_row_col_sum(np.ones(2), a, alpha=0.5, deterministic=True).numpy()
    array([4. , 5.5])
    """
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if not isinstance(factor, Real):
            raise refusal("dm.add_row_col_sum", name, "a number", factor)
    given, start = lift(matrix), lift(vector)
    require(
        len(given.shape) == 2 and axis in (0, 1) and start.shape == (given.shape[1 - axis],),
        "dm.add_row_col_sum",
        "a matrix, axis 0 or 1, and a vector of its other size",
        f"shape {given.shape}, axis {axis} and a vector of shape {start.shape}",
        error=ShapeError,
    )
    in_order = settings.deterministic if deterministic is None else deterministic
    total = ordered_sum(given, axis=axis) if in_order else op.sum(Expr(given), axis).node
    return Array(place((Expr(start) * beta + Expr(total) * alpha).node, None))


def _largest(a: Any, k: int, tolerance: float | None, seed: int) -> tuple[Expr, ...]:
    node = lift(a)
    require(
        len(node.shape) == 2 and 1 <= k <= min(node.shape),
        "dm.svd",
        "a matrix, and k from 1 to its smaller size",
        f"shape {node.shape} and k={k}",
        error=ShapeError,
    )
    limit = 50 * float(np.finfo(part_of(node.dtype)).eps) if tolerance is None else tolerance
    made = largest_singular.outputs(node, k=k, tolerance=float(limit), steps=MOST_STEPS, seed=seed)
    return tuple(Array(each) for each in made)
