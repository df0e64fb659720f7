"""`CalderaSearchCV`: a search with cross-validation that looks like scikit-learn's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils import check_random_state, get_tags

from caldera import search
from caldera.errors import ConfigError


class CalderaSearchCV(BaseSearchCV):
    """Searches the parameters of any estimator of scikit-learn, with cross-validation.

    - `estimator`: what is searched: a `CalderaClassifier`, a pipeline, or any other estimator.
    - `space`: its parameters by name, as in `search.run`:
      `{"hidden": search.choice([(32,), (64,)]), "learning_rate": search.log(1e-3, 1e-1)}`; those of
      a step in a pipeline as `step__name`.
    - `method`, `trials`: what proposes parameters, and how many. A grid ends by itself.
    - `scoring`, `n_jobs`, `refit`, `cv`, `verbose`, `pre_dispatch`, `error_score`,
      `return_train_score`: as in `GridSearchCV`. Of several scorings `refit` names the one that
      counts.
    - `random_state`: a number for the same trials each time.

    After `fit`: all that `GridSearchCV` has (`best_estimator_`, `best_params_`, `best_score_`,
    `cv_results_`, ...), and `study_`, with its table, pictures and page, which also has candidates
    none of whose fits succeeded; it is not pickled. For searches that stop bad trials early, keep a
    folder or use many processes there is `search.run`.

    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from caldera import search
    >>> from caldera.sklearn import CalderaSearchCV
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> found = CalderaSearchCV(Ridge(), {"alpha": search.choice([1e-3, 1e3])}, method="grid", cv=3)
    >>> found.fit(X, X @ [1.0, 2.0, 3.0]).best_params_, len(found.study_.trials)
    ({'alpha': 0.001}, 2)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **BaseSearchCV._parameter_constraints,
        "space": "no_validation",
        "method": "no_validation",
        "trials": "no_validation",
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Any] | search.Space,
        *,
        method: str | search.Method = "tpe",
        trials: int | None = 20,
        scoring: Any = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., int] = True,
        cv: Any = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        random_state: Any = None,
        error_score: Any = np.nan,
        return_train_score: bool = False,
    ) -> None:
        super().__init__(
            estimator=estimator, scoring=scoring, n_jobs=n_jobs, refit=refit, cv=cv,
            verbose=verbose, pre_dispatch=pre_dispatch, error_score=error_score,
            return_train_score=return_train_score,
        )  # fmt: skip
        self.space = space
        self.method = method
        self.trials = trials
        self.random_state = random_state

    def _run_search(self, evaluate_candidates: Callable[..., Mapping[str, Any]]) -> None:
        """Let the search propose, and scikit-learn evaluate; called by `fit`."""
        self._check_names()
        name = f"mean_test_{self.refit}" if isinstance(self.refit, str) else "mean_test_score"

        errors: list[Exception] = []

        def score(**parameters: Any) -> float:
            try:
                results = evaluate_candidates([parameters])
            except Exception as error:
                errors.append(error)
                raise
            if name not in results:
                errors.append(ConfigError.build(
                    "CalderaSearchCV.refit", expected="the name of the scoring that counts",
                    got=repr(self.refit), hint="give refit= one of the names in scoring",
                ))  # fmt: skip
                raise errors[-1]
            return float(results[name][-1])

        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            self.study_ = search.run(
                score, self.space, method=self.method, trials=self.trials, seed=seed,
                objective=search.metric("value", "max"), verbose=0,
            )  # fmt: skip
        except ConfigError:
            if errors:
                raise errors[0] from None
            raise
        # One candidate may fail; where all do, the data or the estimator are wrong.
        strict = isinstance(self.error_score, str)
        if errors and (strict or len(errors) == len(self.study_.trials)):
            raise errors[0]

    def _check_names(self) -> None:
        known = self.estimator.get_params()
        for name in search.Space(self.space).names()[1]:
            if name not in known:
                raise ConfigError.build(
                    "CalderaSearchCV.space", expected="parameters of the estimator",
                    got=repr(name), hint=f"known: {', '.join(sorted(known))}",
                )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = get_tags(self.estimator).target_tags.multi_output
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # A study holds a storage and functions, which no file can hold.
        return {name: v for name, v in super().__getstate__().items() if name != "study_"}
