"""Precisions in which a network can be trained on a card, and how near to float32 each must stay.

Weights are float32 in all of them. "tf32" rounds what goes into a product to 10 bits, "bfloat16"
computes products, and stores what lies between them, with 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """What may differ from the reference, PyTorch in float32 and (for gradients) in float64.

    The first loss may differ by so much. The distance of the gradients to those in float64, and
    that of the losses to the reference's, may be so much, or `SLACK` times that of PyTorch's own
    steps in the same precision, if that is more.
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
"""By precision, the strictest first."""

PRECISIONS = tuple(TOLERANCES)
REFERENCE_PRECISION = PRECISIONS[0]


def is_as_strict(precision: str, other: str) -> bool:
    """Whether a precision is that of another, or a stricter one.

    >>> is_as_strict("float32", "tf32"), is_as_strict("bfloat16", "tf32")
    (True, False)
    """
    if precision == other:
        return True
    return PRECISIONS.index(precision) < PRECISIONS.index(other)
