"""Which differences are allowed on a card, in each precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera.bench.comparison import Comparison
from caldera.bench.equality import SLACK, TOLERANCES, Equality, compare_in_precision, distance
from caldera.bench.formatting import equality_text
from caldera.bench.results import ResultEntry

REFERENCE = {"first loss": 2.0, "curve": [2.0, 1.5, 1.0, 0.5], "float64": [2.0]}
TRUTH = [np.ones(4)]


@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_first_loss_has_a_limit_in_each_precision(precision: str) -> None:
    limit = TOLERANCES[precision].first_loss
    for factor, expected in ((0.9, True), (1.1, False)):
        found = {**REFERENCE, "first loss": 2.0 * (1 + factor * limit)}
        equality = compare_in_precision(REFERENCE, TRUTH, found, TRUTH, precision)
        equality.allow(None, None)
        equality.judge()
        assert equality.holds is expected


def test_gradients_and_losses_may_be_as_far_as_those_of_the_reference_in_that_precision() -> None:
    equality = Equality(precision="tf32", distance=0.02, curve=0.05)
    equality.allow(gradients=0.01, curve=0.02)
    equality.judge()
    assert equality.holds
    assert equality.distance_allowed == pytest.approx(SLACK * 0.01)
    equality.allow(gradients=0.005, curve=0.001)
    equality.judge()
    assert len(equality.broken) == 2
    equality.allow(gradients=None, curve=None)
    assert equality.distance_allowed == TOLERANCES["tf32"].gradients


def test_the_distance_is_that_of_all_gradients_together() -> None:
    truth = [np.array([3.0]), np.array([[4.0]])]
    assert distance(truth, [np.array([3.0]), np.array([[4.5]])]) == pytest.approx(0.1)
    assert distance(truth, [np.array([3.0]), np.array([4.0])]) == math.inf
    assert distance(truth, [np.array([math.nan]), np.array([[4.0]])]) == math.inf
    assert distance([np.zeros(2)], [np.zeros(2)]) == 0.0


def test_means_of_epochs_are_compared_with_those_of_the_reference() -> None:
    found: dict[str, Any] = {"epochs": [1.75, 0.75], "mean of": 2}
    equality = compare_in_precision(REFERENCE, TRUTH, found, [], "float32")
    assert equality.curve == 0.0
    assert equality.first_loss is equality.distance is None
    found["epochs"] = [1.75, 0.9]
    equality = compare_in_precision(REFERENCE, TRUTH, found, [], "float32")
    assert equality.curve == pytest.approx(0.15)


def _compared(tmp_path: Path, entries: dict[ResultEntry, tuple[float, float]]) -> None:
    """Compare entries by a gradient and a loss each; the first is the reference."""
    comparison = Comparison(tmp_path / "arrays", next(iter(entries)).label)
    for entry, (gradient, loss) in entries.items():
        folder = comparison.folder_of(entry)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "00000.npy", np.full(3, gradient))
        if comparison.is_reference(entry):
            (folder / "float64").mkdir()
            np.save(folder / "float64" / "00000.npy", np.ones(3))
        comparison.add(entry, {"first loss": 1.0, "curve": [1.0, loss]})
    comparison.judge(list(entries))
    assert not (tmp_path / "arrays").exists()


class _Entry(ResultEntry):
    """An entry that can be a key."""

    __hash__ = object.__hash__


def _entry(framework: str, setting: str, precision: str) -> _Entry:
    return _Entry("w", "c", framework, setting, precision=precision)


def test_the_yardstick_is_the_eager_reference_of_the_same_precision(tmp_path: Path) -> None:
    near, far = _entry("caldera", "step", "tf32"), _entry("jax", "jit", "tf32")
    _compared(
        tmp_path,
        {
            _entry("torch", "eager", "float32"): (1.0, 1.0),
            near: (1.02, 1.02),
            far: (1.2, 1.0),
            _entry("torch", "eager", "tf32"): (1.01, 1.01),
        },
    )
    assert near.equality.holds
    assert far.equality.broken == ["gradients' distance to float64 2e-01 > 3e-02"]


def test_texts_say_what_was_allowed() -> None:
    equality = Equality(precision="bfloat16", first_loss=1e-3, distance=1e-3, curve=1e-3)
    equality.allow(None, 0.1)
    equality.judge()
    assert equality_text(equality) == (
        "yes: loss 1e-03 of 2e-02, gradients to float64 1e-03 of 2e-02, losses 1e-03 of 3e-01"
    )
