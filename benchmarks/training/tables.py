"""Compare `caldera train` with boosting, linear models and scikit-learn's MLP on eight tables.

    python -m venv peers && peers/bin/pip install scikit-learn lightgbm xgboost pandas
    python benchmarks/training/tables.py --peers peers/bin/python --out tables [--tables iris,wine]

Five tables are from scikit-learn and three are synthetic: friedman (values with interactions),
imbalanced (5% positives, missing values, informative and random categories) and large (50,000 rows,
two columns of hundreds of categories). Each is split three times into 75% and 25%, stratified by
class. All contestants have the same rows and their default settings; with early stopping they hold
out a fifth of the training rows. Each contestant runs in its own process. `--out NAME` writes
NAME.json, which a later run completes, and NAME.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VALUES = ("diabetes", "friedman", "large")
TABLES = ("diabetes", "breast", "wine", "digits", "iris", "friedman", "imbalanced", "large")
SEEDS = (0, 1, 2)
OURS = ("Caldera", "Caldera --fast")
PEERS = (
    "constant",
    "linear",
    "HistGradientBoosting",
    "LightGBM",
    "LightGBM, early stopping",
    "XGBoost",
    "XGBoost, early stopping",
    "MLP",
    "MLP, early stopping",
)
TARGET = "target"
BINS = 10


# --- the tables


def make_tables(folder: Path) -> None:
    """Write the training and test rows of each table and seed."""
    from sklearn.model_selection import train_test_split

    for name in TABLES:
        frame = _MAKERS[name]() if name in _MAKERS else _of_sklearn(name)
        by = None if name in VALUES else frame[TARGET]
        for seed in SEEDS:
            parts = train_test_split(frame, test_size=0.25, random_state=seed, stratify=by)
            for part, rows in zip(("train", "test"), parts, strict=True):
                rows.to_csv(folder / f"{name}-{seed}-{part}.csv", index=False)


def _of_sklearn(name: str) -> Any:
    from sklearn import datasets

    loaders = {"breast": "load_breast_cancer"}
    frame = getattr(datasets, loaders.get(name, f"load_{name}"))(as_frame=True).frame.copy()
    if name not in VALUES:
        frame[TARGET] = [f"c{each}" for each in frame[TARGET]]
    return frame


def _friedman() -> Any:
    import pandas as pd
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(5000, n_features=10, noise=1.0, random_state=0)
    return pd.DataFrame(x, columns=[f"x{place}" for place in range(10)]).assign(target=y)


def _imbalanced() -> Any:
    import pandas as pd
    from sklearn.datasets import make_classification

    x, y = make_classification(
        20_000,
        14,
        n_informative=8,
        n_redundant=2,
        n_clusters_per_class=4,
        weights=[0.95],
        class_sep=0.9,
        flip_y=0.01,
        random_state=1,
    )
    random = np.random.default_rng(1)
    frame = pd.DataFrame(x, columns=[f"n{place}" for place in range(14)])
    binned = (("n0", 12), ("n3", 25), ("n5", 6))
    for place, (column, count) in enumerate(binned):
        parts = pd.qcut(frame[column], count, labels=False).to_numpy()
        names = random.permutation(count)
        frame[f"c{place}"] = [f"k{names[each]}" for each in parts]
    frame = frame.drop(columns=[column for column, _ in binned])
    for place in range(3, 6):
        frame[f"c{place}"] = [f"z{each}" for each in random.integers(0, 15, len(frame))]
    frame["n14"] = random.lognormal(0, 2, len(frame))
    frame["n15"] = random.integers(0, 5, len(frame))
    frame["n16"] = random.normal(size=len(frame))
    for column in frame.columns:
        frame.loc[random.random(len(frame)) < 0.06, column] = np.nan
    return frame.assign(target=np.where(y == 1, "yes", "no"))


def _large() -> Any:
    import pandas as pd

    random, count = np.random.default_rng(2), 50_000
    shop, item = random.zipf(1.3, count) % 300, random.integers(0, 800, count)
    by_shop, by_item = random.normal(0, 2, 300), random.normal(0, 1.5, 800)
    x, skew = random.normal(size=(count, 8)), random.lognormal(1, 1, count)
    sign = random.choice(["p", "q", "r", "s"], count)
    y = (
        by_shop[shop]
        + by_item[item]
        + 2 * np.sin(2 * x[:, 0])
        + x[:, 1] * x[:, 2]
        + np.where(sign == "p", x[:, 3], -x[:, 3])
        + 1.5 * np.log(skew)
        + 2 * (x[:, 4] > 0.5)
        + random.normal(0, 1, count)
    )
    frame = pd.DataFrame(x, columns=[f"x{place}" for place in range(8)])
    return frame.assign(
        skew=skew,
        shop=[f"a{each:03d}" for each in shop],
        item=[f"b{each:03d}" for each in item],
        s=sign,
        target=np.exp(y / 6) * 100,
    )


_MAKERS: dict[str, Callable[[], Any]] = {
    "friedman": _friedman,
    "imbalanced": _imbalanced,
    "large": _large,
}


# --- contestants: predictions for the test rows, as probabilities by sorted class or as values


def _caldera(train: Path, test: Path, *, fast: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return Caldera's predictions and targets, from the unchanged files."""
    import caldera as cd
    from caldera.cli.build import make_model, resolved
    from caldera.cli.recipe import complete

    found = cd.data.table(train, TARGET, test=0)
    if fast:
        options = resolved(complete({}), found)
        model = make_model(options, found)
        model.fit(found.train, verbose=0)
    else:
        model = cd.train_table(found).model
    held = cd.data.table(test, schema=found.schema, test=0).train
    outputs = model.predict(held.x).astype(np.float64)
    if not found.classes:
        return outputs[:, 0], held.y[:, 0]
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), held.y


def _peer(name: str, train: Path, test: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions and targets of another library."""
    import pandas as pd

    rows, held = pd.read_csv(train), pd.read_csv(test)
    x, y = rows.drop(columns=TARGET), rows[TARGET]
    unseen, target = held.drop(columns=TARGET), held[TARGET]
    is_class = y.dtype.kind not in "fi"
    classes = np.array(sorted(y.unique())) if is_class else None
    if classes is not None:
        y, target = np.searchsorted(classes, y), np.searchsorted(classes, target)
    model, unseen = _fitted_peer(name, x, np.asarray(y), unseen, is_class)
    found = model.predict_proba(unseen) if is_class else model.predict(unseen)
    return np.asarray(found, float), np.asarray(target)


def _fitted_peer(name: str, x: Any, y: np.ndarray, unseen: Any, is_class: bool) -> Any:
    """Return the trained model of a contestant, and the test rows in its form."""
    from sklearn.dummy import DummyClassifier, DummyRegressor

    kind, _, early = name.partition(", ")
    if kind == "constant":
        made = DummyClassifier(strategy="prior") if is_class else DummyRegressor()
        return made.fit(np.zeros((len(x), 1)), y), np.zeros((len(unseen), 1))
    if kind in ("linear", "MLP"):
        return _prepared(x, kind, is_class, early=bool(early)).fit(x, y), unseen
    return _boosted(kind, x, y, unseen, is_class, early=bool(early))


def _prepared(x: Any, kind: str, is_class: bool, *, early: bool) -> Any:
    """Return a linear model or a network after imputation, scaling and one-hot encoding."""
    from sklearn.compose import TransformedTargetRegressor, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [name for name in x if x[name].dtype.kind in "fiub"]
    prepare = make_column_transformer(
        (
            make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()),
            numbers,
        ),
        (OneHotEncoder(handle_unknown="ignore"), [name for name in x if name not in numbers]),
    )
    if kind == "linear":
        return make_pipeline(prepare, LogisticRegression(max_iter=2000) if is_class else Ridge())
    how: dict[str, Any] = {"random_state": 0} | ({"early_stopping": True} if early else {})
    if is_class:
        return make_pipeline(prepare, MLPClassifier(**how))
    scaled = TransformedTargetRegressor(MLPRegressor(**how), transformer=StandardScaler())
    return make_pipeline(prepare, scaled)


def _boosted(
    kind: str, x: Any, y: np.ndarray, unseen: Any, is_class: bool, *, early: bool
) -> tuple[Any, Any]:
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.model_selection import train_test_split

    x, unseen = x.copy(), unseen.copy()
    for name in [name for name in x if x[name].dtype.kind not in "fiub"]:
        known = pd.CategoricalDtype(sorted(x[name].dropna().unique()))
        x[name], unseen[name] = x[name].astype(known), unseen[name].astype(known)
        if kind == "HistGradientBoosting" and len(known.categories) > 250:
            # It takes up to 255 categories.
            x[name], unseen[name] = x[name].cat.codes, unseen[name].cat.codes
    if kind == "HistGradientBoosting":
        made = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
        return made(categorical_features="from_dtype", random_state=0).fit(x, y), unseen
    # LightGBM would start a thread for each core, whatever OMP_NUM_THREADS is.
    how: dict[str, Any] = {"random_state": 0, "n_jobs": 1}
    if early:
        how |= {"n_estimators": 2000, "learning_rate": 0.05}
    by = y if is_class else None
    fit, held = train_test_split(np.arange(len(x)), test_size=0.2, random_state=0, stratify=by)
    if kind == "LightGBM":
        import lightgbm

        made = lightgbm.LGBMClassifier if is_class else lightgbm.LGBMRegressor
        model = made(verbose=-1, **how)
        if not early:
            return model.fit(x, y), unseen
        stop = lightgbm.early_stopping(50, verbose=False)
        pair = [(x.iloc[held], y[held])]
        return model.fit(x.iloc[fit], y[fit], eval_set=pair, callbacks=[stop]), unseen
    import xgboost

    made = xgboost.XGBClassifier if is_class else xgboost.XGBRegressor
    how |= {"enable_categorical": True, "tree_method": "hist"}
    if not early:
        return made(**how).fit(x, y), unseen
    model = made(early_stopping_rounds=50, **how)
    pair = [(x.iloc[held], y[held])]
    return model.fit(x.iloc[fit], y[fit], eval_set=pair, verbose=False), unseen


# --- one contestant in a process of its own


def contest(name: str, table: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train and test one contestant."""
    paths = [folder / f"{table}-{seed}-{part}.csv" for part in ("train", "test")]
    wall, cpu = time.perf_counter(), time.process_time()
    if name in OURS:
        predictions, targets = _caldera(*paths, fast=name != "Caldera")
    else:
        predictions, targets = _peer(name, *paths)
    return {
        "table": table,
        "seed": seed,
        "contestant": name,
        **scores(predictions, targets),
        "seconds": round(time.perf_counter() - wall, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
    }


def scores(predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return the error (RMSE or log-loss) on the test rows, and the calibration error of classes.

    The calibration error is the mean distance of confidence and accuracy over ten bins.
    """
    if predictions.ndim == 1:
        return {"error": float(np.sqrt(np.mean(np.square(predictions - targets))))}
    likely = np.clip(predictions, 1e-7, 1)
    likely /= likely.sum(axis=1, keepdims=True)
    sure, right = likely.max(axis=1), likely.argmax(axis=1) == targets
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    apart = [abs(np.sum(right[bins == b]) - np.sum(sure[bins == b])) for b in range(BINS)]
    return {
        "error": float(-np.log(likely[np.arange(len(targets)), targets]).mean()),
        "accuracy": float(right.mean()),
        "calibration": float(sum(apart) / len(targets)),
    }


# --- all of them, and the report


def run_all(given: argparse.Namespace, tables: Sequence[str], names: Sequence[str]) -> None:
    """Run the contestants that the JSON file lacks, each in a process."""
    path = Path(f"{given.out}.json")
    known = json.loads(path.read_text()) if path.exists() else []
    given.folder.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve()
    if not (given.folder / f"{TABLES[-1]}-{SEEDS[-1]}-test.csv").exists():
        subprocess.run([given.peers, here, "--make", "--folder", given.folder], check=True)
    done = {(each["table"], each["seed"], each["contestant"]) for each in known}
    for table in tables:
        for seed in given.seeds:
            for name in names:
                if (table, seed, name) in done:
                    continue
                python = sys.executable if name in OURS else given.peers
                command = [python, here, "--one", name, "--folder", given.folder]
                command += ["--tables", table, "--seeds", str(seed)]
                output = subprocess.run(command, check=True, capture_output=True, text=True)
                known.append(json.loads(output.stdout.splitlines()[-1]))
                print(known[-1], flush=True)
                path.write_text(json.dumps(known, indent=1) + "\n")


def means(known: Sequence[dict[str, Any]], table: str, key: str) -> dict[str, float]:
    """Return the mean of a result over the seeds, by contestant, smallest first."""
    found: dict[str, list[float]] = {}
    for each in known:
        if each["table"] == table and key in each:
            found.setdefault(each["contestant"], []).append(each[key])
    return dict(sorted(((k, float(np.mean(v))) for k, v in found.items()), key=lambda e: e[1]))


def report(known: Sequence[dict[str, Any]]) -> str:
    """Return the losses, the verdicts and the tables of results."""
    lines: list[str] = []
    # Means are over the seeds that all contestants have results of.
    by_seed: dict[tuple[str, int], set[str]] = {}
    for each in known:
        by_seed.setdefault((each["table"], each["seed"]), set()).add(each["contestant"])
    whole = {key for key, names in by_seed.items() if names >= {*OURS, *PEERS}}
    known = [each for each in known if (each["table"], each["seed"]) in whole]
    tables = [name for name in TABLES if means(known, name, "error")]
    ranks, behind = {}, []
    for table in tables:
        errors = means(known, table, "error")
        others = {k: v for k, v in errors.items() if k not in OURS}
        ranks[table] = 1 + sum(v < errors["Caldera"] for v in others.values())
        best = min(others, key=others.__getitem__)
        if others[best] < errors["Caldera"]:
            more = errors["Caldera"] / others[best] - 1
            behind.append(f"- {table}: rank {ranks[table]}, {more:.1%} more error than {best}.")
        for name, limit in (("constant", 1.0), ("linear", 1.02)):
            if errors["Caldera"] > limit * others[name]:
                behind.append(f"- {table}: worse than {name} allows.")
        calibration = means(known, table, "calibration")
        if calibration and calibration["Caldera"] > calibration["LightGBM"]:
            behind.append(
                f"- {table}: calibration error {calibration['Caldera']:.4f}, "
                f"LightGBM {calibration['LightGBM']:.4f}."
            )
        ours, fast = (means(known, table, "cpu_seconds")[name] for name in OURS)
        if ours > 10 * fast:
            behind.append(f"- {table}: {ours / fast:.1f} times the time of --fast.")
    lines += ["## Losses", "", *(behind or ["None."]), "", "## Ranks", ""]
    top = sum(rank <= 2 for rank in ranks.values())
    lines.append(f"First or second on {top} of {len(tables)} tables, by mean error over the seeds:")
    lines.append(", ".join(f"{table} {rank}" for table, rank in ranks.items()) + ".")
    for key, title in (
        ("error", "Error: RMSE of diabetes, friedman and large, else log-loss"),
        ("calibration", "Calibration error"),
        ("cpu_seconds", "CPU seconds, files and predictions included"),
    ):
        lines += ["", f"## {title}", "", *_grid(known, tables, key)]
    return "\n".join(lines) + "\n"


def _grid(known: Sequence[dict[str, Any]], tables: Sequence[str], key: str) -> list[str]:
    shown = [name for name in tables if means(known, name, key)]
    lines = ["| contestant | " + " | ".join(shown) + " |", "|---|" + "---|" * len(shown)]
    for name in (*OURS, *PEERS):
        cells = [means(known, table, key).get(name, float("nan")) for table in shown]
        lines.append(f"| {name} | " + " | ".join(f"{each:.4g}" for each in cells) + " |")
    return lines


def main() -> None:
    """Run the contestants that the result file lacks, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=sys.executable, help="Python with the peers")
    parser.add_argument("--out", type=Path, default=Path("tables"))
    parser.add_argument("--folder", type=Path, default=Path("tables-csv"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--contestants", help="names, separated by semicolons")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help="only write the tables")
    parser.add_argument("--report", action="store_true", help="only write the report")
    given = parser.parse_args()
    given.seeds = [int(each) for each in given.seeds.split(",")]
    tables = given.tables.split(",")
    if given.make:
        given.folder.mkdir(parents=True, exist_ok=True)
        make_tables(given.folder)
        return
    if given.one:
        print(json.dumps(contest(given.one, tables[0], given.seeds[0], given.folder)))
        return
    if not given.report:
        names = given.contestants.split(";") if given.contestants else (*OURS, *PEERS)
        run_all(given, tables, names)
    text = report(json.loads(Path(f"{given.out}.json").read_text()))
    path = Path(f"{given.out}.md")
    head = path.read_text().partition("## Losses")[0] if path.exists() else ""
    path.write_text(head + text)
    print(text)


if __name__ == "__main__":
    main()
