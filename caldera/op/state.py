"""Assignment: changing variables as part of a computation."""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, Variable, lift
from caldera.core.graph.ops import base
from caldera.core.graph.ops.base import broadcast_to, cast
from caldera.errors import DtypeError


def assign(target: Variable, value: Any) -> Expr:
    """The new value of a variable: evaluating this (or anything made of it) stores it.

    All reads in one run see the old values; all assignments are committed together at its end.

    >>> import caldera as cd
    >>> from caldera import op
    >>> n = op.var("n", (), fill=cd.constant(1.0))
    >>> op.assign(n, n * 10.0).eval().item(), n.numpy().item()
    (10.0, 10.0)
    """
    if not isinstance(target, Variable):
        raise DtypeError.build(
            "op.assign",
            expected="a variable made by op.var",
            got=type(target).__name__,
            hint="only variables keep a value between runs",
        )
    new = lift(value, target.dtype)
    if new.shape == () and target.shape != ():
        new = broadcast_to(new, target.shape)
    return Expr(base.assign(target.node, cast(new, target.dtype)))
