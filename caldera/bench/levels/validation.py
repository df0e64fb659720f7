"""Differences between arrays, the findings of a validation, and level 0: operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caldera.bench.equality import distance, largest_difference
from caldera.bench.levels.learner import REFERENCE, framework_here
from caldera.bench.parts import Array, OperatorPart
from caldera.draw import charts
from caldera.draw.page import Safe, document, section, table, tag
from caldera.errors import CalderaError, ConfigError

CELLS = 16
"""Rows and columns of a heat map, at most."""


@dataclass(frozen=True)
class Difference:
    """`largest` is relative to the largest number of its array, `l2` to the norm of all.

    >>> found = Difference.of([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
    >>> found.largest, found.where, found.heat
    (0.25, 'array 0 at (1,)', [[0.0, 0.5]])
    """

    largest: float
    l2: float
    where: str
    heat: list[list[float]]
    """The largest difference in each cell of the array that differs most."""

    @classmethod
    def of(cls, found: Sequence[Array], expected: Sequence[Array]) -> Difference:
        """Return the difference between arrays and their expected values; infinite if shapes
        differ.
        """
        shapes = [each.shape for each in found], [each.shape for each in expected]
        if shapes[0] != shapes[1]:
            return cls(math.inf, math.inf, f"shapes {shapes[0]}, expected {shapes[1]}", [])
        sizes = [max(float(np.abs(each).max(initial=0.0)), 1e-30) for each in expected]
        apart = [
            np.abs(np.asarray(a, np.float64) - b) for a, b in zip(found, expected, strict=True)
        ]
        worst = [
            _finite(each.max(initial=0.0) / size) for each, size in zip(apart, sizes, strict=True)
        ]
        if not worst:
            return cls(0.0, 0.0, "nowhere", [])
        number = int(np.argmax(worst))
        place = (
            np.unravel_index(
                int(np.argmax(np.nan_to_num(apart[number], nan=np.inf))), apart[number].shape
            )
            if apart[number].size
            else ()
        )
        return cls(
            largest_difference(expected, found),
            distance(expected, found),
            f"array {number} at {tuple(int(each) for each in place)}",
            heat_map(apart[number]),
        )


def heat_map(values: Array) -> list[list[float]]:
    """Return an array of any shape as at most `CELLS` x `CELLS` maxima.

    >>> heat_map(np.eye(2))
    [[1.0, 0.0], [0.0, 1.0]]
    """
    flat = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
    rows = np.array_split(flat, min(CELLS, max(1, len(flat))), axis=0)
    columns = min(CELLS, max(1, flat.shape[1]))
    return [
        [float(each.max(initial=0.0)) for each in np.array_split(row, columns, axis=1)]
        for row in rows
    ]


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.inf


class ValidationError(CalderaError, AssertionError):
    """A part failed its validation.

    >>> issubclass(ValidationError, AssertionError)
    True
    """


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    >>> str(Finding("gradient", 0.5, 1e-6, "input 0"))
    'WRONG  gradient: 0.5 (at most 1e-06), input 0'
    """

    check: str
    value: float
    allowed: float
    detail: str = ""
    heat: tuple[tuple[float, ...], ...] = ()
    """Differences between arrays by position, if arrays were compared."""

    @property
    def passes(self) -> bool:
        """True if the number is within its limit."""
        return math.isfinite(self.value) and self.value <= self.allowed

    def __str__(self) -> str:
        mark = "right" if self.passes else "WRONG"
        text = f"{mark}  {self.check}: {self.value:.3g} (at most {self.allowed:.3g})"
        return f"{text}, {self.detail}" if self.detail and not self.passes else text


@dataclass
class PartValidation:
    """All checks of a part in a framework.

    >>> found = PartValidation("SGD", "torch", [Finding("trajectory", 0.0, 1e-9)])
    >>> found.passes
    True
    """

    part: str
    framework: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """True if all checks pass."""
        return all(each.passes for each in self.findings)

    @property
    def wrong(self) -> list[Finding]:
        """The checks that failed."""
        return [each for each in self.findings if not each.passes]

    def add(self, check: str, value: float, allowed: float, detail: str = "") -> None:
        """Add the result of a check."""
        self.findings.append(Finding(check, float(value), allowed, detail))

    def add_all(self, *checks: tuple[Any, ...]) -> None:
        """Add checks, each as `add` takes it."""
        for each in checks:
            self.add(*each)

    def add_difference(
        self, check: str, found: Sequence[Array], expected: Sequence[Array], allowed: float
    ) -> Difference:
        """Add the comparison of arrays, and return their difference."""
        apart = Difference.of(found, expected)
        heat = tuple(map(tuple, apart.heat))
        self.findings.append(Finding(check, apart.largest, allowed, apart.where, heat))
        return apart

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record any exception raised inside by a user's part as a failed check."""
        try:
            # Numbers that overflow are found by the checks.
            with np.errstate(all="ignore"):
                yield
        except ConfigError:
            # Not the part's mistake: an unknown framework, or one that is not installed.
            raise
        except Exception as error:
            self.add("runs to the end", 1, 0, f"it raised {type(error).__name__}: {error}")

    def require(self) -> PartValidation:
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


def validation_page(validations: Sequence[PartValidation]) -> str:
    """Return an HTML page of validations, with maps of the differences between arrays.

    >>> "SGD in torch" in validation_page([PartValidation("SGD", "torch")])
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
        maps = [charts.heat_map(one.heat, one.check) for one in each.wrong if one.heat]
        head = ("", "check", "found", "at most", "where")
        title = f"{each.part} in {each.framework}"
        parts.append(section(f"part{number}", title, table(head, rows, numbers=(2, 3)), *maps))
    index = {f"part{number}": each.part for number, each in enumerate(validations)}
    return document("Validation", index, parts)


STEP = 1e-5
GRADIENT, FORWARD64, FORWARD32, FRAMEWORK = 1e-6, 1e-10, 1e-4, 1e-10
DIRECTIONS = 4
"""Random directions in which each input's gradient is checked, besides its largest entries."""


def validate_operator(
    operator: OperatorPart,
    inputs: Sequence[Array],
    *,
    against: OperatorPart | None = None,
    framework: str = REFERENCE,
    seed: int = 0,
) -> PartValidation:
    """Check an operator on inputs that it is smooth around.

    >>> from caldera.bench.levels.reference import ReferenceSoftmax
    >>> validate_operator(ReferenceSoftmax(), [np.array([[0.1, 0.5, -2.0]])]).passes
    True
    """
    found = PartValidation(type(operator).__name__, framework)
    with found.running():
        given = [np.array(each, np.float64) for each in inputs]
        kept = [each.copy() for each in given]
        result = np.asarray(operator.forward(*given))
        found.add("result is finite", float(not np.isfinite(result).all()), 0)
        again = np.asarray(operator.forward(*given))
        found.add("same result when called again", Difference.of([again], [result]).largest, 0)
        random = np.random.default_rng(seed)
        slope = random.standard_normal(result.shape)
        slope_kept = slope.copy()
        gradients = [np.asarray(each) for each in operator.backward(slope, *given)]
        untouched = [
            *(np.array_equal(a, b) for a, b in zip(given, kept, strict=True)),
            np.array_equal(slope, slope_kept),
        ]
        found.add("inputs are unchanged", untouched.count(False), 0)
        shapes = [each.shape for each in gradients]
        wrong = float(shapes != [each.shape for each in given])
        found.add("gradients have the shapes of inputs", wrong, 0, f"got {shapes}")
        if found.passes:
            _check_gradients(found, operator, kept, slope_kept, gradients, random)
        if against is not None:
            expected = [np.asarray(against.forward(*kept)), *against.backward(slope_kept, *kept)]
            found.add_difference(
                "distance to the reference", [result, *gradients], expected, FORWARD64
            )
        narrow = operator.forward(*(each.astype(np.float32) for each in kept))
        found.add(
            "float32 in, float32 out", float(narrow.dtype != np.float32), 0, str(narrow.dtype)
        )
        found.add("float32 beside float64", Difference.of([narrow], [result]).largest, FORWARD32)
        if framework != REFERENCE:
            with framework_here(framework) as here:
                computed = here.custom(operator, kept, slope_kept).results()
            found.add_difference(
                f"the same in {framework}", computed, [result, *gradients], FRAMEWORK
            )
    return found


def _check_gradients(
    found: PartValidation,
    operator: OperatorPart,
    inputs: Sequence[Array],
    slope: Array,
    gradients: Sequence[Array],
    random: np.random.Generator,
) -> None:
    """Central differences along random directions and along single numbers."""
    for number, (value, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        directions: list[Array] = [
            np.asarray(random.standard_normal(value.shape)) for _ in range(DIRECTIONS)
        ]
        for place in random.permutation(value.size)[:DIRECTIONS]:
            single = np.zeros(value.size)
            single[place] = 1.0
            directions.append(single.reshape(value.shape))
        worst = 0.0
        size = max(float(np.linalg.norm(gradient)), 1e-3)
        for direction in directions:
            ends = []
            for sign in (1.0, -1.0):
                moved = list(inputs)
                moved[number] = value + sign * STEP * direction
                ends.append(float((operator.forward(*moved) * slope).sum()))
            expected = (ends[0] - ends[1]) / (2 * STEP)
            got = float((gradient * direction).sum())
            reach = size * max(float(np.linalg.norm(direction)), 1.0)
            worst = max(worst, abs(got - expected) / reach)
        found.add(f"gradient of input {number}", worst, GRADIENT, "against finite differences")
