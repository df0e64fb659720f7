"""scikit-learn's own checks of an estimator, every one of them: none is expected to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from caldera.sklearn import CalderaClassifier, CalderaRegressor

# Small and quick: the checks train some two hundred networks.
QUICK: dict[str, Any] = {"hidden": (24,), "epochs": 20, "learning_rate": 0.05}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalderaClassifier(**QUICK), CalderaRegressor(**QUICK)])
def test_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
