"""Equality of the results of two frameworks: a time counts only if its result is right.

In float32 the first losses and the first gradients must agree. In float64 the losses of five steps
must agree. For small networks the loss curve must stay as close to PyTorch's as PyTorch's own two
orders of an image's axes stay to each other. Rounding turns a few ReLUs on or off, so in deep
networks no two float32 gradients agree. Gradients that are at least as close to the float64
gradients as PyTorch's are accepted.

On a GPU, and in bfloat16 on the CPU, each precision has its tolerances. Weights are float32 in all
precisions. "tf32" rounds the inputs of products to 10 bits. "bfloat16" computes products, and
stores the values between them, with 7 bits. In these precisions gradients are compared by the norm
of their difference to PyTorch's float64 gradients. A precision may be as far from the reference,
times a factor, as PyTorch's own steps in that precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tolerance:
    """Allowed differences from the reference: PyTorch in float32 and (for gradients) in float64.

    `first_loss` limits the first loss. `gradients` limits the distance of the gradients to the
    float64 gradients, and `curve` the distance of the losses to the reference's losses. Both rise
    to `SLACK` times the distance of PyTorch's own steps in the same precision, if that is larger.
    """

    first_loss: float
    gradients: float
    curve: float


SLACK = 3.0
"""Two that round alike, but in another order, differ by about as much; not by ten times that."""

TOLERANCES: Mapping[str, Tolerance] = {
    "float32": Tolerance(first_loss=1e-5, gradients=1e-5, curve=1e-4),
    "tf32": Tolerance(first_loss=1e-3, gradients=2e-3, curve=2e-3),
    "bfloat16": Tolerance(first_loss=2e-2, gradients=2e-2, curve=2e-2),
}
"""Tolerances by precision, the strictest first."""

PRECISIONS = tuple(TOLERANCES)
REFERENCE_PRECISION = PRECISIONS[0]


def is_as_strict(precision: str, other: str) -> bool:
    """Return True if a precision equals another or is stricter; none is float32 on the CPU.

    >>> is_as_strict("float32", "tf32"), is_as_strict("bfloat16", "")
    (True, False)
    """
    ranks = [PRECISIONS.index(each or REFERENCE_PRECISION) for each in (precision, other)]
    return ranks[0] <= ranks[1]


FIRST_LOSS = 1e-6
GRADIENTS = 1e-4
FLOAT64 = 1e-9
KERNEL = 1e-4
CURVE_ROUNDING = 1e-5
"""Distance of loss curves explained by rounding, used if no other measure is known."""
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
    """Difference of the reference's float32 gradients to its float64 gradients."""
    float64: float | None = None
    curve: float | None = None
    curve_allowed: float | None = None
    result: float | None = None
    """Largest relative difference in the result of a single computation."""
    precision: str = ""
    """Precision on a GPU, and on the CPU if it is not float32."""
    distance: float | None = None
    """Distance of all gradients together to the float64 gradients, relative to their norm.

    Only set together with a precision.
    """
    distance_allowed: float | None = None
    against: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool | None:
        """True if everything that was compared agrees; None without a comparison."""
        compared = (
            self.first_loss,
            self.gradients,
            self.float64,
            self.curve,
            self.result,
            self.distance,
        )
        return None if all(each is None for each in compared) else not self.broken

    @property
    def _as_near_as_reference(self) -> bool:
        if self.true_gradients is None or self.reference_true_gradients is None:
            return False
        return self.true_gradients <= max(GRADIENTS, self.reference_true_gradients)

    @property
    def first_loss_allowed(self) -> float:
        """Allowed difference of the first loss."""
        return TOLERANCES[self.precision].first_loss if self.precision else FIRST_LOSS

    def allow(self, gradients: float | None, curve: float | None) -> None:
        """Set the limits of a precision, given the distances of PyTorch's own steps in it."""
        tolerance = TOLERANCES[self.precision]
        self.distance_allowed = max(tolerance.gradients, SLACK * (gradients or 0.0))
        self.curve_allowed = max(tolerance.curve, SLACK * (curve or 0.0))

    def judge(self) -> None:
        """Fill in the names of the exceeded limits."""
        limits = {
            "first loss": (self.first_loss, self.first_loss_allowed),
            "first gradients": (None if self._as_near_as_reference else self.gradients, GRADIENTS),
            "gradients' distance to float64": (self.distance, self.distance_allowed),
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
    """Compare a network's check with the reference's."""
    return Equality(
        first_loss=relative(found["first loss"], reference["first loss"]),
        gradients=largest_difference(reference_gradients, gradients),
        float64=_curves_apart(reference, found, "float64"),
        curve=_curves_apart(reference, found, "curve"),
    )


def compare_in_precision(
    reference: Mapping[str, Any],
    truth: Arrays,
    found: Mapping[str, Any],
    gradients: Arrays,
    precision: str,
) -> Equality:
    """Compare a network's check in a precision with the reference's.

    Some checks only have the means of epochs.
    """
    equality = Equality(precision=precision, float64=_curves_apart(reference, found, "float64"))
    if "epochs" in found:
        equality.curve = _farthest(_means(reference["curve"], found["mean of"]), found["epochs"])
        return equality
    equality.first_loss = relative(found["first loss"], reference["first loss"])
    equality.curve = _curves_apart(reference, found, "curve")
    if truth:
        equality.distance = distance(truth, gradients)
    return equality


def compare_results(reference: Arrays, found: Arrays) -> Equality:
    """Compare the result of a single computation with the reference's."""
    return Equality(result=largest_difference(reference, found))


def curve_limit(apart: float | None) -> float:
    """Return the allowed distance of a loss curve, given that between PyTorch's memory formats.

    >>> curve_limit(3e-4), curve_limit(None)
    (0.0003, 1e-05)
    """
    return max(CURVE_ROUNDING, apart or 0.0)


def relative(value: float, reference: float) -> float:
    """Return the difference, relative to the reference where that is above 1.

    >>> relative(2.2, 2.0)
    0.10000000000000009
    """
    if not math.isfinite(value) or not math.isfinite(reference):
        return math.inf
    return abs(value - reference) / max(1.0, abs(reference))


def largest_difference(reference: Arrays, found: Arrays) -> float:
    """Return the largest difference of an element, relative to the largest of its array.

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


def distance(reference: Arrays, found: Arrays) -> float:
    """Return the norm of the difference of all arrays, relative to the norm of the reference.

    >>> distance([np.array([3.0, 4.0])], [np.array([3.0, 4.5])])
    0.1
    """
    if [each.shape for each in reference] != [each.shape for each in found]:
        return math.inf
    size = difference = 0.0
    for expected, got in zip(reference, found, strict=True):
        wide = np.asarray(expected, np.float64).reshape(-1)
        apart = wide - np.asarray(got, np.float64).reshape(-1)
        size += float(wide @ wide)
        difference += float(apart @ apart)
    result = math.sqrt(difference / size) if size else math.sqrt(difference)
    return result if math.isfinite(result) else math.inf


def _means(values: Sequence[float], count: int) -> list[float]:
    """Return the means of groups of `count` values."""
    groups = range(len(values) // count)
    return [math.fsum(values[count * i : count * (i + 1)]) / count for i in groups]


def _curves_apart(
    reference: Mapping[str, Any], found: Mapping[str, Any], name: str
) -> float | None:
    if name not in reference or name not in found:
        return None
    return _farthest(reference[name], found[name])


def _farthest(reference: Sequence[float], found: Sequence[float]) -> float:
    pairs = zip(reference, found, strict=True)
    return max(relative(value, expected) for expected, value in pairs)
