"""dMath, table 1 and Inception v3: images a second over ranks, measured here, predicted beyond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from caldera import nn
from caldera.base.machine import usable_cores
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
)
from caldera.bench.reproduce.ranks import NETWORKS, Guess, guesses, run_ranks
from caldera.parallel.planner import Compute, Wire
from caldera.train.neural_network import NeuralNetwork

RANKS = (1, 2, 4, 8, 16, 32, 64)
SEED: Mapping[str, tuple[int, ...]] = {
    "AlexNet 1024": (479, 940, 1996, 3103, 4198, 5187, 5786),
    "AlexNet 256": (533, 915, 1440, 1702, 2008, 2104, 2271),
    "GoogLeNet 1024": (115, 215, 370, 873, 1498, 2330, 3025),
}
"""Images a second of Expresso on K80 cards, by the number of cards."""
OTHERS: Mapping[str, tuple[str, int, int]] = {
    "AlexNet 1024": ("nv-caffe", 16, 2615),
    "AlexNet 256": ("CNTK", 4, 428),
    "GoogLeNet 1024": ("nv-caffe", 16, 1515),
}
"""What the seed compares with: its most ranks, and images a second there."""
MEMORY = {"AlexNet 1024": 2.29, "GoogLeNet 1024": 5.27}
"""GB of a card, on 16."""
FIRST_BATCH = {"AlexNet 1024": {1: 512}, "GoogLeNet 1024": {1: 128, 2: 128, 4: 128}}
"""Where the seed had a smaller batch, because of memory."""
CARD_MEMORY = 12e9
INCEPTION = {64: (32, 1443), 96: (80, 5150)}
"""Cards (K80, then M40): images of each card, and images a second of all."""
HERE = {"alexnet": 8, "googlenet": 4, "inception3": 2}
"""Images of a batch that two cores can do in seconds."""


def _one_card(rate: float) -> Compute:
    """Return the computing of a card with this number of samples a second."""
    return Compute(((1.0, 1.0 / rate),))


def _predicted(what: str, seed: str, ours: str) -> ComparisonRow:
    return ComparisonRow(what, seed, ours, BESIDE, predicted=True)


@claim("dmath-table", "dMath, table 1", "AlexNet and GoogLeNet scale to 64 cards with one batch")
def table(context: ExperimentContext) -> ExperimentResult:
    """The seed's table by the planner, from the seed's rate on one card; and ranks of ours."""
    rows: list[ComparisonRow] = []
    plots, samples = [], {}
    for name, rates in SEED.items():
        context.tell(name)
        kind, batch = name.split()
        model = NeuralNetwork(NETWORKS[kind.lower()][0](), batch_size=int(batch))
        sizes = {each: FIRST_BATCH.get(name, {}).get(each, int(batch)) for each in RANKS}
        found = guesses(
            model, _one_card(rates[0]), sizes, memory=CARD_MEMORY, hybrid=kind == "AlexNet"
        )
        samples[f"{name}: predicted images/s"] = [each.rate for each in found]
        rows += _table_rows(name, rates, found)
        lines = {
            "seed": [(float(r), float(v)) for r, v in zip(RANKS, rates, strict=True)],
            "predicted": [(float(each.ranks), each.rate) for each in found],
        }
        plots.append(Plot(name, "ranks", "images/s", lines))
    for network in ["alexnet"] if context.quick else ["alexnet", "googlenet"]:
        measured(context, network, rows, samples)
    left = context.skipped("ranks of GoogLeNet on this machine")
    left.append("batches of 256 and 1024 on this machine")
    return ExperimentResult(rows, plots, samples, left)


def _table_rows(name: str, rates: Sequence[int], found: Sequence[Guess]) -> list[ComparisonRow]:
    """Return the rows of one network: the seed's rates and the predicted ones."""
    gain, theirs = found[-1].rate / found[0].rate, rates[-1] / rates[0]
    # The seed's cards compute small parts of a batch less efficiently: the model knows of none.
    far = [guess.rate / seed for guess, seed in zip(found, rates, strict=True)][1:]
    other, ranks, rate = OTHERS[name]
    place = RANKS.index(ranks)
    rows = [
        _predicted(
            f"{name}, {guess.ranks} ranks, images/s", str(seed), f"{guess.rate:.0f} ({guess.way})"
        )
        for guess, seed in zip(found, rates, strict=True)
    ]
    if name in MEMORY:
        memory = found[RANKS.index(16)].memory / 1e9
        rows.append(
            _predicted(f"{name}, GB of each of 16 ranks", f"{MEMORY[name]}", f"{memory:.2f}")
        )
    return [
        *rows,
        _predicted(f"{name}, 64 ranks are times as fast as one", f"{theirs:.1f}", f"{gain:.1f}"),
        _predicted(
            f"{name}: the prediction over the seed, 2 to 64 ranks",
            "1",
            f"{far[0]:.2f} to {far[-1]:.2f}",
        ),
        _predicted(
            f"{name}, {ranks} ranks: times {other}'s rate",
            f"{rates[place] / rate:.2f}",
            f"{found[place].rate / rate:.2f}",
        ),
    ]


def measured(
    context: ExperimentContext,
    network: str,
    rows: list[ComparisonRow],
    samples: dict[str, list[float]],
) -> None:
    """One batch on 1, 2, ... ranks of this machine, and what the planner makes of one and a link
    for the others."""
    batch, steps = HERE[network], 4 if context.quick else 8
    counts = [count for count in (1, 2, 4) if count <= usable_cores() and count <= batch]
    one: dict[str, Any] = {}
    for count in counts:
        context.tell(f"{network}, a batch of {batch} on {count} ranks of this machine")
        # What a rank does alone with its part is asked for too: small batches are less efficient.
        parts = [batch // each for each in counts] if count == 1 else [batch]
        asked = [
            {"network": network, "batch": size, "steps": steps, "link": True} for size in parts
        ]
        found, what = run_ranks("steps", count, asked)
        if count == 1:
            alone = {
                float(size): median(each["seconds"])
                for size, each in zip(parts, found, strict=True)
            }
            one = found[0]
        taken = median(found[0]["seconds"])
        samples[f"{network}, batch {batch}, {count} ranks: s a step"] = found[0]["seconds"]
        rows.append(
            ComparisonRow(
                f"{network}, batch {batch}, {count} ranks of this machine, images/s",
                "",
                f"{batch / taken:.1f}, {found[0]['memory'] / 1e9:.2f} GB ({what})",
                BESIDE,
            )
        )
        if count > 1:
            gain = median(one["seconds"]) / taken
            model = NeuralNetwork(NETWORKS[network][0](), batch_size=batch)
            compute = Compute(tuple(sorted(alone.items())))
            (guess,) = guesses(model, compute, {count: batch}, wire=Wire(**found[0]["link"]))
            rows.append(
                ComparisonRow(
                    f"{network}, {count} ranks are times as fast as one",
                    "",
                    f"{gain:.2f} (predicted {median(one['seconds']) / guess.seconds:.2f})",
                    BESIDE,
                )
            )


@claim(
    "inception",
    "dMath, section 4.3",
    "Inception v3 is trained at 1443 images/s on 64 cards and at 5150 on 96",
)
def inception(context: ExperimentContext) -> ExperimentResult:
    """Inception v3 on 64 and 96 cards, predicted; a step of it here."""
    rows: list[ComparisonRow] = []
    samples: dict[str, list[float]] = {}
    context.tell("prediction")
    model = NeuralNetwork(nn.models.inception3(auxiliary=False), batch_size=32)
    lines: dict[str, list[tuple[float, float]]] = {}
    for cards, (each, rate) in INCEPTION.items():
        # Nobody has told what one card does: at least its part of what all do.
        counts = (1, 2, 4, 8, 16, 32, 64, *((96,) if cards == 96 else ()))
        found = guesses(model, _one_card(rate / cards), {ranks: each * ranks for ranks in counts})
        last = found[-1]
        rows += [
            _predicted(
                f"Inception v3, {cards} cards, {each} images each, images/s",
                str(rate),
                f"{last.rate:.0f} if one alone has {rate / cards:.1f}",
            ),
            _predicted(
                f"Inception v3: what {cards} cards keep of their rate",
                "",
                f"{last.rate / rate:.0%}",
            ),
            _predicted(
                f"200 epochs of ImageNet on {cards} cards, hours",
                "49.3" if cards == 64 else "14",
                f"{200 * 1_281_167 / last.rate / 3600:.1f}",
            ),
        ]
        lines[f"{each} images a card"] = [(float(g.ranks), g.rate) for g in found]
    if not context.quick:
        measured(context, "inception3", rows, samples)
    return ExperimentResult(
        rows,
        [Plot("Inception v3, predicted", "cards", "images/s", lines)],
        samples,
        [*context.skipped("a step of Inception v3 on this machine"), "ImageNet, and its accuracy"],
    )
