"""Sums over ranks, written like any other operation."""

from __future__ import annotations

from typing import Any

from caldera.graph.ops import collective
from caldera.lazy import Expr, lift


def all_sum(x: Any, axis: str = "data") -> Expr:
    """The sum of `x` over all ranks along a named axis of the mesh; alone, `x` itself.

    The plan is given its communicator by `cd.compile(..., communicator=)`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.all_sum(cd.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return Expr(collective.all_sum(lift(x), axis=axis, number=collective.next_number()))
