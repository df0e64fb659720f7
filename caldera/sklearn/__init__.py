"""Estimators for scikit-learn: networks in pipelines, grid searches and cross-validation.

    from caldera.sklearn import CalderaClassifier
    search = GridSearchCV(CalderaClassifier(random_state=0), {"hidden": [(32,), (64, 64)]})

They pass every one of scikit-learn's own checks of an estimator.
"""

# ruff: noqa: E402 - what is imported needs what is looked for first

from __future__ import annotations

from caldera.base.registry import optional_import as _optional_import

# The error names the package to install.
_optional_import("sklearn", "'caldera[sklearn]'", "caldera.sklearn")

from caldera.sklearn.estimators import CalderaClassifier, CalderaRegressor
from caldera.sklearn.search import CalderaSearchCV

__all__ = ["CalderaClassifier", "CalderaRegressor", "CalderaSearchCV"]
