"""What validation found: a list of checks, each with a number and what it may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from caldera.errors import CalderaError


class ValidationError(CalderaError, AssertionError):
    """A part that does something else than it should.

    >>> issubclass(ValidationError, AssertionError)
    True
    """


@dataclass(frozen=True)
class Finding:
    """One check.

    >>> str(Finding("gradient", 0.5, 1e-6, "input 0"))
    'WRONG  gradient: 0.5 (at most 1e-06), input 0'
    """

    check: str
    value: float
    allowed: float
    detail: str = ""

    @property
    def passes(self) -> bool:
        """Whether the number is what it may be."""
        return math.isfinite(self.value) and self.value <= self.allowed

    def __str__(self) -> str:
        mark = "right" if self.passes else "WRONG"
        text = f"{mark}  {self.check}: {self.value:.3g} (at most {self.allowed:.3g})"
        return f"{text}, {self.detail}" if self.detail and not self.passes else text


@dataclass
class Validation:
    """All checks of a part in a framework.

    >>> found = Validation("SGD", "torch", [Finding("trajectory", 0.0, 1e-9)])
    >>> found.passes
    True
    """

    part: str
    framework: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Whether nothing is wrong."""
        return all(each.passes for each in self.findings)

    @property
    def wrong(self) -> list[Finding]:
        """The checks that failed."""
        return [each for each in self.findings if not each.passes]

    def add(self, check: str, value: float, allowed: float, detail: str = "") -> None:
        """One check more."""
        self.findings.append(Finding(check, float(value), allowed, detail))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Whatever a user's part raises inside is a check that failed."""
        try:
            # Numbers that overflow are found by the checks.
            with np.errstate(all="ignore"):
                yield
        except Exception as error:
            self.add("runs to the end", 1, 0, f"it raised {type(error).__name__}: {error}")

    def require(self) -> Validation:
        """Raise if something is wrong."""
        if not self.passes:
            first = self.wrong[0]
            raise ValidationError.build(
                f"{self.part} in {self.framework}", expected=f"{first.check} of at most "
                f"{first.allowed:.3g}", got=f"{first.value:.3g}", hint=first.detail,
            )  # fmt: skip
        return self

    def __str__(self) -> str:
        lines = [f"{self.part} in {self.framework}: {'right' if self.passes else 'WRONG'}"]
        return "\n".join([*lines, *(f"  {each}" for each in self.findings)])
