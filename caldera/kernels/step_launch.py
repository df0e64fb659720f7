"""Families of devices on which calls of a step can become one: all of them, or some.

A grouper is given bound calls in order, and gives back what runs them: those that are alike and do
not depend on each other at once, perhaps in another order, never with another result; and which of
these pieces may run beside each other. A joiner is given the calls of a step in order, each with
the op its kernel is registered for, a way to get memory on the device that is 0, and one to ask
whether an array is scratch memory. It gives back what makes any number of steps one launch, or None
where it cannot, or where it would not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caldera.core.tensor.shape import Shape
from caldera.kernels.table import Array, Call, Runner

Steps = Callable[[int], Runner]
Fresh = Callable[[Shape, str], Array]
"""Memory of a shape and a dtype that belongs to the step alone."""
StepFuser = Callable[[Sequence[tuple[str, Call]], Fresh, Callable[[Array], bool]], Steps | None]

STEP_FUSERS: dict[str, StepFuser] = {}
"""By family; the rooms of kernels fill it when they are imported."""


@dataclass(frozen=True)
class Piece:
    """A part of a step: what runs it, the numbers of those before it that have to be done first,
    and about how long it takes."""

    run: Runner
    after: frozenset[int] = frozenset()
    seconds: float = 0.0


LaunchGrouper = Callable[[Sequence[tuple[Call, Runner]]], list[Piece]]

LAUNCH_GROUPERS: dict[str, LaunchGrouper] = {}
"""By family, in the same way."""
