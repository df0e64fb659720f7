"""Estimators for scikit-learn: `CalderaClassifier` and `CalderaRegressor`."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import column_or_1d

from caldera.errors import DataError
from caldera.sklearn._base import NetworkEstimator, StandardScale


class CalderaClassifier(ClassifierMixin, NetworkEstimator):
    """Neural-network classifier. Labels may be numbers or texts.

    - `hidden`: units of the hidden layers; `activation` and `dropout` apply to them.
    - `network`: a function of `input_shape` and `classes` that returns a list of layers, such as
      `nn.models.lenet5`, in place of hidden layers.
    - `input_shape`: the shape to which each row of `X` is reshaped, such as (1, 8, 8).
    - `standardise`: scale each column of `X` to mean 0 and deviation 1 first.
    - `optimizer`: a name or an object; `learning_rate` and `weight_decay` apply to a name.
    - `batch_size`, `epochs`: samples per step; maximum number of passes over the data.
    - `early_stopping`: True to hold out `validation_fraction` of the samples, stop once the loss on
      them has not decreased by `tol` for `patience` epochs, and keep the best weights. "auto" does
      so from 1000 samples on. Otherwise, the loss on the training data decides.
    - `random_state`: a number for the same result each time.
    - `device`, `verbose`: as in `Model`: the device for computing; the amount of printed output.

    After `fit`: `classes_`, `model_` (the `NeuralNetwork`), `history_`, `n_iter_` (epochs). A
    fitted estimator is pickled with its network as a model file. The state of the optimizer is not
    saved, so `partial_fit` starts with a new optimizer.

    >>> import numpy as np
    >>> from caldera.sklearn import CalderaClassifier
    >>> X = np.random.default_rng(0).normal(size=(80, 2))
    >>> y = np.where(X[:, 0] > X[:, 1], "above", "below")
    >>> model = CalderaClassifier(hidden=(8,), learning_rate=0.05, random_state=0).fit(X, y)
    >>> model.predict([[2.0, 0.0]]).tolist(), model.score(X, y) > 0.9
    (['above'], True)
    """

    _loss: ClassVar[str] = "cross_entropy"

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch, on these samples.

        The first call makes the network: `classes` names all classes there will ever be, unless
        `y` has them all, and columns are scaled as this first part of the data is.
        """
        known: Any = None if classes is None else unique_labels(classes)
        later = known is not None and hasattr(self, "model_")
        if later and not np.array_equal(known, self.classes_):
            raise DataError.build(
                "CalderaClassifier.partial_fit",
                expected=f"the classes of the first call, {self.classes_.tolist()}",
                got=f"{known.tolist()}",
            )
        return self._partial_fit(X, y, sample_weight, known)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each sample."""
        outputs = self._network_outputs(X)
        return self.classes_[outputs.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the class probabilities of each sample, in the order of `classes_`."""
        outputs = self._network_outputs(X).astype(np.float64)
        odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    # --- what its outputs mean

    def _learn_targets(self, y: np.ndarray, weights: np.ndarray, known: Any) -> None:
        check_classification_targets(y)
        self.classes_ = np.unique(_labels(y)) if known is None else known

    def _targets(self, y: np.ndarray) -> np.ndarray:
        labels = _labels(y)
        numbers = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = labels[self.classes_[numbers] != labels]
        if len(unknown):
            raise DataError.build(
                "CalderaClassifier.partial_fit",
                expected=f"labels among the classes {self.classes_.tolist()}",
                got=repr(unknown[0]),
                hint="name them all in classes= of the first call",
            )
        return numbers.astype(np.int64)

    def _strata(self, targets: np.ndarray) -> np.ndarray | None:
        # A class of a single sample cannot be in both parts.
        return targets if np.bincount(targets).min(initial=2) > 1 else None

    def _outputs(self) -> int:
        return len(self.classes_)

    def _metrics(self) -> list[str]:
        return ["accuracy"] if self._outputs() > 1 else []


def _labels(y: np.ndarray) -> np.ndarray:
    return column_or_1d(y, warn=True)


class CalderaRegressor(RegressorMixin, NetworkEstimator):
    """Neural-network regressor for one or several targets per sample.

    The parameters are the same as for `CalderaClassifier`. Targets are scaled to mean 0 and
    deviation 1 for training, and predictions are scaled back, so that neither the learning rate nor
    `tol` depends on their unit.

    >>> import numpy as np
    >>> from caldera.sklearn import CalderaRegressor
    >>> X = np.linspace(-1, 1, 100)[:, None]
    >>> y = 1000 * X[:, 0] ** 2
    >>> model = CalderaRegressor(hidden=(32,), learning_rate=0.01, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    _loss: ClassVar[str] = "mean_squared"

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one more epoch, on these samples.

        The first call makes the network; columns and targets are scaled as they are there.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Return the prediction of each sample: a value, or a row for several targets."""
        outputs = self._network_outputs(X)
        values = self.target_scale_.undone(outputs)
        return values[:, 0] if self._flat else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    # --- what its outputs mean

    def _learn_targets(self, y: np.ndarray, weights: np.ndarray, known: Any) -> None:
        self._flat = y.ndim == 1
        self.target_scale_ = StandardScale.of(_columns(y), weights)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return self.target_scale_.applied(_columns(y))

    def _outputs(self) -> int:
        return len(self.target_scale_.mean)

    def _metrics(self) -> list[str]:
        return ["mae"]


def _columns(y: np.ndarray) -> np.ndarray:
    return np.asarray(y, dtype=np.float64).reshape(len(y), -1)
