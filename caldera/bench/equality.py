"""Whether two frameworks computed the same: a time counts only if they did.

In float32 the first losses and the first gradients must agree, in float64 the losses of five steps,
and for small networks the curve of the loss must stay as near as PyTorch's own two orders of an
image's axes stay to each other. Rounding turns a few ReLUs on or off, so in deep networks no two
float32 gradients agree; those that are at least as near to the float64 ones as PyTorch's are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FIRST_LOSS = 1e-6
GRADIENTS = 1e-4
FLOAT64 = 1e-9
KERNEL = 1e-4
CURVE_ROUNDING = 1e-5
"""Distance of loss curves that rounding alone explains where there is no other measure of it."""
_TINY = 1e-6
"""Gradients smaller than this part of the largest are compared with that part."""

Arrays = Sequence[np.ndarray[Any, np.dtype[Any]]]


@dataclass
class Equality:
    """Differences to the reference; None where something was not compared.

    >>> found = Equality(first_loss=1e-3, gradients=1e-6)
    >>> found.judge()
    >>> found.holds, found.broken
    (False, ['first loss 1e-03 > 1e-06'])
    """

    first_loss: float | None = None
    gradients: float | None = None
    true_gradients: float | None = None
    """The difference to the reference's gradients in float64."""
    reference_true_gradients: float | None = None
    """The same of the reference's own gradients in float32."""
    float64: float | None = None
    curve: float | None = None
    curve_allowed: float | None = None
    result: float | None = None
    """Of a single computation."""
    against: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool | None:
        """Whether everything that was compared agrees; None if nothing was."""
        compared = (self.first_loss, self.gradients, self.float64, self.curve, self.result)
        if all(each is None for each in compared):
            return None
        return not self.broken

    @property
    def _as_near_as_reference(self) -> bool:
        if self.true_gradients is None or self.reference_true_gradients is None:
            return False
        return self.true_gradients <= max(GRADIENTS, self.reference_true_gradients)

    def judge(self) -> None:
        """Fill in what is broken."""
        limits = {
            "first loss": (self.first_loss, FIRST_LOSS),
            "first gradients": (None if self._as_near_as_reference else self.gradients, GRADIENTS),
            "five float64 steps": (self.float64, FLOAT64),
            "loss curve": (self.curve, self.curve_allowed),
            "result": (self.result, KERNEL),
        }
        self.broken = [
            f"{name} {value:.0e} > {limit:.0e}"
            for name, (value, limit) in limits.items()
            if value is not None and limit is not None and not value <= limit
        ]


def compare_training(
    reference: Mapping[str, Any],
    reference_gradients: Arrays,
    found: Mapping[str, Any],
    gradients: Arrays,
) -> Equality:
    """A network's check beside the reference's."""
    return Equality(
        first_loss=relative(found["first loss"], reference["first loss"]),
        gradients=largest_difference(reference_gradients, gradients),
        float64=_curves_apart(reference, found, "float64"),
        curve=_curves_apart(reference, found, "curve"),
    )


def compare_results(reference: Arrays, found: Arrays) -> Equality:
    """A single computation's result beside the reference's."""
    return Equality(result=largest_difference(reference, found))


def curve_limit(apart: float | None) -> float:
    """How far a loss curve may be away, given how far PyTorch's two memory formats are.

    >>> curve_limit(3e-4), curve_limit(None)
    (0.0003, 1e-05)
    """
    return max(CURVE_ROUNDING, apart or 0.0)


def relative(value: float, reference: float) -> float:
    """The difference, relative to the reference where that is above 1.

    >>> relative(2.2, 2.0)
    0.10000000000000009
    """
    if not math.isfinite(value) or not math.isfinite(reference):
        return math.inf
    return abs(value - reference) / max(1.0, abs(reference))


def largest_difference(reference: Arrays, found: Arrays) -> float:
    """The largest difference of an element, relative to the largest of its array.

    >>> largest_difference([np.array([1.0, 2.0])], [np.array([1.0, 2.5])])
    0.25
    """
    if [each.shape for each in reference] != [each.shape for each in found]:
        return math.inf
    sizes = [float(np.abs(each).max(initial=0.0)) for each in reference]
    least = _TINY * max(sizes, default=0.0) or 1.0
    worst = 0.0
    for size, expected, got in zip(sizes, reference, found, strict=True):
        if expected.size:
            difference = float(np.abs(np.asarray(expected) - got).max()) / max(size, least)
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _curves_apart(
    reference: Mapping[str, Any], found: Mapping[str, Any], name: str
) -> float | None:
    if name not in reference or name not in found:
        return None
    pairs = zip(reference[name], found[name], strict=True)
    return max(relative(value, expected) for expected, value in pairs)
