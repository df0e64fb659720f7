"""`CalderaRegressor`: a network that predicts values, for scikit-learn."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin

from caldera.sklearn._base import NetworkEstimator, Scale


class CalderaRegressor(RegressorMixin, NetworkEstimator):
    """A network that predicts a value for each sample, or several.

    The parameters are those of `CalderaClassifier`. Targets are brought to mean 0 and deviation 1
    while training, and predictions back, so that neither the learning rate nor `tol` depends on
    their unit.

    >>> import numpy as np
    >>> from caldera.sklearn import CalderaRegressor
    >>> X = np.linspace(-1, 1, 100)[:, None]
    >>> y = 1000 * X[:, 0] ** 2
    >>> model = CalderaRegressor(hidden=(32,), learning_rate=0.01, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    """

    _loss: ClassVar[str] = "mean_squared"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network on the rows of `X` and their values `y`, of one column or more."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one more epoch, on these samples.

        The first call makes the network; columns and targets are scaled as they are there.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """The value of each sample, or a row of them if there were several in `fit`."""
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
        self.target_scale_ = Scale.of(_columns(y), weights)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return self.target_scale_.applied(_columns(y))

    def _outputs(self) -> int:
        return len(self.target_scale_.mean)

    def _metrics(self) -> list[str]:
        return ["mae"]


def _columns(y: np.ndarray) -> np.ndarray:
    return np.asarray(y, dtype=np.float64).reshape(len(y), -1)
