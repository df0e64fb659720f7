"""`CalderaSearchCV`: scikit-learn's own checks, and what it does beyond them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
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
            make_pipeline(StandardScaler(), Ridge()),
            space,
            method="random",
            trials=4,
            cv=2,
            random_state=state,
        )
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


class Counting(BaseEstimator, RegressorMixin):
    """Scores as well as its shift allows, the better the more rounds it had."""

    fitted: ClassVar[list[tuple[float, int]]] = []

    def __init__(self, shift: float = 0.0, rounds: int = 8) -> None:
        self.shift, self.rounds = shift, rounds

    def fit(self, X: Any, y: Any) -> Counting:
        self.fitted.append((self.shift, self.rounds))
        return self

    def score(self, X: Any, y: Any) -> float:
        # The last rounds are no help to anybody: what had them is the best all the same.
        return 1.0 - self.shift - (0.1 if self.rounds == 8 else 0.0)


def test_bad_candidates_are_stopped_after_fits_with_less() -> None:
    Counting.fitted.clear()
    space = {"shift": search.choice([0.0, 0.1, 0.2, 0.3, 0.4])}
    found = CalderaSearchCV(
        Counting(), space, method="grid", stop=search.ASHA(least=1), resource="rounds", cv=2
    ).fit(*line())
    assert found.study_.counts() == {
        "done": 1,
        "stopped": 4,
        "failed": 0,
        "running": 0,
        "waiting": 0,
    }
    # The first went through all fits, on two folds each; then it is fitted to all samples.
    assert Counting.fitted[:6] == [(0.0, amount) for amount in (1, 1, 3, 3, 8, 8)]
    assert set(Counting.fitted[6:-1]) == {(shift, 1) for shift in (0.1, 0.2, 0.3, 0.4)}
    assert list(found.cv_results_["n_resources"]) == [1, 3, 8, 1, 1, 1, 1]
    assert found.best_params_ == {"shift": 0.0, "rounds": 8}
    assert found.best_score_ == pytest.approx(0.9)
    assert [len(trial.curve) for trial in found.study_.trials] == [8, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"resource": "epochs"}, "'epochs', which is None in Counting"),
        ({"resource": "shift"}, "'shift', which is 0.0"),
        ({"resource": "rounds", "space": {"rounds": search.choice([1])}}, "no 'rounds'"),
        ({"resource": "rounds", "stop": "assha"}, "asha"),
    ],
)
def test_what_candidates_cannot_be_stopped_by_says_so(settings: dict[str, Any], said: str) -> None:
    given = {"space": {"shift": search.choice([0.0, 0.1])}, "stop": "asha", **settings}
    with pytest.raises(ConfigError, match=said):
        CalderaSearchCV(Counting(), **given, trials=1).fit(*line())
