"""`CalderaSearchCV`: a search with cross-validation that looks like scikit-learn's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils import check_random_state, get_tags

from caldera import search
from caldera.errors import ConfigError


class CalderaSearchCV(BaseSearchCV):
    """Hyper-parameter search for any estimator of scikit-learn, with cross-validation.

    - `estimator`: the estimator to tune: a `CalderaClassifier`, a pipeline, or any other estimator.
    - `space`: its parameters by name, as in `search.run`: `{"hidden": search.choice([(32,),
      (64,)]), "learning_rate": search.log(1e-3, 1e-1)}`; parameters of a step in a pipeline as
      `step__name`.
    - `method`, `trials`: the search method, and the number of trials. A grid ends when it is
      complete.
    - `stop`: the method that stops candidates early, such as "asha", after fits with less of
      `resource`. This is a numeric parameter of the estimator, "epochs" by default; its value in
      the estimator is used for a complete fit. Each fit starts from scratch, as in scikit-learn's
      `HalvingRandomSearchCV`. `cv_results_["n_resources"]` contains the resource of each fit, and
      the best candidate is chosen among complete fits.
    - `scoring`, `n_jobs`, `refit`, `cv`, `verbose`, `pre_dispatch`, `error_score`,
      `return_train_score`: as in `GridSearchCV`. For several scorings, `refit` names the decisive
      one.
    - `random_state`: a number for the same trials each time.

    After `fit`: all attributes of `GridSearchCV` (`best_estimator_`, `best_params_`, `best_score_`,
    `cv_results_`, ...), and `study_`, with its table, pictures and page. `study_` also contains
    candidates whose fits all failed; it is not pickled. Use `search.run` for searches that keep a
    folder, use many processes, or stop trials without restarting them.

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
        "stop": "no_validation",
        "resource": [str],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Any] | search.Space,
        *,
        method: str | search.Method = "tpe",
        trials: int | None = 20,
        stop: str | search.Method | None = None,
        resource: str = "epochs",
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
            estimator=estimator,
            scoring=scoring,
            n_jobs=n_jobs,
            refit=refit,
            cv=cv,
            verbose=verbose,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            return_train_score=return_train_score,
        )
        self.space = space
        self.method = method
        self.trials = trials
        self.stop = stop
        self.resource = resource
        self.random_state = random_state

    def _run_search(self, evaluate_candidates: Callable[..., Mapping[str, Any]]) -> None:
        """Let the search propose, and scikit-learn evaluate; called by `fit`."""
        self._check_names()
        name = f"mean_test_{self.refit}" if isinstance(self.refit, str) else "mean_test_score"
        stopper, amounts = self._amounts()
        errors: list[Exception] = []

        def score(parameters: dict[str, Any], amount: int | None = None) -> float:
            more = None
            if amount is not None:
                parameters, more = {**parameters, self.resource: amount}, {"n_resources": [amount]}
            try:
                results = evaluate_candidates([parameters], more_results=more)
            except Exception as error:
                errors.append(error)
                raise
            if name not in results:
                errors.append(
                    ConfigError.build(
                        "CalderaSearchCV.refit",
                        expected="the name of the scoring that counts",
                        got=repr(self.refit),
                        hint="give refit= one of the names in scoring",
                    )
                )
                raise errors[-1]
            return float(results[name][-1])

        def scores(**parameters: Any) -> Iterator[float]:
            """Yield a score for each unit of the resource, from the next fit that reaches it."""
            before = 0
            for amount in amounts:
                found = score(parameters, amount)
                yield from [found] * (amount - before)
                before = amount

        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            self.study_ = search.run(
                scores if amounts else lambda **parameters: score(parameters),
                self.space,
                method=self.method,
                stop=stopper,
                trials=self.trials,
                seed=seed,
                verbose=0,
                epochs=amounts[-1] if amounts else None,
                objective=search.metric("value", "max"),
            )
        except ConfigError:
            if errors:
                raise errors[0] from None
            raise
        # One candidate may fail; where all do, the data or the estimator are wrong.
        strict = isinstance(self.error_score, str)
        if errors and (strict or len(errors) == len(self.study_.trials)):
            raise errors[0]

    def _amounts(self) -> tuple[search.Method | None, list[int]]:
        """Return the stopping method, and the increasing amounts of the resource per candidate."""
        if self.stop is None:
            return None, []
        stopper: search.Method = search.methods.make(self.stop)
        whole = self.estimator.get_params().get(self.resource)
        if not isinstance(whole, int | np.integer) or whole < 1:
            raise ConfigError.build(
                "CalderaSearchCV.resource",
                expected="a parameter of the estimator that counts, with its value for a whole fit",
                got=f"{self.resource!r}, which is {whole!r} in {type(self.estimator).__name__}",
                hint="for example resource='n_estimators' or, in a pipeline, 'step__epochs'",
            )
        if self.resource in search.Space(self.space).names()[1]:
            raise ConfigError.build(
                "CalderaSearchCV.space",
                expected=f"no {self.resource!r}, since stop= goes by it",
                got="one",
                hint="leave it out, or name another resource=",
            )
        # Where halving decides; the median rule would decide after every epoch.
        factor, amounts = getattr(stopper, "factor", 3), [getattr(stopper, "least", 1)]
        while amounts[-1] * factor < whole:
            amounts.append(amounts[-1] * factor)
        return stopper, [*(each for each in amounts if each < whole), int(whole)]

    @staticmethod
    def _select_best_index(refit: Any, refit_metric: str, results: Mapping[str, Any]) -> int:
        if callable(refit) or "n_resources" not in results:
            return BaseSearchCV._select_best_index(refit, refit_metric, results)
        # Candidates that were stopped early are excluded from the comparison.
        amounts = np.asarray(results["n_resources"])
        ranks = np.asarray(results[f"rank_test_{refit_metric}"], dtype=float)
        return int(np.where(amounts == amounts.max(), ranks, np.inf).argmin())

    def _check_names(self) -> None:
        known = self.estimator.get_params()
        for name in search.Space(self.space).names()[1]:
            if name not in known:
                raise ConfigError.build(
                    "CalderaSearchCV.space",
                    expected="parameters of the estimator",
                    got=repr(name),
                    hint=f"known: {', '.join(sorted(known))}",
                )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = get_tags(self.estimator).target_tags.multi_output
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # A study holds a storage and functions, which no file can hold.
        return {name: v for name, v in super().__getstate__().items() if name != "study_"}
