"""Times over ranks and layers: allreduce at 90%, networks on many ranks, SparCML, MLPs by depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from caldera import nn
from caldera.base.machine import usable_cores
from caldera.bench.frameworks.base import BenchTask
from caldera.bench.levels.learner import framework_here, frameworks
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    experiment,
)
from caldera.bench.reproduce.ranks import NETWORKS, guess_way, guesses, run_ranks, setting_of
from caldera.bench.workloads import WORKLOADS, TrainingCase
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import compressors
from caldera.nn.layer import Layer
from caldera.parallel.planner import Compute, Wire
from caldera.parallel.planner.compression_cost import default_codecs
from caldera.train.neural_network import NeuralNetwork

PER_RANK = {"mlp": 256, "resnet20": 64}
"""Samples of a rank: weak scaling."""
BEYOND = (4, 8, 16, 32, 64)
WIRE = Wire(2e-6, 12.5e9)
"""100 Gbit/s, as Summit's nodes have two of."""
ALEXNET, RESNET50 = 10_000.0, 2_500.0
"""Assumed images per second of a GPU in predictions: about the rate of a V100 in half precision."""
LARGEST_BATCH = 8192
"""Batch up to which ResNet-50 keeps its accuracy with a warm-up (Goyal et al., 2017)."""


def allreduce_findings(samples: Samples) -> Findings:
    """Compare a step on several ranks with one on one rank."""
    findings: dict[str, dict[str, Quantity]] = {"efficiency": {}, "predicted": {}}
    for network in PER_RANK:
        found = samples[network]
        one = found["1 rank"]
        for ranks, seconds in found.items():
            if ranks.endswith("ranks"):
                case = f"{network}, {ranks}"
                findings["efficiency"][case] = Quantity.speedup(one, seconds)
        for nodes, predicted in zip(BEYOND, found["predicted"], strict=False):
            efficiency = Quantity.exact(median(one) / predicted, predicted=True)
            findings["predicted"][f"{network}, {nodes} nodes"] = efficiency
    return findings


@experiment("allreduce", allreduce_findings)
def allreduce(context: ExperimentContext) -> Measurement:
    """Time ranks with the same work each: on this machine's cores, predicted beyond."""
    steps = context.turns(12 if context.quick else 20)
    counts = [count for count in (1, 2, 4, 8) if count <= usable_cores()]
    plots = []
    samples: dict[str, dict[str, list[float]]] = {}
    for name, batch in PER_RANK.items():
        found: dict[str, list[float]] = {}
        for count in counts:
            context.tell(f"{name}, {count} ranks")
            asked = {"network": name, "batch": batch * count, "steps": steps}
            (answer,), what = run_ranks("steps", count, [asked])
            found["1 rank" if count == 1 else f"{count} {what} as ranks"] = answer["seconds"]
        one = median(found["1 rank"])
        model = NeuralNetwork(NETWORKS[name][0](), batch_size=batch)
        compute = Compute(((float(batch), one),))
        sizes = {count: batch * count for count in BEYOND}
        predicted = guesses(model, compute, sizes, wire=WIRE)
        found["predicted"] = [guess.seconds for guess in predicted]
        samples[name] = found
        measured = [
            (float(c), one / median(t)) for c, t in zip(counts, found.values(), strict=False)
        ]
        beyond = [(float(guess.ranks), one / guess.seconds) for guess in predicted]
        lines = {"measured": measured, "predicted": beyond}
        plots.append(Plot(f"{name}: efficiency, weak scaling", "ranks", "of one rank", lines))
    left = [*context.skipped(f"steps after {steps}"), "more ranks than this machine has cores"]
    return Measurement(samples, plots, left)


def many_cards_findings(samples: Samples) -> Findings:
    """Compare predicted rates with the rate of a single GPU times the number of ranks."""
    findings: dict[str, dict[str, Quantity]] = {"strong": {}, "weak": {}}
    for case, found in samples.items():
        network, scaling = case.rsplit(", ", 1)
        share = found["images/s"][-1] / (found["ranks"][-1] * found["images/s of one"][0])
        note = f"{found['ranks'][-1]:.0f} ranks, batch {found['batch'][-1]:.0f}"
        findings[scaling][network] = Quantity.exact(share, note, predicted=True)
    return findings


@experiment("many-cards", many_cards_findings)
def many_cards(context: ExperimentContext) -> Measurement:
    """Predict AlexNet and ResNet-50 with one batch for all (strong) and for each (weak)."""
    cases: dict[str, tuple[Callable[[], list[Layer]], float, int]] = {
        "AlexNet": (partial(nn.models.alexnet, dropout=0.0), ALEXNET, 1024),
        "ResNet-50": (nn.models.resnet50, RESNET50, 256),
    }
    counts = (1, 4, 16, 64) if context.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    samples, plots = {}, []
    for name, (make, rate, batch) in cases.items():
        context.tell(name)
        model = NeuralNetwork(make(), batch_size=batch)
        compute = Compute(((1.0, 1.0 / rate),))
        lines = {}
        weak = {count: batch * count for count in counts if batch * count <= LARGEST_BATCH}
        for scaling, sizes in {"strong": dict.fromkeys(counts, batch), "weak": weak}.items():
            found = guesses(model, compute, sizes, wire=WIRE)
            lines[scaling] = [(float(guess.ranks), guess.rate) for guess in found]
            samples[f"{name}, {scaling}"] = {
                "ranks": [float(guess.ranks) for guess in found],
                "batch": [float(size) for size in sizes.values()],
                "images/s": [guess.rate for guess in found],
                "images/s of one": [rate],
            }
        plots.append(Plot(f"{name}, predicted", "ranks", "images/s", lines, log=True))
    left = [
        *context.skipped("2, 8, 32, 128 and 256 ranks"),
        "a run (requires the same number of GPUs)",
    ]
    return Measurement(samples, plots, left)


RANKS = 8
SHAPES = ((784, 528), (528,), (528, 528), (528,), (528, 10), (10,))
"""Shapes of the parameters of an MLP for MNIST."""
ARIES, EC2 = Wire(1.5e-6, 10e9), Wire(5e-5, 1.25e9)
"""Piz Daint's network, and 10 Gbit/s with the latency of TCP."""
P100 = 4e12
"""Operations per second of a GPU in training, in float32."""


@dataclass(frozen=True)
class SpeedupLine:
    """A line of the paper's table: the speedups of training and of its communication."""

    system: str
    network: str
    nodes: int
    way: str
    training: float
    exchange: float
    wire: Wire
    batch: int


TABLE = (
    SpeedupLine("Piz Daint", "VGG-19", 8, "QSGD, 4 bits", 1.55, 3.31, ARIES, 256),
    SpeedupLine("Piz Daint", "AlexNet", 16, "QSGD, 4 bits", 1.30, 1.36, ARIES, 1024),
    SpeedupLine("Piz Daint", "MLP", 8, "Top16_Q4", 3.65, 4.53, ARIES, 256),
    SpeedupLine("EC2", "MLP", 8, "Top16_Q4", 19.12, 22.97, EC2, 256),
)


def _vgg19() -> list[Layer]:
    """VGG-16 with one convolution more in each of the last three stages."""
    layers = nn.models.vgg16(dropout=0.0)
    for filters in (256, 512, 512):
        places = [
            place
            for place, each in enumerate(layers)
            if isinstance(each, nn.Conv2D) and each.filters == filters
        ]
        place = places[-1] if filters == 256 else places[2 if len(places) < 7 else -1]
        layers.insert(place, nn.Conv2D(filters, 3, padding=1, activation="relu"))
    return layers


TABLE_NETWORKS: Mapping[str, Callable[[], list[Layer]]] = {
    "VGG-19": _vgg19,
    "AlexNet": partial(nn.models.alexnet, dropout=0.0),
    "MLP": partial(nn.models.mlp, (784,), hidden=(528, 528, 528)),
}


def sparcml_findings(samples: Samples) -> Findings:
    """Compare counted bytes, and predictions with the table."""
    sent = samples["bytes of each rank"]
    findings: dict[str, dict[str, Quantity]] = {
        "bytes": {"": Quantity.exact(sum(sent["dense"]) / sum(sent["Top16_Q4"]))},
        "communication": {},
        "training": {},
        "step": {},
    }
    for line in TABLE:
        case = f"{line.system}, {line.network}"
        for what, paper in (("communication", line.exchange), ("training", line.training)):
            (ours,) = samples[case][what]
            note = f"{ours:.2f} against {paper:.2f}"
            findings[what][case] = Quantity.exact(ours / paper, note, predicted=True)
    if "step" in samples:
        found = samples["step"]
        findings["step"][""] = Quantity.speedup(found["dense"], found["Top16_Q4"])
    return findings


@experiment("sparcml", sparcml_findings)
def sparcml(context: ExperimentContext) -> Measurement:
    """Count bytes and time steps of the MLP; predict the whole table."""
    samples = {"bytes of each rank": _bytes(context)}
    if usable_cores() > 1:
        context.tell("steps on 2 ranks")
        plain = {"network": "mlp", "batch": 256, "steps": 12 if context.quick else 40}
        asked = [plain, plain | {"compression": "top16_q4"}]
        (dense, sparse), _ = run_ranks("steps", 2, asked)
        samples["step"] = {"dense": dense["seconds"], "Top16_Q4": sparse["seconds"]}
    for line in TABLE:
        context.tell(f"{line.network} on {line.system}")
        codes = {line.way: default_codecs(line.wire)[line.way]}
        model = NeuralNetwork(TABLE_NETWORKS[line.network](), batch_size=line.batch)
        setting = setting_of(model, P100, line.nodes, line.batch, line.wire, codes)
        dense = guess_way(setting, "DataParallel, ring")
        packed = guess_way(setting, f"DataParallel, {line.way}")
        samples[f"{line.system}, {line.network}"] = {
            "communication": [dense.exchange / packed.exchange],
            "training": [dense.seconds / packed.seconds],
        }
    return Measurement(samples, left_out=["time of encoding on a GPU, which counts as none"])


def _bytes(context: ExperimentContext) -> dict[str, list[float]]:
    """Count the bytes that each rank sends of the same gradients."""
    steps = 2 if context.quick else 10

    def work(communicator: Communicator) -> tuple[float, float]:
        draw = np.random.default_rng(communicator.rank)
        compressor = compressors.make("top16_q4")
        dense = sparse = 0
        for _ in range(steps):
            for number, shape in enumerate(SHAPES):
                gradient = draw.standard_normal(shape).astype(np.float32)
                before = communicator.traffic.total.bytes_sent
                communicator.Allreduce(gradient, np.empty_like(gradient))
                middle = communicator.traffic.total.bytes_sent
                compressor.exchange(str(number), gradient, communicator)
                dense += middle - before
                sparse += communicator.traffic.total.bytes_sent - middle
        return float(dense), float(sparse)

    context.tell(f"bytes between {RANKS} ranks")
    found = run_virtual_ranks(RANKS, work)
    return {"dense": [each[0] for each in found], "Top16_Q4": [each[1] for each in found]}


STEPS = 5 * 600
"""Five epochs of MNIST in batches of 100."""


def mlp_layer_findings(samples: Samples) -> Findings:
    """Compare slopes and times over layers; each turn of the clock yields a slope."""
    depths = np.array([float(depth) for depth in samples])
    peers = [name for name in next(iter(samples.values())) if name != "caldera"]
    deepest = list(samples.values())[-1]
    middle = len(depths) // 2

    def slopes(name: str, first: int = 0, last: int = len(depths)) -> list[float]:
        found = [case.get(name, []) for case in samples.values()][first:last]
        turns = np.array(list(zip(*found, strict=False)))
        x = depths[first:last] - depths[first:last].mean()
        return [float(each) for each in turns @ x / (x @ x)] if turns.size and x.any() else []

    growth = Quantity.speedup(slopes("caldera", middle), slopes("caldera", 0, middle + 1))
    none = "no peer is installed (PyTorch, JAX)"
    return {
        "linear": {"": growth},
        "slope": {n: Quantity.speedup(slopes(n), slopes("caldera")) for n in peers}
        or {"peers": Quantity.missing(none)},
        "fastest": {n: Quantity.speedup(deepest[n], deepest["caldera"]) for n in peers}
        or {"peers": Quantity.missing(none)},
        "seconds": {n: Quantity.exact(STEPS * min(times)) for n, times in deepest.items() if times},
    }


@experiment("mlp-layers", mlp_layer_findings)
def mlp_layers(context: ExperimentContext) -> Measurement:
    """Time steps of the same networks in Caldera and in the installed peers."""
    work = WORKLOADS["mlp-depth"]
    names = [name for name in frameworks() if name != "reference"]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    samples = {}
    # Waiting for a GPU takes as long as a step of two layers.
    together = 1 if context.device == "cpu" else 20
    for case in work.quick if context.quick else work.cases:
        assert isinstance(case, TrainingCase)
        context.tell(f"{case.name}")
        calls: dict[str, Callable[[], object]] = {}
        for name in names:
            with framework_here(name, context.device) as framework:
                calls[name] = _stepping(framework.trainer(case, "float32"), together)
        times_together = context.in_turns(calls, least=0.05)
        found = {name: [each / together for each in t] for name, t in times_together.items()}
        samples[str(case.depth)] = found
        for name, taken in found.items():
            times[name].append((float(case.depth), STEPS * min(taken)))
    plot = Plot("Five epochs of MNIST", "layers", "s", times)
    return Measurement(samples, [plot], context.skipped("depths 3 and 6"))


def _stepping(task: BenchTask, together: int) -> Callable[[], object]:
    def step() -> None:
        for _ in range(together):
            task.call()
        task.wait()

    return step
