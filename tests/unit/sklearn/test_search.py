"""`CalderaSearchCV`: scikit-learn's own checks, and what it does beyond them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from caldera import search
from caldera.errors import ConfigError
from caldera.sklearn import CalderaClassifier, CalderaSearchCV

SMOOTHING = {"var_smoothing": search.choice([1e-9, 1e-8])}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalderaSearchCV(GaussianNB(), SMOOTHING, method="grid", cv=2)])
def test_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def line() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(60, 4))
    return X, X @ [1.0, 2.0, 3.0, 4.0]


def test_a_grid_finds_what_scikit_learns_grid_finds() -> None:
    alphas = [1e-2, 1.0, 100.0]
    ours = CalderaSearchCV(Ridge(), {"alpha": search.choice(alphas)}, method="grid", cv=3)
    theirs = GridSearchCV(Ridge(), {"alpha": alphas}, cv=3).fit(*line())
    ours.fit(*line())
    assert ours.best_params_ == theirs.best_params_
    assert ours.best_score_ == theirs.best_score_
    for name in ("mean_test_score", "rank_test_score"):
        np.testing.assert_array_equal(ours.cv_results_[name], theirs.cv_results_[name])
    np.testing.assert_array_equal(ours.predict(line()[0]), theirs.predict(line()[0]))
    assert ours.study_.best.parameters == ours.best_params_


def test_random_state_decides_the_trials() -> None:
    def tried(state: int) -> list[float]:
        space = {"ridge__alpha": search.log(1e-3, 1e3)}
        found = CalderaSearchCV(
            make_pipeline(StandardScaler(), Ridge()), space, method="random", trials=4, cv=2,
            random_state=state,
        )  # fmt: skip
        return list(found.fit(*line()).cv_results_["param_ridge__alpha"])

    assert tried(1) == tried(1) != tried(2)


def test_a_network_is_searched_and_pickled() -> None:
    X, y = load_iris(return_X_y=True)
    network = CalderaClassifier(epochs=15, random_state=0)
    space = {"hidden": search.choice([(8,)]), "learning_rate": search.choice([1e-5, 0.05])}
    found = CalderaSearchCV(network, space, method="grid", cv=2).fit(X, y)
    assert found.best_params_ == {"hidden": (8,), "learning_rate": 0.05}
    assert found.score(X, y) > 0.9
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    assert not hasattr(again, "study_")


def test_one_bad_candidate_is_a_failed_trial_and_only_bad_ones_an_error() -> None:
    def fitted(alphas: list[float], **settings: Any) -> CalderaSearchCV:
        space = {"alpha": search.choice(alphas)}
        return CalderaSearchCV(Ridge(), space, method="grid", cv=2, **settings).fit(*line())

    found = fitted([1.0, -1.0])
    assert [trial.state for trial in found.study_.trials] == ["done", "failed"]
    with pytest.raises(ValueError, match="fits failed"):
        fitted([-1.0, -2.0])
    with pytest.raises(ValueError, match="alpha"):
        fitted([1.0, -1.0], error_score="raise")
    with pytest.raises(ConfigError, match=r"space: expected parameters .* got 'beta'"):
        CalderaSearchCV(Ridge(), {"beta": search.choice([1])}, trials=1).fit(*line())
