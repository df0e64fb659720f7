"""Which differences make a result not count."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from caldera.bench.comparison import Comparison
from caldera.bench.equality import (
    Equality,
    compare_training,
    curve_limit,
    largest_difference,
    relative,
)
from caldera.bench.formatting import equality_text
from caldera.bench.results import ResultEntry

LIMITS = {"first_loss": 1e-6, "gradients": 1e-4, "float64": 1e-9, "result": 1e-4}


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_is_a_limit(name: str) -> None:
    for factor, expected in ((0.9, True), (1.1, False)):
        found = Equality(**{name: factor * LIMITS[name]})
        found.judge()
        assert found.holds is expected
        assert bool(found.broken) is not expected


def test_what_is_not_a_number_is_not_equal() -> None:
    found = Equality(first_loss=relative(math.nan, 2.0))
    found.judge()
    assert found.holds is False
    assert largest_difference([np.ones(2)], [np.array([1.0, np.nan])]) == math.inf


def test_nothing_compared_is_not_an_agreement() -> None:
    found = Equality()
    found.judge()
    assert found.holds is None


def test_gradients_are_compared_by_the_size_of_their_own_array() -> None:
    large, small = np.full(3, 1000.0), np.full(3, 1.0)
    assert largest_difference([large, small], [large, small + 0.01]) == pytest.approx(0.01)


def test_gradients_that_should_be_zero_are_compared_by_the_size_of_the_largest() -> None:
    large, nothing = np.full(3, 1.0), np.zeros(3)
    assert largest_difference([large, nothing], [large, nothing + 1e-12]) < 1e-5


def test_arrays_of_another_shape_are_not_equal() -> None:
    assert largest_difference([np.ones((2, 3))], [np.ones((3, 2))]) == math.inf
    assert largest_difference([np.ones(2)], []) == math.inf


def test_training_is_compared_in_all_that_was_computed() -> None:
    reference = {"first loss": 2.0, "curve": [2.0, 1.0], "float64": [2.0, 1.0]}
    found = {"first loss": 2.0, "curve": [2.0, 1.5], "float64": [2.0, 1.0]}
    gradients = [np.ones(2)]
    equality = compare_training(reference, gradients, found, gradients)
    assert (equality.first_loss, equality.gradients, equality.float64) == (0.0, 0.0, 0.0)
    assert equality.curve == pytest.approx(0.5)
    del found["float64"]
    assert compare_training(reference, gradients, found, gradients).float64 is None


def test_a_curve_may_be_as_far_away_as_the_other_memory_format(tmp_path: Path) -> None:
    curves = {"torch eager": 1.0, "torch eager channels_last": 1.001, "caldera strict": 1.002}
    entries = [ResultEntry("w", "c", *label.split(" ", 1)) for label in curves]
    comparison = Comparison(tmp_path / "arrays", "torch eager")
    for entry in entries:
        folder = comparison.folder_of(entry)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "00000.npy", np.ones(3))
        comparison.add(entry, {"first loss": 1.0, "curve": [curves[entry.label]]})
    comparison.judge(entries)
    assert [entry.equality.holds for entry in entries] == [True, True, False]
    assert entries[2].equality.curve_allowed == pytest.approx(0.001)
    assert not (tmp_path / "arrays").exists()


def test_gradients_as_near_to_the_truth_as_those_of_the_reference_are_right(
    tmp_path: Path,
) -> None:
    values = {"torch eager": 1.01, "jax near": 0.999, "jax far": 0.98}
    entries = [ResultEntry("w", "c", *label.split(" ", 1)) for label in values]
    comparison = Comparison(tmp_path / "arrays", "torch eager")
    truth = comparison.folder_of(entries[0]) / "float64"
    truth.mkdir(parents=True)
    np.save(truth / "00000.npy", np.ones(3))
    for entry in entries:
        folder = comparison.folder_of(entry)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "00000.npy", np.full(3, values[entry.label]))
        comparison.add(entry, {"first loss": 1.0})
    comparison.judge(entries)
    assert [entry.equality.holds for entry in entries] == [True, True, False]
    assert "to float64 1e-03, torch eager 1e-02" in equality_text(entries[1].equality)


def test_rounding_alone_is_allowed_where_there_is_no_other_format() -> None:
    assert curve_limit(None) == curve_limit(0.0) == 1e-5
