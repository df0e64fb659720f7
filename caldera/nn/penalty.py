"""Penalties on derivatives, which are ordinary expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.errors import ShapeError

_TINY = 1e-12


def gradient_penalty(function: Callable[[Expr], Expr], x: Any, *, norm: float | None = 1.0) -> Expr:
    """Return the squared difference between a function's slope at each sample and `norm`.

    The penalty is (|df/dx| - norm)^2.

    This is the penalty of WGAN-GP (Gulrajani et al., 2017); with `norm=None` it is |df/dx|^2, R1
    (Mescheder et al., 2018). It can be differentiated again, and so be a part of a loss. The
    function returns one or more numbers per sample, which are summed.

    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> x = cd.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> nn.gradient_penalty(lambda x: 3.0 * x[:, 0] + 4.0 * x[:, 1], x).tolist()
    [16.0, 16.0]
    """
    given = Expr(as_float(lift(x)))
    value = function(given)
    require(
        given.ndim and value.ndim and value.shape[0] == given.shape[0],
        "gradient_penalty",
        f"a function of samples, with a first axis of {given.shape[:1]}",
        f"values of shape {value.shape}",
        error=ShapeError,
    )
    slope = op.grad(op.sum(value), given)
    squares = op.sum(op.square(slope), axis=tuple(range(1, given.ndim)))
    if norm is None:
        return squares
    # The root has no derivative at zero, where a function is flat.
    return op.square(op.sqrt(squares + _TINY) - norm)
