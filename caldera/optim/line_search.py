"""The state of a line search as scalars of a plan, and the minimum of a cubic."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple

from caldera import op
from caldera.compiler.lazy import Expr

DECREASE, CURVATURE = 1e-4, 0.9
"""The constants of Wolfe's two conditions."""


class Point(NamedTuple):
    """A point of the line: its distance from the origin, the loss and the slope there."""

    at: Expr
    loss: Expr
    slope: Expr


@dataclass(frozen=True)
class Search:
    """What is known of a line: all are scalars in float64.

    - `phase`: 0 if the parameters are at an accepted point, 1 while the interval that is looked for
      grows, 2 while it shrinks.
    - `length`: distance of the point that is evaluated now; 0 before the first one.
    - `loss`, `slope`: at the origin of the line; `count`: evaluations so far.
    - `close`: 1 if the last point was too close to an end of the interval.
    - `at0`, ..., `slope1`: the two ends; in phase 1 the first is the point before.
    - `low`: the end with the lower loss.
    - `scale`: of the initial approximation of the inverse Hessian.
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
    def of(cls, kept: Expr) -> Search:
        """The scalars that a vector holds."""
        return cls(*(kept[index] for index in range(len(fields(cls)))))

    def stacked(self) -> Expr:
        """One vector of all."""
        return op.stack([op.cast(getattr(self, each.name), "float64") for each in fields(self)])

    @property
    def ends(self) -> tuple[Point, Point]:
        """The ends of the interval."""
        return Point(self.at0, self.loss0, self.slope0), Point(self.at1, self.loss1, self.slope1)

    def between(self, first: Point, second: Point, low: Expr) -> Search:
        """This search with another interval."""
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
    """`op.where` for scalars, points and searches."""
    if isinstance(first, Search):
        names = [each.name for each in fields(first)]
        return Search(*(chosen(condition, getattr(first, n), getattr(second, n)) for n in names))
    if isinstance(first, Point):
        return Point(*(chosen(condition, *each) for each in zip(first, second, strict=True)))
    return op.where(condition, first, second)


def any_of(*conditions: Expr) -> Expr:
    return reduce(op.logical_or, conditions)


def all_of(*conditions: Expr) -> Expr:
    return reduce(op.logical_and, conditions)


def minimum_of_cubic(first: Point, second: Point, least: Expr, most: Expr) -> Expr:
    """Where the cubic with these values and slopes is lowest, within bounds; else their middle."""
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
