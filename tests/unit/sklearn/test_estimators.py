"""What the estimators do beyond the checks: searches, pipelines, weights, networks of one's own."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

import caldera as cd
from caldera import nn, optim
from caldera.errors import ConfigError, DataError
from caldera.sklearn import CalderaClassifier, CalderaRegressor


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


def quick(**settings: object) -> CalderaClassifier:
    return CalderaClassifier(**{"hidden": (16,), "epochs": 30, "learning_rate": 0.02} | settings)


def waves(count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).uniform(-2, 2, size=(count, 1))
    return X, 500 + 100 * np.sin(2 * X[:, 0])


# --- in the company of scikit-learn


def test_cross_validation_in_a_pipeline(iris: tuple[np.ndarray, np.ndarray]) -> None:
    model = make_pipeline(MinMaxScaler(), quick(random_state=0))
    assert cross_val_score(model, *iris, cv=3).mean() > 0.93


def test_grid_search(iris: tuple[np.ndarray, np.ndarray]) -> None:
    search = GridSearchCV(quick(random_state=0), {"hidden": [(), (16,)]}, cv=2)
    search.fit(*iris)
    assert search.best_score_ > 0.9
    assert search.predict(iris[0]).shape == (150,)


def test_a_clone_has_the_parameters_and_nothing_learned(
    iris: tuple[np.ndarray, np.ndarray],
) -> None:
    fitted = quick(optimizer=optim.SGD(0.1), learning_rate=None).fit(*iris)
    copy = clone(fitted)
    assert not hasattr(copy, "model_")
    assert copy.get_params()["hidden"] == (16,)
    # What the optimizer has learned in one fit is not known to the next.
    again = fitted.set_params(random_state=3).fit(*iris).predict_proba(iris[0])
    np.testing.assert_array_equal(fitted.fit(*iris).predict_proba(iris[0]), again)


def test_a_pickled_estimator_predicts_the_same(iris: tuple[np.ndarray, np.ndarray]) -> None:
    fitted = quick(random_state=1).fit(*iris)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(iris[0]), fitted.predict_proba(iris[0]))
    assert again.history_ == fitted.history_
    assert again.partial_fit(*iris).n_iter_ == fitted.n_iter_ + 1


# --- classifier


def test_texts_are_classes(iris: tuple[np.ndarray, np.ndarray]) -> None:
    fitted = quick(random_state=0).fit(*iris)
    assert fitted.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert fitted.score(*iris) > 0.95
    odds = fitted.predict_proba(iris[0])
    np.testing.assert_allclose(odds.sum(axis=1), 1)
    assert (fitted.classes_[odds.argmax(axis=1)] == fitted.predict(iris[0])).all()
    assert isinstance(fitted.model_, cd.NeuralNetwork)
    assert len(fitted.history_["accuracy"]) == fitted.n_iter_


def test_random_state_decides_everything(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, _ = iris
    one, two, other = (
        quick(random_state=s, dropout=0.2).fit(*iris).predict_proba(X) for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - other).max() > 1e-3


def test_weights_say_which_samples_count() -> None:
    # Two classes at the same place: the heavier one is the answer.
    X, y = np.zeros((40, 2)), np.arange(40) % 2
    for heavy in (0, 1):
        weights = np.where(y == heavy, 5.0, 1.0)
        fitted = quick(random_state=0, epochs=100).fit(X, y, sample_weight=weights)
        assert fitted.predict([[0.0, 0.0]]) == [heavy]
        assert fitted.predict_proba([[0.0, 0.0]])[0, heavy] == pytest.approx(5 / 6, abs=0.05)


def test_a_network_of_the_zoo_on_rows_of_pixels() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:400].astype("float32"), y[:400]

    def small(input_shape: tuple[int, ...], classes: int) -> list[nn.Layer]:
        return [
            nn.Input(input_shape),
            nn.Conv2D(8, 3, activation="relu"),
            nn.Flatten(),
            nn.Dense(classes),
        ]

    model = CalderaClassifier(network=small, input_shape=(1, 8, 8), epochs=30, random_state=0)
    model.fit(X[:300], y[:300])
    assert model.model_.signature.inputs == (((1, 8, 8), "float32"),)
    assert model.score(X[300:], y[300:]) > 0.85


def test_partial_fit_learns_batch_by_batch(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = iris
    order = np.random.default_rng(0).permutation(150)
    model = quick(random_state=0, learning_rate=0.1)
    for epoch in range(5):
        for part in np.split(order, 3):
            model.partial_fit(X[part], y[part], classes=np.unique(y) if epoch == 0 else None)
    assert model.n_iter_ == 15
    assert model.score(X, y) > 0.9


def test_a_class_that_was_not_announced_is_refused(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = iris
    model = quick().partial_fit(X[:100], y[:100])
    with pytest.raises(DataError, match=r"virginica.*classes= of the first call"):
        model.partial_fit(X, y)
    with pytest.raises(DataError, match="the classes of the first call"):
        model.partial_fit(X, y, classes=["rose"])


# --- stopping


def test_early_stopping_ends_a_run_and_keeps_the_best() -> None:
    X, y = load_digits(return_X_y=True)
    model = quick(early_stopping=True, epochs=200, patience=3, learning_rate=0.05, random_state=0)
    model.fit(X[:600], y[:600])
    assert model.n_iter_ < 200
    assert "has not improved for 3 epochs" in model.history_.stopped
    assert "val_loss" in model.history_


def test_few_samples_are_all_trained_on(iris: tuple[np.ndarray, np.ndarray]) -> None:
    assert "val_loss" not in quick(epochs=2).fit(*iris).history_
    X, y = np.random.default_rng(0).normal(size=(1200, 2)), np.arange(1200) % 2
    assert "val_loss" in quick(epochs=2).fit(X, y).history_
    assert "val_loss" not in quick(epochs=2, early_stopping=False).fit(X, y).history_


# --- regressor


def test_values_in_any_unit() -> None:
    X, y = waves()
    model = CalderaRegressor((32, 32), learning_rate=0.01, epochs=60, random_state=0)
    assert model.fit(X, y).score(X, y) > 0.95
    assert model.predict(X).shape == (300,)
    assert model.fit(X, y * 1e-6).score(X, y * 1e-6) > 0.95


def test_several_values_for_a_sample() -> None:
    X, y = waves()
    both = np.stack([y, -y], axis=1)
    model = CalderaRegressor((32, 32), learning_rate=0.01, epochs=60, random_state=0).fit(X, both)
    assert model.predict(X).shape == (300, 2)
    assert model.score(X, both) > 0.95


def test_partial_fit_of_values() -> None:
    X, y = waves()
    model = CalderaRegressor((32,), learning_rate=0.02, random_state=0)
    for _ in range(5):
        model.partial_fit(X, y)
    before = model.score(X, y)
    for _ in range(5):
        model.partial_fit(X, y)
    assert model.n_iter_ == 10
    assert model.score(X, y) > before


# --- mistakes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"early_stopping": "sometimes"}, "True, False or"),
        ({"input_shape": (3, 3)}, "a shape of 4 numbers"),
    ],
)
def test_wrong_parameters_are_refused_by_fit(
    iris: tuple[np.ndarray, np.ndarray], settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        quick(**settings).fit(*iris)


def test_negative_weights_are_refused(iris: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(DataError, match="zero or more"):
        quick().fit(*iris, sample_weight=np.linspace(-1, 1, 150))
