"""Level 0: an operator against finite differences in float64, and inside each framework."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.bench.levels.difference import Difference
from caldera.bench.levels.learner import REFERENCE, framework_here
from caldera.bench.levels.validation import Validation
from caldera.bench.parts import Array, Operator

STEP = 1e-5
GRADIENT, FORWARD64, FORWARD32, FRAMEWORK = 1e-6, 1e-10, 1e-4, 1e-10
DIRECTIONS = 4
"""Random directions along which every input's gradient is checked, beside its largest entries."""


def validate_operator(
    operator: Operator,
    inputs: Sequence[Array],
    *,
    against: Operator | None = None,
    framework: str = REFERENCE,
    seed: int = 0,
) -> Validation:
    """Check an operator on inputs that it is smooth around.

    >>> from caldera.bench.levels.reference import Softmax
    >>> validate_operator(Softmax(), [np.array([[0.1, 0.5, -2.0]])]).passes
    True
    """
    found = Validation(type(operator).__name__, framework)
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
        found.add("inputs are left alone", untouched.count(False), 0)
        shapes = [each.shape for each in gradients]
        wrong = float(shapes != [each.shape for each in given])
        found.add("gradients have the shapes of inputs", wrong, 0, f"got {shapes}")
        if found.passes:
            _check_gradients(found, operator, kept, slope_kept, gradients, random)
        if against is not None:
            expected = [np.asarray(against.forward(*kept)), *against.backward(slope_kept, *kept)]
            apart = Difference.of([result, *gradients], expected)
            found.add_difference("distance to the reference", apart, FORWARD64)
        narrow = operator.forward(*(each.astype(np.float32) for each in kept))
        found.add(
            "float32 in, float32 out", float(narrow.dtype != np.float32), 0, str(narrow.dtype)
        )
        found.add("float32 beside float64", Difference.of([narrow], [result]).largest, FORWARD32)
        if framework != REFERENCE:
            with framework_here(framework) as here:
                computed = here.custom(operator, kept, slope_kept).results()
            apart = Difference.of(computed, [result, *gradients])
            found.add_difference(f"the same in {framework}", apart, FRAMEWORK)
    return found


def _check_gradients(
    found: Validation,
    operator: Operator,
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
