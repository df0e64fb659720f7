"""What validation found: a list of checks, each with a number and what it may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from caldera.bench.levels.difference import Difference
from caldera.draw.heat_map import heat_map
from caldera.draw.html import Safe, section, table, tag
from caldera.draw.page import document
from caldera.errors import CalderaError, ConfigError


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
    heat: tuple[tuple[float, ...], ...] = ()
    """Where arrays differ, if that is what was checked."""

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

    def add_difference(self, check: str, apart: Difference, allowed: float) -> None:
        """One check more, of arrays."""
        heat = tuple(map(tuple, apart.heat))
        self.findings.append(Finding(check, apart.largest, allowed, apart.where, heat))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Whatever a user's part raises inside is a check that failed."""
        try:
            # Numbers that overflow are found by the checks.
            with np.errstate(all="ignore"):
                yield
        except ConfigError:
            # Not the part's mistake: an unknown framework, or one that is not installed.
            raise
        except Exception as error:
            self.add("runs to the end", 1, 0, f"it raised {type(error).__name__}: {error}")

    def require(self) -> Validation:
        """Raise if something is wrong."""
        if not self.passes:
            first = self.wrong[0]
            raise ValidationError.build(
                f"{self.part} in {self.framework}",
                expected=f"{first.check} of at most {first.allowed:.3g}",
                got=f"{first.value:.3g}",
                hint=first.detail,
            )
        return self

    def __str__(self) -> str:
        lines = [f"{self.part} in {self.framework}: {'right' if self.passes else 'WRONG'}"]
        return "\n".join([*lines, *(f"  {each}" for each in self.findings)])


def validation_page(validations: Sequence[Validation]) -> str:
    """One page about them; of arrays that differ, a map of where.

    >>> "SGD in torch" in validation_page([Validation("SGD", "torch")])
    True
    """
    parts: list[Safe] = [tag("h1", "Validation")]
    for number, each in enumerate(validations):
        rows = [
            (
                "right" if one.passes else "WRONG",
                one.check,
                f"{one.value:.3g}",
                f"{one.allowed:.3g}",
                one.detail if not one.passes else "",
            )
            for one in each.findings
        ]
        maps = [heat_map(one.heat, one.check) for one in each.wrong if one.heat]
        head = ("", "check", "found", "at most", "where")
        title = f"{each.part} in {each.framework}"
        parts.append(section(f"part{number}", title, table(head, rows, numbers=(2, 3)), *maps))
    index = {f"part{number}": each.part for number, each in enumerate(validations)}
    return document("Validation", index, parts)
