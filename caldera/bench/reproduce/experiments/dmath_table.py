"""dMath, table 1 and Inception v3: images a second over ranks, measured here, predicted beyond."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from caldera import nn
from caldera.base.machine import usable_cores
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    experiment,
)
from caldera.bench.reproduce.ranks import NETWORKS, guesses, run_ranks
from caldera.parallel.planner import Compute, workload_of
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
"""Systems that the paper compares with: the largest number of ranks, and images/s on them."""
MEMORY = {"AlexNet 1024": 2.29, "GoogLeNet 1024": 5.27}
"""GB of memory per GPU, on 16 GPUs."""
FIRST_BATCH = {"AlexNet 1024": {1: 512}, "GoogLeNet 1024": {1: 128, 2: 128, 4: 128}}
"""Smaller batches used in the paper because of memory, by the number of GPUs."""
CARD_MEMORY = 12e9
INCEPTION = {64: (32, 1443), 96: (80, 5150)}
"""By the number of GPUs (K80, then M40): images per GPU, and images per second in total."""
HOURS = {64: 49.3, 96: 14.0}
IMAGES = 200 * 1_281_167
"""Images of 200 epochs of ImageNet."""
HERE = {"alexnet": 8, "googlenet": 4, "inception3": 2}
"""Images of a batch that two cores can do in seconds."""


def _one_card(rate: float) -> Compute:
    """Return the compute model of a GPU with this number of samples per second."""
    return Compute(((1.0, 1.0 / rate),))


def table_findings(samples: Samples) -> Findings:
    """Compare predictions with the paper's table and with its peers."""
    findings: dict[str, dict[str, Quantity]] = {"rate": {}, "peers": {}, "memory": {}}
    for name, rates in SEED.items():
        found = samples[name]["images/s"]
        for ranks, ours, paper in list(zip(RANKS, found, rates, strict=True))[1:]:
            note = f"{ours:.0f} against {paper}"
            case = f"{name}, {ranks} GPUs"
            findings["rate"][case] = Quantity.exact(ours / paper, note, predicted=True)
        peer, ranks, rate = OTHERS[name]
        ours = found[RANKS.index(ranks)]
        case = f"{name}, {ranks} GPUs, {peer}"
        findings["peers"][case] = Quantity.exact(ours / rate, predicted=True)
        if name in MEMORY:
            (nbytes,) = samples[name]["bytes on 16"]
            note = f"{nbytes / 1e9:.2f} against {MEMORY[name]:.2f} GB"
            share = nbytes / 1e9 / MEMORY[name]
            findings["memory"][name] = Quantity.exact(share, note, predicted=True)
    return {**findings, **measured_findings(samples)}


@experiment("dmath-table", table_findings)
def table(context: ExperimentContext) -> Measurement:
    """Predict the paper's table from its rates on one GPU, and time ranks of this machine."""
    plots = []
    samples: dict[str, dict[str, list[float]]] = {}
    for name, rates in SEED.items():
        context.tell(name)
        kind, batch = name.split()
        model = NeuralNetwork(NETWORKS[kind.lower()][0](), batch_size=int(batch))
        sizes = {each: FIRST_BATCH.get(name, {}).get(each, int(batch)) for each in RANKS}
        found = guesses(
            model, _one_card(rates[0]), sizes, memory=CARD_MEMORY, hybrid=kind == "AlexNet"
        )
        samples[name] = {
            "images/s": [each.rate for each in found],
            "bytes on 16": [found[RANKS.index(16)].memory],
        }
        lines = {
            "paper": [(float(r), float(v)) for r, v in zip(RANKS, rates, strict=True)],
            "predicted": [(float(each.ranks), each.rate) for each in found],
        }
        plots.append(Plot(name, "ranks", "images/s", lines))
    for network in ["alexnet"] if context.quick else ["alexnet", "googlenet"]:
        samples |= measured(context, network)
    left = context.skipped("ranks of GoogLeNet on this machine")
    return Measurement(samples, plots, [*left, "batches of 256 and 1024 on this machine"])


def measured(context: ExperimentContext, network: str) -> dict[str, dict[str, list[float]]]:
    """Time one batch on 1, 2 and 4 ranks of this machine."""
    batch, steps = HERE[network], 4 if context.quick else 8
    found = {}
    for count in [each for each in (1, 2, 4) if each <= min(usable_cores(), batch)]:
        context.tell(f"{network}, a batch of {batch} on {count} ranks of this machine")
        (answer,), _ = run_ranks(
            "steps", count, [{"network": network, "batch": batch, "steps": steps}]
        )
        found[f"{count} ranks"] = answer["seconds"]
    return {f"{network} here": found}


def measured_findings(samples: Samples) -> Findings:
    """Compare several ranks of this machine with one."""
    return {
        "here": {
            f"{network}, {ranks}": Quantity.exact(median(found["1 ranks"]) / median(seconds))
            for network, found in samples.items()
            if network.endswith(" here")
            for ranks, seconds in found.items()
            if ranks != "1 ranks"
        }
    }


def inception_findings(samples: Samples) -> Findings:
    """Compare predictions with the paper's rates and hours."""
    cards, (_, rate) = 64, INCEPTION[64]
    ours = samples["64 K80 GPUs"]["images/s"][-1]
    hours = IMAGES / ours / 3600
    rest = IMAGES / INCEPTION[96][1] / 3600
    note = f"{ours:.0f} against {rate}"
    return {
        f"rate-{cards}": {"": Quantity.exact(ours / rate, note, predicted=True)},
        f"hours-{cards}": {
            "": Quantity.exact(
                hours / HOURS[cards], f"{hours:.1f} against {HOURS[cards]}", predicted=True
            )
        },
        "consistent": {
            "": Quantity.exact(rest / HOURS[96], f"{rest:.1f} against {HOURS[96]}", predicted=True)
        },
        **measured_findings(samples),
    }


@experiment("inception", inception_findings)
def inception(context: ExperimentContext) -> Measurement:
    """Predict Inception v3 on 64 GPUs from GoogLeNet's speed on one; time a step here."""
    context.tell("prediction")
    model = NeuralNetwork(nn.models.inception3(auxiliary=False), batch_size=32)
    known = NeuralNetwork(nn.models.googlenet(auxiliary=False), batch_size=32)
    work = workload_of(model).flops / workload_of(known).flops
    one = _one_card(SEED["GoogLeNet 1024"][0] / work)
    each, _ = INCEPTION[64]
    found = guesses(model, one, {ranks: each * ranks for ranks in RANKS})
    samples = {"64 K80 GPUs": {"images/s": [guess.rate for guess in found]}}
    if not context.quick:
        samples |= measured(context, "inception3")
    lines = {f"{each} images per GPU": [(float(g.ranks), g.rate) for g in found]}
    return Measurement(
        samples,
        [Plot("Inception v3, predicted", "GPUs", "images/s", lines)],
        [*context.skipped("a step of Inception v3 on this machine"), "ImageNet, and its accuracy"],
    )
