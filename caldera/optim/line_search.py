"""The state of a line search as scalars of a plan, and the minimum of a cubic."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

from caldera import op
from caldera.compiler.lazy import Expr

DECREASE, CURVATURE = 1e-4, 0.9
"""The constants of Wolfe's two conditions."""


class LinePoint(NamedTuple):
    """Point of a line: distance from the origin, loss and slope."""

    at: Expr
    loss: Expr
    slope: Expr


@dataclass(frozen=True)
class LineSearch:
    """State of a line search, as float64 scalars.

    - `phase`: 0 if the parameters are at an accepted point, 1 during bracketing, 2 during zooming.
    - `length`: distance from the origin to the trial point; 0 before the first step.
    - `loss`, `slope`: values at the origin; `count`: number of trials.
    - `close`: 1 if the last trial was too close to an end of the interval.
    - `at0`, ..., `slope1`: the ends of the interval; in phase 1 the first is the previous trial.
    - `low`: index of the end with the lower loss.
    - `scale`: factor of the initial inverse Hessian.
    """

    phase: Expr
    length: Expr
    loss: Expr
    slope: Expr
    count: Expr
    close: Expr
    at0: Expr
    loss0: Expr
    slope0: Expr
    at1: Expr
    loss1: Expr
    slope1: Expr
    low: Expr
    scale: Expr

    @classmethod
    def of(cls, kept: Expr) -> LineSearch:
        """Unpack a vector."""
        return cls(*(kept[index] for index in range(len(fields(cls)))))

    def stacked(self) -> Expr:
        """Return all scalars as a vector."""
        return op.stack([op.cast(getattr(self, each.name), "float64") for each in fields(self)])

    @property
    def ends(self) -> tuple[LinePoint, LinePoint]:
        """Points at both ends of the interval."""
        return LinePoint(self.at0, self.loss0, self.slope0), LinePoint(
            self.at1, self.loss1, self.slope1
        )

    def between(self, first: LinePoint, second: LinePoint, low: Expr) -> LineSearch:
        """Return a copy with another interval."""
        return replace(
            self,
            at0=first.at,
            loss0=first.loss,
            slope0=first.slope,
            at1=second.at,
            loss1=second.loss,
            slope1=second.slope,
            low=low,
        )


def chosen(condition: Expr, first: Any, second: Any) -> Any:
    """Select scalars, points or searches by a condition."""
    if isinstance(first, LineSearch):
        names = [each.name for each in fields(first)]
        return LineSearch(
            *(chosen(condition, getattr(first, n), getattr(second, n)) for n in names)
        )
    if isinstance(first, LinePoint):
        return LinePoint(*(chosen(condition, *each) for each in zip(first, second, strict=True)))
    return op.where(condition, first, second)


def any_of(*conditions: Expr) -> Expr:
    return reduce(op.logical_or, conditions)


def all_of(*conditions: Expr) -> Expr:
    return reduce(op.logical_and, conditions)


def minimum_of_cubic(first: LinePoint, second: LinePoint, least: Expr, most: Expr) -> Expr:
    """Return the minimum of the cubic through two points, clipped to the bounds.

    A cubic without a minimum returns the midpoint of the bounds.
    """
    inner = first.slope + second.slope
    inner = inner - 3.0 * (first.loss - second.loss) / (first.at - second.at)
    square = inner * inner - first.slope * second.slope
    root = op.sqrt(op.maximum(square, 0.0))
    is_ordered = first.at <= second.at
    left, right = chosen(is_ordered, first, second), chosen(is_ordered, second, first)
    part = (right.slope + root - inner) / (right.slope - left.slope + 2.0 * root)
    lowest = right.at - (right.at - left.at) * part
    within = op.minimum(op.maximum(lowest, least), most)
    return op.where(square >= 0.0, within, 0.5 * (least + most))
