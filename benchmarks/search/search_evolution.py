"""Evolution of a network for CIFAR-10, compared with ResNet-20 of the same size and epochs.

Regularised evolution selects the type of block, the number of blocks in each of three stages, the
ratio of widths between consecutive stages, the activation and the method of downsampling. The first
width is then the largest for which the network has no more parameters than ResNet-20. All networks
are trained with ResNet-20's optimizer, schedule, batch size, augmentation and number of epochs.

1. Trials are started during the first `--seconds`. Each is trained for `--search-epochs` with a
   learning rate of 0.1 and evaluated on a fifth of the training images.
2. The best two networks and ResNet-20 are trained for `--epochs` with each of three learning rates,
   twice. Their mean accuracies on the same images select one network, and a rate for each side.
3. The selected network and ResNet-20 are trained on all training images with new seeds,
   interleaved. Only this part uses the test images.

Each training is printed and written to the file of `--out` as soon as it ends. In part 3, no
training is started within the last seconds before `--limit` that the longest training of part 2
took; the final table contains the trainings that have ended. Workers are processes that share the
GPU. `CALDERA_DATA` names the folder of CIFAR-10, in any form that `data.cifar10` accepts, such as
`cifar10.tar.xz`.

    CALDERA_DATA=d python benchmarks/search/search_evolution.py --device cuda --precision bfloat16
    python benchmarks/search/search_evolution.py --samples 800 --epochs 2 --seconds 9  # synthetic
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import data, nn, optim, search

BATCH, CLASSES = 128, 10
SHAPE = (3, 32, 32)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
RATE = 0.1
"""Learning rate of all trials of the evolution."""
RATES = (0.05, 0.1, 0.2)
"""Learning rates tried for the best two networks and ResNet-20."""
WIDTHS = range(8, 160, 4)
MOST_PARAMETERS = 269_722
"""Number of parameters of ResNet-20."""
FINALISTS, REPEATS = 2, 2
SPACE = {
    "blocks": {f"stage{stage}": search.integer(1, 5) for stage in range(3)},
    "widening": {f"stage{stage}": search.choice([1.0, 1.5, 2.0]) for stage in (1, 2)},
    "block": search.choice(["basic", "bottleneck", "inverted"]),
    "activation": search.choice(["relu", "silu"]),
    "halving": search.choice(["stride", "pool"]),
}
ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU}
Layers = list[nn.Layer]


# --- networks


def conv(filters: int, kernel: int, stride: int = 1, groups: int = 1) -> Layers:
    """Return a convolution and its normalisation."""
    layer = nn.Conv2D(
        filters, kernel, stride, kernel // 2, groups=groups, bias=False, fill="he_normal"
    )
    return [layer, nn.BatchNorm()]


def body(kind: str, channels: int, filters: int, stride: int, act: Callable[[], Any]) -> Layers:
    """Return the layers of a residual block."""
    if kind == "basic":
        return [*conv(filters, 3, stride), act(), *conv(filters, 3)]
    if kind == "bottleneck":
        inner = max(filters // 2, 4)
        return [*conv(inner, 1), act(), *conv(inner, 3, stride), act(), *conv(filters, 1)]
    inner = 3 * channels
    depthwise = conv(inner, 3, stride, groups=inner)
    return [*conv(inner, 1), act(), *depthwise, act(), *conv(filters, 1)]


def network(
    width: int,
    blocks: Mapping[str, int],
    widening: Mapping[str, float],
    block: str,
    activation: str,
    halving: str,
) -> Layers:
    """Return a network of three stages of residual blocks, as in ResNet-20."""
    act = ACTIVATIONS[activation]
    layers: Layers = [nn.Input(SHAPE), *conv(width, 3), act()]
    channels = filters = width
    for stage, count in enumerate(blocks.values()):
        if stage:
            filters = int(filters * widening[f"stage{stage}"]) // 4 * 4
        for index in range(count):
            narrows = stage > 0 and index == 0
            if narrows and halving == "pool":
                layers.append(nn.AveragePool2D(2))
            stride = 2 if narrows and halving == "stride" else 1
            fits = channels == filters and stride == 1
            shortcut = None if fits else nn.models.PaddedShortcut(filters, stride)
            inside = body(block, channels, filters, stride, act)
            # An inverted block is linear at its end, as in MobileNetV2.
            last = None if block == "inverted" else activation
            layers.append(nn.Residual(inside, shortcut, activation=last))
            channels = filters
    return [*layers, nn.GlobalAveragePool(), nn.Dense(CLASSES)]


def parameters_of(width: int, chosen: Mapping[str, Any]) -> int:
    """Return the number of parameters of a network."""
    return nn.count_parameters(network(width, **chosen))


def largest_width(chosen: Mapping[str, Any]) -> int:
    """Return the largest width for which a network has no more parameters than ResNet-20."""
    low, high = 0, len(WIDTHS)
    while low < high:
        middle = (low + high) // 2
        if parameters_of(WIDTHS[middle], chosen) <= MOST_PARAMETERS:
            low = middle + 1
        else:
            high = middle
    return WIDTHS[max(low - 1, 0)]


# --- training


@dataclass(frozen=True)
class Setup:
    """Settings shared by all networks."""

    images: data.Dataset
    epochs: int
    device: str
    precision: str | None

    def model(self, layers: Layers, rate: float) -> cd.Model:
        """Build a model with ResNet-20's optimizer and schedule."""
        steps = -(-len(self.images.train) // BATCH) * self.epochs
        schedule = optim.OneCycle(rate, steps=steps, rising=0.3)
        return cd.NeuralNetwork(
            layers,
            loss="cross_entropy",
            metrics=["accuracy"],
            batch_size=BATCH,
            optimizer=optim.SGD(schedule, momentum=0.9, weight_decay=5e-4),
            precision=self.precision,
        )

    def trial(self, **chosen: Any) -> cd.Model:
        """Build the model of a trial of the evolution."""
        return self.evolved(chosen, RATE)

    def evolved(self, chosen: Mapping[str, Any], rate: float) -> cd.Model:
        """Build a model of the search space."""
        return self.model(network(largest_width(chosen), **chosen), rate)

    def resnet(self, rate: float) -> cd.Model:
        """Build a model of ResNet-20."""
        return self.model(nn.models.resnet20(SHAPE, CLASSES), rate)


def made_up(samples: int) -> data.Dataset:
    """Return synthetic images, for runs without the files of CIFAR-10."""
    random = np.random.default_rng(0)
    y = random.integers(0, CLASSES, samples)
    x = random.integers(0, 256, (samples, *SHAPE)).astype("uint8")
    x[np.arange(samples), 0, y] = 255
    return data.arrays(x, y)


def augmented(images: data.Dataset) -> data.Dataset:
    """Normalise all images, and crop and mirror the training images at random."""
    normalise = data.Normalise(MEAN, STD)
    return images.transformed([data.Crop(32, padding=4), data.Mirror(), normalise], normalise)


# --- the three parts


class Record(search.StudyCallback):
    """Callback that prints each training when it ends and writes all trainings to a file."""

    def __init__(self, began: float, out: Path | None) -> None:
        self.began, self.out = began, out
        self.part = ""
        self.trainings: list[dict[str, Any]] = []

    def trial_ends(self, study: search.Study, trial: search.Trial) -> None:
        shown = "-" if trial.value is None else f"{trial.value:.4f}"
        size, parent = trial.results.get("parameters"), trial.note.get("parent")
        print(
            f"  {time.perf_counter() - self.began:4.0f} s: trial {trial.number} {trial.state} "
            f"{shown}, {trial.seconds:.1f} s, {'' if size is None else f'{size:.0f} parameters, '}"
            f"{'' if parent is None else f'child of {parent}, '}{trial.point} {trial.reason}",
            flush=True,
        )
        self.trainings.append(
            {
                "part": self.part,
                "number": trial.number,
                "state": trial.state,
                "value": trial.value,
                "seconds": round(trial.seconds, 2),
                "parameters": size,
                "parent": parent,
                "point": trial.point,
            }
        )
        if self.out is not None:
            self.out.write_text("".join(json.dumps(each) + "\n" for each in self.trainings))

    def longest(self, part: str) -> float:
        """Return the seconds of the longest training of a part."""
        return max((each["seconds"] for each in self.trainings if each["part"] == part), default=0)


def evolve(setup: Setup, given: argparse.Namespace) -> search.Study:
    """Search for networks by their accuracy on images held out of the training."""
    given.record.part = "evolution"
    return search.run(
        setup.trial,
        SPACE,
        setup.images.train,
        validation=setup.images.validation,
        method=search.Evolution(population=given.population, sample=given.population // 3 or 1),
        objective=search.metric("val_accuracy"),
        epochs=setup.epochs,
        seconds=given.seconds,
        fit={"device": setup.device},
        workers=given.workers,
        seed=given.seed,
        verbose=0,
        callbacks=[given.record],
    )


def repeated(
    setup: Setup,
    given: argparse.Namespace,
    contestants: Mapping[str, Callable[[], cd.Model]],
    repeats: int,
    *,
    until: float,
    test: bool,
) -> dict[str, dict[int, float]]:
    """Return the accuracies of each contestant by the number of its repeat, which sets the seed.

    They are those on the test images if `test`, on the validation images otherwise.
    """
    names = list(contestants)
    shown = setup.images.test if test else setup.images.validation

    def accuracy(repeat: int, name: str) -> float:
        model = contestants[name]()
        model.seed = 1000 * (1 + test) + repeat
        model.fit(setup.images.train, epochs=setup.epochs, verbose=0, device=setup.device)
        return float(model.evaluate(shown, batch_size=1000)["accuracy"])

    # The name varies fastest, so the contestants have equal numbers of seeds at a time limit.
    study = search.run(
        accuracy,
        {"repeat": search.integer(0, repeats - 1), "name": search.choice(names)},
        method="grid",
        objective=search.metric("value", "max"),
        workers=given.workers,
        verbose=0,
        seconds=max(until - (time.perf_counter() - given.began), 0.0),
        callbacks=[given.record],
    )
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for trial in study.trials:
        if trial.value is not None:
            found[trial.parameters["name"]][trial.parameters["repeat"]] = trial.value
    return found


def choose(
    setup: Setup, given: argparse.Namespace, study: search.Study
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the network with the best mean over seeds, and the best learning rate of each side."""
    done = [trial for trial in study.trials if trial.is_feasible and trial.value is not None]
    done.sort(key=lambda trial: -(trial.value or 0.0))
    if not done:
        raise SystemExit("expected at least one finished trial, got none; increase --seconds")
    given.record.part = "choice"
    # ResNet-20 is the fastest and is trained first, so that all its rates fit into the limit.
    networks: dict[str, Callable[[float], cd.Model]] = {"ResNet-20": setup.resnet}
    for trial in done[:FINALISTS]:
        networks[f"trial {trial.number}"] = partial(setup.evolved, trial.parameters)
    entries = {f"{name}, rate {rate:g}": (name, rate) for rate in RATES for name in networks}
    contestants = {entry: partial(networks[name], rate) for entry, (name, rate) in entries.items()}
    # Half of the remaining time is reserved for the comparison.
    until = (time.perf_counter() - given.began + given.limit) / 2
    found = repeated(setup, given, contestants, REPEATS, until=until, test=False)
    means = {entry: statistics.fmean(each.values()) for entry, each in found.items() if each}
    for entry, mean in means.items():
        print(f"  {entry}: {mean:.4f}, {len(found[entry])} seeds")

    def best(ours: bool) -> tuple[str, float]:
        those = [entry for entry in means if (entries[entry][0] != "ResNet-20") == ours]
        if not those:
            raise SystemExit(
                "expected finished trainings of both sides, got none of one side; increase --limit"
            )
        return entries[max(those, key=means.__getitem__)]

    (name, rate), (_, resnet_rate) = best(True), best(False)
    chosen = next(trial.parameters for trial in done if f"trial {trial.number}" == name)
    rates = {"evolved": rate, "ResNet-20": resnet_rate}
    print(
        f"  chosen: {name}; the comparison alone is --chosen '{json.dumps(chosen)}' "
        f"--rates '{json.dumps(rates)}'",
        flush=True,
    )
    return dict(chosen), rates


def compare(
    setup: Setup, given: argparse.Namespace, best: Mapping[str, Any], rates: Mapping[str, float]
) -> None:
    """Train both networks with several seeds and print their accuracies on the test images."""
    until = given.limit - given.record.longest("choice")
    given.record.part = "test"
    found = repeated(
        setup,
        given,
        {
            "evolved": partial(setup.evolved, best, rates["evolved"]),
            "ResNet-20": partial(setup.resnet, rates["ResNet-20"]),
        },
        given.seeds,
        until=until,
        test=True,
    )
    width = largest_width(best)
    sizes = {"evolved": parameters_of(width, best), "ResNet-20": MOST_PARAMETERS}
    for name, values in found.items():
        if not values:
            print(f"{name}: no training ended within --limit")
            return
        mean = statistics.fmean(values.values())
        spread = statistics.stdev(values.values()) if len(values) > 1 else 0.0
        print(
            f"{name:10} {sizes[name]} parameters, {given.epochs} epochs, rate {rates[name]:g}: "
            f"test accuracy {mean:.2%} +- {spread:.2%}, {len(values)} seeds"
        )
    ours, theirs = found["evolved"], found["ResNet-20"]
    both = sorted(ours.keys() & theirs.keys())
    print(
        f"evolved is ahead on {sum(ours[k] > theirs[k] for k in both)} of {len(both)} seeds; "
        f"width {width}, {best}"
    )


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=100.0, help="time to start trials")
    parser.add_argument(
        "--limit", type=float, default=210.0, help="time of the whole run, in seconds"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--search-epochs", type=int, help="epochs of each trial (default: --epochs)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds in part 3")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search")
    parser.add_argument("--population", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default=None)
    parser.add_argument(
        "--chosen", type=json.loads, help="parameters of a network: run part 3 only"
    )
    parser.add_argument(
        "--rates",
        type=json.loads,
        help="learning rates of both sides with --chosen",
        default={"evolved": RATE, "ResNet-20": RATE},
    )
    parser.add_argument("--out", type=Path, help="file of all trainings, in JSON Lines")
    parser.add_argument(
        "--samples", type=int, help="number of synthetic images in place of CIFAR-10"
    )
    return parser.parse_args()


def main() -> None:
    """Run the search, the choice and the comparison."""
    given = parsed()
    given.began = began = time.perf_counter()
    given.record = Record(began, given.out)
    given.search_epochs = given.search_epochs or given.epochs
    images = data.cifar10() if given.samples is None else made_up(given.samples)
    chosen_by = images.hold_out(0.2)
    setup = Setup(augmented(chosen_by), given.epochs, given.device, given.precision)
    whole = Setup(augmented(images), given.epochs, given.device, given.precision)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {given.device}, {given.workers} workers, "
        f"{given.precision or 'float32'}; images read in {time.perf_counter() - began:.0f} s; "
        f"{len(setup.images.train)} to train with, {len(chosen_by.validation or ())} to choose "
        f"by, {len(images.test)} to test, {given.epochs} epochs ({given.search_epochs} in the "
        f"search); trials begin for {given.seconds:g} s",
        flush=True,
    )
    best, rates = given.chosen, given.rates
    if best is None:
        study = evolve(replace(setup, epochs=given.search_epochs), given)
        children = sum("parent" in trial.note for trial in study.trials)
        print(f"evolution: {study}; {children} have a parent; the best again:", flush=True)
        best, rates = choose(setup, given, study)
    print("on test images:", flush=True)
    compare(whole, given, best, rates)
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
