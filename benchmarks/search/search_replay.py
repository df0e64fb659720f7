"""Many searches on recorded learning curves: how much of a difference between two is chance?

Five seeds of `search_methods.py` cannot tell two searches apart that differ by the seed of a
sampler. Here no search trains anything. Once, a perceptron in NumPy is trained on digits (or on a
part of MNIST) with many settings of the same space: half of them drawn at random, half near the
best of those. What a setting would have come to after 1, 3, 9 and 27 epochs is then a Gaussian
process through these curves, plus what the nearest recorded curve, of a half of them that the seed
draws, is off it: noise as it was measured, and another for each seed. A search takes a second or
so, hence hundreds of seeds, each with the same world for all searches, and tests of pairs.

For each seed: the best end of 100 settings at random is the goal; how many epochs of all trials
does a search take until one of them ends as well? At most `--share` of the random ones' epochs.

    python benchmarks/search/search_replay.py record curves.json [--mnist FOLDER] [--settings 1200]
    python benchmarks/search/search_replay.py replay curves.json --seeds 200 [--out replay.json]
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.search.search_methods import SPACE
from caldera import data, search
from caldera.search.space import Point

SPACE_OF = search.Space(SPACE)
DIMENSIONS = SPACE_OF.dimensions()
Curve = list[float]


# --- curves


def perceptron(
    train: tuple[np.ndarray, np.ndarray],
    held: tuple[np.ndarray, np.ndarray],
    epochs: int,
    seed: int,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    dropout: float,
    batch_size: int,
    layers: int,
    hidden: int,
) -> Curve:
    """The validation accuracy after each epoch of the network that `search_methods.build` makes."""
    random = np.random.default_rng(seed)
    (x, y), (held_x, held_y) = train, held
    widths = [x.shape[1], *[hidden] * layers, 10]
    edges = [math.sqrt(6 / (a + b)) for a, b in pairwise(widths)]
    weights = [
        random.uniform(-edge, edge, (a, b)).astype("float32")
        for edge, a, b in zip(edges, widths, widths[1:], strict=False)
    ]
    weights += [np.zeros(each, "float32") for each in widths[1:]]
    speeds = [np.zeros_like(each) for each in weights]
    depth, found = layers + 1, []
    for _ in range(epochs):
        order = random.permutation(len(x))
        for start in range(0, len(x), batch_size):
            rows = order[start : start + batch_size]
            values, masks = [x[rows]], []
            for k in range(depth):
                next_ = values[-1] @ weights[k] + weights[depth + k]
                if k < layers:
                    kept = random.random(next_.shape, "float32") >= dropout
                    masks.append(((next_ > 0) & kept) * np.float32(1 / (1 - dropout)))
                    next_ *= masks[-1]
                values.append(next_)
            slope = np.exp(values[-1] - values[-1].max(1, keepdims=True))
            slope /= slope.sum(1, keepdims=True)
            slope[np.arange(len(rows)), y[rows]] -= 1
            slope /= len(rows)
            for k in reversed(range(depth)):
                slopes = {k: values[k].T @ slope, depth + k: slope.sum(0)}
                if k:
                    slope = (slope @ weights[k].T) * masks[k - 1]
                for name, each in slopes.items():
                    speeds[name] *= momentum
                    speeds[name] += each + weight_decay * weights[name]
                    weights[name] -= learning_rate * speeds[name]
        values = [held_x]
        for k in range(depth):
            values.append(values[-1] @ weights[k] + weights[depth + k])
            if k < layers:
                values[-1] = np.maximum(values[-1], 0)
        found.append(float((values[-1].argmax(1) == held_y).mean()))
    return found


def record(given: argparse.Namespace) -> None:
    """Train with all settings, and write the curves."""
    np.seterr(all="ignore")
    found = data.digits() if given.mnist is None else data.mnist(given.mnist)
    epochs = 27 if given.mnist is None else 9
    count = len(found.train) if given.mnist is None else given.images
    images, labels = (np.asarray(each) for each in found.train.batch(np.arange(count))[:2])
    images = images.reshape(count, -1).astype("float32")
    labels = labels.argmax(1) if labels.ndim > 1 else labels.astype("int64")
    order = np.random.default_rng(given.division).permutation(count)
    here, there = order[: count // 2], order[count // 2 :]
    parts = [(images[each], labels[each]) for each in (here, there)]
    random = np.random.default_rng(1)
    points: list[Point] = []
    curves: list[Curve] = []
    began = time.process_time()
    for number in range(given.settings):
        if number < given.settings // 2:
            point = SPACE_OF.draw(random)
        else:
            ranked = sorted(range(given.settings // 2), key=lambda each: -curves[each][-1])
            best = points[ranked[random.integers(len(ranked) // 8)]]
            point = SPACE_OF.near(best, random, width=0.15, part=0.6)
        points.append(point)
        curves.append(perceptron(*parts, epochs, number, **SPACE_OF.decoded(point)))
        if number % 50 == 0:
            print(
                f"  {number}: {time.process_time() - began:.0f} s, best {max(curves)[-1]}",
                flush=True,
            )
    shown = [[round(each, 5) for each in curve] for curve in curves]
    kept = {
        "data": found.name,
        "division": given.division,
        "held": len(there),
        "points": points,
        "curves": shown,
    }
    Path(given.curves).write_text(json.dumps(kept))


# --- a world in which every setting has a curve


def units(point: Mapping[str, Any]) -> np.ndarray:
    """A setting as numbers from 0 to 1."""
    return np.array([each.unit(point[name]) for name, each in DIMENSIONS.items()])


class World:
    """What settings come to after each rung, from recorded curves."""

    def __init__(self, path: str | Path) -> None:
        kept = json.loads(Path(path).read_text())
        self.held, curves = kept["held"], np.array(kept["curves"])
        self.at = np.array([k for k in (1, 3, 9, 27) if k <= curves.shape[1]])
        self.epochs = int(self.at[-1])
        self.points = np.array([units(point) for point in kept["points"]])
        self._heights = self._logits(curves[:, self.at - 1])
        self._fit()

    def _logits(self, accuracies: np.ndarray) -> np.ndarray:
        counts = accuracies * self.held
        logits: np.ndarray = np.log((counts + 0.5) / (self.held - counts + 0.5))
        return logits

    def _fit(self) -> None:
        """A process for each rung; what each curve is off one through all the others."""
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        few = np.random.default_rng(0).permutation(len(self.points))[:400]
        size = self.points.shape[1]
        kernel = ConstantKernel(4.0) * Matern([1.0] * size, (0.05, 20.0), nu=2.5) + WhiteKernel(0.1)
        self._means = self._heights.mean(0)
        self._scales, self._products, off = [], [], []
        for heights in (self._heights - self._means).T:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = GaussianProcessRegressor(kernel).fit(self.points[few], heights[few]).kernel_
            amplitude, scale = found.k1.k1.constant_value, found.k1.k2.length_scale
            covariance = amplitude * _matern(self.points / scale, self.points / scale)
            inverse = np.linalg.inv(covariance + found.k2.noise_level * np.eye(len(heights)))
            product = inverse @ heights
            self._scales.append(scale)
            self._products.append(amplitude * product)
            off.append(product / np.diag(inverse))
        self.off = np.array(off).T

    def explained(self) -> list[float]:
        """The part of the variance at each rung that a process through the others explains."""
        return [float(each) for each in 1 - self.off.var(0) / self._heights.var(0)]

    def curve(self, point: Mapping[str, Any], mask: np.ndarray) -> Curve:
        """The accuracy after each epoch; `mask` says whose noise the setting may have."""
        here = units(point)
        heights = [
            mean + product @ _matern(here[None] / scale, self.points / scale)[0]
            for mean, scale, product in zip(self._means, self._scales, self._products, strict=True)
        ]
        far = (((self.points - here) / self._scales[-1]) ** 2).sum(1)
        noise = self.off[np.where(mask, far, np.inf).argmin()]
        counts = self.held / (1 + np.exp(-(np.array(heights) + noise)))
        steps = np.arange(1, self.epochs + 1)
        between = np.interp(np.log(steps), np.log(self.at), np.round(counts) / self.held)
        return [float(each) for each in between]


def _matern(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    far = np.sqrt(5 * np.maximum(squares, 0))
    found: np.ndarray = (1 + far + far**2 / 3) * np.exp(-far)
    return found


class Seed:
    """What all searches of one seed have in common: its noise, and the goal."""

    def __init__(self, world: World, seed: int, trials: int, share: float) -> None:
        self.world, self.seed = world, seed
        random = np.random.default_rng([seed, 99])
        self.mask = random.random(len(world.points)) < 0.5
        ends = [self.curve(SPACE_OF.draw(random))[-1] for _ in range(trials)]
        self.goal = max(ends)
        self.first = (ends.index(self.goal) + 1) * world.epochs
        """After how many epochs random search came to its best."""
        self.all = trials * world.epochs
        self.most = int(share * self.all)

    def curve(self, point: Mapping[str, Any]) -> Curve:
        return self.world.curve(point, self.mask)


# --- the searches


class _Within(search.Method):
    """Ends a search once the goal is met, or all epochs are used."""

    given: Seed

    def ask(self, number: int) -> Any:
        last = self.trials[-1:]
        met = any(row["accuracy"] >= self.given.goal for each in last for row in each.curve[-1:])
        is_over = met or used(self.trials) >= self.given.most
        return None if is_over else super().ask(number)  # type: ignore[safe-super]


class _TPE(_Within, search.TPE):
    pass


class _Promotion(_Within, search.Promotion):
    pass


def used(trials: Sequence[search.Trial]) -> int:
    """How many epochs trials have trained: one that goes on does not train again what it had."""
    before = {each.number: len(each.curve) for each in trials}
    return sum(
        len(each.curve) - (0 if each.parent is None else before[each.parent]) for each in trials
    )


def ours(given: Seed, seed: int, method: search.Method, stop: str | None) -> float:
    """One of ours, with its defaults: how many epochs until the goal."""

    def trial(**parameters: Any) -> Iterator[dict[str, float]]:
        for each in given.curve(parameters):
            yield {"accuracy": each}

    method.given = given  # type: ignore[attr-defined]
    study = search.run(
        trial,
        SPACE,
        method=method,
        stop=stop,
        seed=seed,
        epochs=given.world.epochs,
        trials=10**6,
        objective=search.metric("accuracy", "max"),
        verbose=0,
    )
    ends = [each.curve[-1]["accuracy"] for each in study.trials]
    return used(study.trials) if max(ends) >= given.goal else math.inf


def theirs(given: Seed, seed: int) -> float:
    """Optuna's own loop, as in `search_methods.py`."""
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
    )
    count = 0
    while count < given.most:
        trial = study.ask()
        point = {
            name: trial._suggest(name, each.distribution(optuna))
            for name, each in DIMENSIONS.items()
        }
        for step, each in enumerate(given.curve(point), 1):
            trial.report(each, step)
            if trial.should_prune():
                break
        count += step
        if each >= given.goal:
            return count
        is_done = step == given.world.epochs
        study.tell(trial, each if is_done else None, None if is_done else PRUNED)
    return math.inf


PRUNED = optuna.trial.TrialState.PRUNED
SEARCHES: dict[str, Callable[[Seed, int], float]] = {
    "Optuna alone": theirs,
    "Optuna alone, other seeds": lambda given, seed: theirs(given, seed + 10**6),
    "ASHA + TPE": lambda given, seed: ours(given, seed, _TPE(), "asha"),
    "promotion + TPE": lambda given, seed: ours(given, seed, _Promotion(), None),
}


# --- what they come to


def replay(given: argparse.Namespace) -> None:
    """All searches on as many seeds as there is time for."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    world, began = World(given.curves), time.perf_counter()
    shown = ", ".join(f"{each:.0%}" for each in world.explained())
    print(f"{len(world.points)} curves; the process explains {shown} of the variance at its rungs")
    rows = []
    for seed in range(given.first, given.first + given.seeds):
        one = Seed(world, seed, given.trials, given.share)
        found = {name: SEARCHES[name](one, seed) for name in given.searches}
        epochs = {name: None if each == math.inf else each for name, each in found.items()}
        rows.append({"seed": seed, "goal": one.goal, "random": one.first, "epochs": epochs})
        if given.out:
            kept = {"all": one.all, "most": one.most, "rows": rows}
            Path(given.out).write_text(json.dumps(kept))
        if time.perf_counter() - began > given.seconds:
            break
    show(rows, one.all, one.most)


def show(rows: Sequence[Mapping[str, Any]], whole: int, most: int) -> None:
    """Medians, and ratios of pairs with intervals. What did not come to the goal counts as having
    used all it was allowed to: two such searches are equal, and the others are farther apart."""
    from scipy.stats import wilcoxon

    random = np.random.default_rng(0)
    names = list(rows[0]["epochs"])
    taken = {
        name: np.array(
            [most if row["epochs"][name] is None else row["epochs"][name] for row in rows]
        )
        for name in names
    }
    first = np.array([row["random"] for row in rows])
    print(f"{len(rows)} seeds; random search has {whole} epochs, the others at most {most}")
    print(f"  random search itself comes to its best after {np.median(first) / whole:.0%} (median)")
    for name in names:
        part, met = np.median(taken[name]) / whole, np.mean(taken[name] < most)
        logs = np.log(taken[name] / taken[names[0]])
        means = [random.choice(logs, len(logs)).mean() for _ in range(2000)]
        low, high = np.exp(np.quantile(means, [0.025, 0.975]))
        chance = wilcoxon(logs).pvalue if logs.any() else 1.0
        print(
            f"  {name:26s} {part:6.1%} (median), comes to it on {met:.0%}; epochs over those of "
            f"{names[0]}: {math.exp(logs.mean()):.2f} (geometric mean, 95%: {low:.2f} to "
            f"{high:.2f}), fewer on {np.mean(logs < 0):.0%}, more on {np.mean(logs > 0):.0%}, "
            f"Wilcoxon p {chance:.2g}"
        )


def main() -> None:
    """Either half."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("record", "replay"))
    parser.add_argument("curves", help="a file of curves")
    parser.add_argument("--mnist", help="record: a folder with MNIST; digits without")
    parser.add_argument("--images", type=int, default=4000, help="record: of MNIST")
    parser.add_argument("--settings", type=int, default=1200, help="record: how many")
    parser.add_argument("--division", type=int, default=7, help="record: the seed of the halves")
    parser.add_argument("--seeds", type=int, default=200, help="replay: how many")
    parser.add_argument("--first", type=int, default=0, help="replay: the first seed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="replay: for how long")
    parser.add_argument("--trials", type=int, default=100, help="replay: of random search")
    parser.add_argument("--share", type=float, default=0.2, help="replay: of its epochs")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--out", help="replay: a file for every search")
    given = parser.parse_args()
    (record if given.mode == "record" else replay)(given)


if __name__ == "__main__":
    main()
