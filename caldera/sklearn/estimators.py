"""Estimators for scikit-learn: `CalderaClassifier` and `CalderaRegressor`.

They follow scikit-learn's rules: the constructor only stores parameters, `fit` starts from scratch,
learnt attributes end in an underscore, and equal data with an equal `random_state` lead to equal
results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from caldera.core.tensor.dtype import refuse_masked
from caldera.errors import ConfigError, DataError
from caldera.nn.layer import Layer
from caldera.nn.models import mlp
from caldera.optim import Optimizer, optimizers
from caldera.train.callbacks import EarlyStopping
from caldera.train.neural_network import NeuralNetwork

DTYPES = (np.float64, np.float32)
"""Supported dtypes, as in scikit-learn: float32 stays float32, all else becomes float64."""
ENOUGH_TO_HOLD_OUT = 1000
"""Samples from which on `early_stopping="auto"` sets some aside: of fewer, the part that is set
aside would be too small to tell anything."""


class NetworkEstimator(BaseEstimator, ABC):
    """A network that is trained by `fit`; what its outputs mean is up to the child."""

    _loss: ClassVar[str]

    def __init__(
        self,
        hidden: Sequence[int] = (100,),
        *,
        activation: str = "relu",
        dropout: float = 0.0,
        network: Callable[..., Sequence[Layer]] | None = None,
        input_shape: Sequence[int] | None = None,
        standardise: bool = True,
        optimizer: str | Optimizer = "adam",
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        batch_size: int = 64,
        epochs: int = 200,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        patience: int = 10,
        tol: float = 1e-4,
        random_state: Any = None,
        device: Any = None,
        verbose: int = 0,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.dropout = dropout
        self.network = network
        self.input_shape = input_shape
        self.standardise = standardise
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.tol = tol
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- what a child says

    @abstractmethod
    def _learn_targets(self, y: np.ndarray, weights: np.ndarray, known: Any) -> None:
        """Find out what targets mean: their classes (unless `known` has them), or their scale."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Return the targets in the form for training."""

    @abstractmethod
    def _outputs(self) -> int:
        """Return the number of outputs per sample."""

    @abstractmethod
    def _metrics(self) -> list[str]:
        """Return the metrics in the history, in addition to the loss."""

    def _strata(self, targets: np.ndarray) -> np.ndarray | None:
        """Return the labels for a stratified split of held-out samples, or None."""
        return None

    # --- training

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network on the rows of `X` and their labels or values `y`."""
        rows, y, weights = self._checked(X, y, sample_weight, first=True)
        self._learn_targets(y, weights, None)
        seed = self._begin(rows, weights)
        inputs, targets = self._inputs(rows), self._targets(y)
        train, validation = np.arange(len(inputs)), None
        if self._holds_out(len(inputs)):
            train, apart = train_test_split(
                train,
                test_size=self.validation_fraction,
                random_state=seed,
                stratify=self._strata(targets),
            )
            validation = (inputs[apart], targets[apart])
        stop = EarlyStopping(
            "loss" if validation is None else "val_loss",
            patience=self.patience,
            min_delta=self.tol,
            restore_best=validation is not None,
        )
        data = inputs[train], targets[train]
        self._train(data, weights[train], self.epochs, validation=validation, callbacks=[stop])
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, known: Any = None) -> Self:
        """Return one epoch more; the first makes the network, and decides how inputs are scaled."""
        first = not hasattr(self, "model_")
        rows, y, weights = self._checked(X, y, sample_weight, first=first)
        if first:
            self._learn_targets(y, weights, known)
            self._begin(rows, weights)
        self._train((self._inputs(rows), self._targets(y)), weights, 1)
        return self

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, *, first: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows, targets and weights; samples with weight 0 are removed."""
        where = f"{type(self).__name__}.fit"
        for name, each in (("X", X), ("y", y), ("sample_weight", sample_weight)):
            refuse_masked(each, f"{type(self).__name__} {name}")
        rows, y = validate_data(self, X, y, dtype=DTYPES, multi_output=True, reset=first)
        if sample_weight is None:
            return rows, y, np.ones(len(rows))
        weights = check_array(
            sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
        )
        if weights.shape != (len(rows),):
            raise DataError.build(
                where,
                expected=f"one weight for each of {len(rows)} samples",
                got=f"{weights.shape}",
            )
        if (weights < 0).any() or not weights.any():
            raise DataError.build(
                where,
                expected="weights of zero or more, and one above zero",
                got=f"weights from {weights.min():g} to {weights.max():g}",
            )
        counting = weights > 0
        return rows[counting], y[counting], weights[counting]

    def _begin(self, rows: np.ndarray, weights: np.ndarray) -> int:
        """Return a new network for rows like these; the seed of its random numbers."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        columns = rows.shape[1]
        shape = tuple(self.input_shape) if self.input_shape is not None else (columns,)
        if int(np.prod(shape)) != columns:
            raise ConfigError.build(
                f"{type(self).__name__}.input_shape",
                expected=f"a shape of {columns} numbers, the columns of X",
                got=f"{shape}",
            )
        self.scale_ = (
            StandardScale.of(rows, weights) if self.standardise else StandardScale.none(columns)
        )
        self.model_ = NeuralNetwork(
            self._layers(shape),
            loss=self._loss,
            optimizer=self._optimizer(),
            metrics=self._metrics(),
            batch_size=self.batch_size,
            epochs=self.epochs,
            dtype=rows.dtype.name,
            seed=seed,
            device=self.device,
        )
        self.n_iter_ = 0
        return seed

    def _layers(self, shape: tuple[int, ...]) -> list[Layer]:
        if self.network is not None:
            return list(self.network(input_shape=shape, classes=self._outputs()))
        return mlp(shape, self._outputs(), self.hidden, self.activation, self.dropout)

    def _optimizer(self) -> Optimizer:
        given = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        arguments = {name: value for name, value in given.items() if value is not None}
        if isinstance(self.optimizer, Optimizer) and not arguments:
            # A copy: the state of an earlier run must not affect this one.
            return optimizers.from_config(self.optimizer.config())
        return optimizers.make(self.optimizer, **arguments)

    def _holds_out(self, samples: int) -> bool:
        if self.early_stopping == "auto":
            return samples >= ENOUGH_TO_HOLD_OUT
        if not isinstance(self.early_stopping, bool):
            raise ConfigError.build(
                f"{type(self).__name__}.early_stopping",
                expected='True, False or "auto"',
                got=repr(self.early_stopping),
            )
        return self.early_stopping

    def _train(
        self, data: tuple[np.ndarray, np.ndarray], weights: np.ndarray, epochs: int, **more: Any
    ) -> None:
        alike = bool((weights == weights[0]).all())
        self.history_ = self.model_.fit(
            data,
            epochs=epochs,
            verbose=self.verbose,
            sample_weights=None if alike else weights,
            **more,
        )
        self.n_iter_ += len(self.history_.epochs)

    # --- using it

    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows as inputs of the network."""
        scaled = self.scale_.applied(rows)
        return scaled if self.input_shape is None else scaled.reshape(-1, *self.input_shape)

    def _network_outputs(self, X: Any) -> np.ndarray:
        """Return the network's outputs for each sample."""
        check_is_fitted(self, "model_")
        refuse_masked(X, type(self).__name__)
        rows = validate_data(self, X, dtype=DTYPES, reset=False)
        # Converted to the network's dtype, so that the result does not depend on the dtype of X.
        inputs = self._inputs(rows).astype(self.model_.dtype, copy=False)
        return self.model_.predict(inputs)


@dataclass(frozen=True)
class StandardScale:
    """Mean and deviation of each column.

    >>> import numpy as np
    >>> scale = StandardScale.of(np.array([[1.0, 5.0], [3.0, 5.0]]), None)
    >>> scale.applied(np.array([[3.0, 6.0]])).tolist()
    [[1.0, 1.0]]
    """

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None) -> Self:
        """Return the scale of these rows, with optional weights."""
        wide = values.astype(np.float64, copy=False)
        mean = np.average(wide, axis=0, weights=weights)
        deviation = np.sqrt(np.average((wide - mean) ** 2, axis=0, weights=weights))
        # A constant column carries no information; rounding errors must not be amplified.
        constant = deviation <= 10 * np.finfo(np.float64).eps * np.abs(mean)
        return cls(mean, np.where(constant, 1.0, deviation))

    @classmethod
    def none(cls, columns: int) -> Self:
        """Return the identity scale."""
        return cls(np.zeros(columns), np.ones(columns))

    def applied(self, values: np.ndarray) -> np.ndarray:
        """Return rows as the network sees them, in their own dtype."""
        return ((values - self.mean) / self.deviation).astype(values.dtype, copy=False)

    def undone(self, values: np.ndarray) -> np.ndarray:
        """Return rows in the original scale: the inverse of `applied`."""
        return (values * self.deviation + self.mean).astype(values.dtype, copy=False)


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
        """Return the likeliest class of each sample."""
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
