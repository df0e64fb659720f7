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
from caldera.bench.reproduce.experiment import (
    BESIDE,
    LEAST_TURNS,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    faster,
    holds,
)
from caldera.bench.reproduce.ranks import NETWORKS, guess_way, guesses, run_ranks, setting_of
from caldera.bench.timing import in_turns, load_per_core
from caldera.bench.workloads import WORKLOADS, TrainingCase
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import compressors
from caldera.nn.layer import Layer
from caldera.parallel.planner import Compute, Wire
from caldera.parallel.planner.compression_cost import default_codecs
from caldera.train.neural_network import NeuralNetwork

PER_RANK = {"mlp": 256, "resnet20": 64}
"""Samples of a rank: weak scaling."""
ENOUGH, BUSY = 0.85, 0.5
BEYOND = (4, 8, 16, 32, 64)
WIRE = Wire(2e-6, 12.5e9)
"""100 Gbit/s, as Summit's nodes have two of."""
ALEXNET, RESNET50 = 10_000.0, 2_500.0
"""Images a second of one card where computing is predicted, about those of a V100 in half
precision: what is asked is what becomes of them on many."""


@claim(
    "allreduce",
    "MagmaDNN, section 4.2.2",
    "Allreduce gets around 90% scaling on most training problems",
)
def allreduce(context: ExperimentContext) -> ExperimentResult:
    """Ranks with the same work each: measured up to the cores of this machine, predicted beyond."""
    steps = 6 if context.quick else 20
    # Ranks that wait for a core that others have say nothing about allreduce.
    busy = load_per_core() > BUSY
    counts = [count for count in (1, 2, 4, 8) if count <= usable_cores()]
    rows, plots, samples = [], [], {}
    for name, batch in PER_RANK.items():
        lines: dict[str, list[tuple[float, float]]] = {"measured": [], "predicted": []}
        one = 0.0
        for count in counts:
            context.tell(f"{name}, {count} ranks")
            asked = {"network": name, "batch": batch * count, "steps": steps}
            (found,), what = run_ranks("steps", count, [asked])
            samples[f"{name}, {count} ranks: s a step"] = found["seconds"]
            taken = median(found["seconds"])
            one = one or taken
            share = one / taken
            lines["measured"].append((float(count), share))
            if count > 1:
                rows.append(
                    ComparisonRow(
                        f"{name}, {count} ranks ({what}): efficiency",
                        "about 90%",
                        f"{share:.0%}{' on a busy machine' if busy else ''}",
                        BESIDE if busy else holds(share > ENOUGH),
                    )
                )
        model = NeuralNetwork(NETWORKS[name][0](), batch_size=batch)
        compute = Compute(((float(batch), one),))
        sizes = {count: batch * count for count in BEYOND}
        for guess in guesses(model, compute, sizes, wire=WIRE):
            lines["predicted"].append((float(guess.ranks), one / guess.seconds))
        least = min(share for _, share in lines["predicted"])
        rows.append(
            ComparisonRow(
                f"{name}, 4 to 64 machines with 100 Gbit/s: efficiency",
                "about 90%",
                f"{least:.0%} or more",
                holds(least > ENOUGH),
                predicted=True,
            )
        )
        plots.append(Plot(f"{name}: efficiency, weak scaling", "ranks", "of one rank", lines))
    return ExperimentResult(
        rows,
        plots,
        samples,
        [*context.skipped(f"steps after {steps}"), "more ranks than this machine has cores"],
    )


@claim(
    "many-cards",
    "MagmaDNN, future work",
    "Distributed training of AlexNet and ResNet-50 is competitive",
)
def many_cards(context: ExperimentContext) -> ExperimentResult:
    """AlexNet and ResNet-50, one batch for all (strong) and one for each (weak)."""
    cases: dict[str, tuple[Callable[[], list[Layer]], float, int]] = {
        "AlexNet": (partial(nn.models.alexnet, dropout=0.0), ALEXNET, 1024),
        "ResNet-50": (nn.models.resnet50, RESNET50, 256),
    }
    counts = (1, 4, 16, 64) if context.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    rows, plots = [], []
    for name, (make, rate, batch) in cases.items():
        context.tell(name)
        model = NeuralNetwork(make(), batch_size=batch)
        compute = Compute(((1.0, 1.0 / rate),))
        lines = {}
        for scaling, sizes in {
            "strong": dict.fromkeys(counts, batch),
            "weak": {count: batch * count for count in counts},
        }.items():
            found = guesses(model, compute, sizes, wire=WIRE)
            lines[scaling] = [(float(guess.ranks), guess.rate) for guess in found]
            last, is_weak = found[-1], scaling == "weak"
            share = last.rate / (last.ranks * rate)
            rows.append(
                ComparisonRow(
                    f"{name}, {last.ranks} ranks, {scaling}, a batch of "
                    f"{sizes[last.ranks]}: efficiency",
                    "about 90%" if is_weak else "",
                    f"{share:.0%}, {last.rate:,.0f} images/s",
                    holds(share > ENOUGH) if is_weak else BESIDE,
                    predicted=True,
                )
            )
        plots.append(Plot(f"{name}, predicted", "ranks", "images/s", lines, log=True))
    return ExperimentResult(
        rows,
        plots,
        {},
        [*context.skipped("2, 8, 32, 128 and 256 ranks"), "a run: there is no card here"],
    )


RANKS = 8
SHAPES = ((784, 528), (528,), (528, 528), (528,), (528, 10), (10,))
"""Of an MLP on MNIST."""
ARIES, EC2 = Wire(1.5e-6, 10e9), Wire(5e-5, 1.25e9)
"""Piz Daint's network, and 10 Gbit/s with the latency of TCP."""
P100 = 4e12
"""Operations a second of a card in training, in float32."""


@dataclass(frozen=True)
class SpeedupLine:
    """A line of the seed's table: how many times as fast training is, and its communication."""

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


@claim(
    "sparcml",
    "Keynote, SparCML",
    "Gradients are exchanged many times faster with 4 bits, and as the 16 largest of 512",
)
def sparcml(context: ExperimentContext) -> ExperimentResult:
    """Bytes and steps of the MLP, measured; the whole table by the planner."""
    samples: dict[str, list[float]] = {}
    rows = [_bytes(context, samples), *_steps(context, samples)]
    for line in TABLE:
        context.tell(f"{line.network} on {line.system}")
        codes = {line.way: default_codecs(line.wire)[line.way]}
        model = NeuralNetwork(TABLE_NETWORKS[line.network](), batch_size=line.batch)
        setting = setting_of(model, P100, line.nodes, line.batch, line.wire, codes)
        dense = guess_way(setting, "DataParallel, ring")
        packed = guess_way(setting, f"DataParallel, {line.way}")
        for what, seed, ours in (
            ("communication", line.exchange, dense.exchange / packed.exchange),
            ("training", line.training, dense.seconds / packed.seconds),
        ):
            rows.append(
                ComparisonRow(
                    f"{line.system}, {line.network} on {line.nodes} nodes, {line.way}: "
                    f"{what}, times as fast",
                    f"{seed}",
                    f"{ours:.2f}",
                    holds(ours > 1.0) if what == "communication" else BESIDE,
                    predicted=True,
                )
            )
    left = ["what encoding takes on a card: it is counted as nothing where it is predicted"]
    return ExperimentResult(rows, [], samples, left)


def _bytes(context: ExperimentContext, samples: dict[str, list[float]]) -> ComparisonRow:
    """What goes over the wire of the same gradients."""
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
    dense, sparse = ([each[kind] for each in found] for kind in (0, 1))
    samples |= {"dense bytes of each rank": dense, "sparse bytes of each rank": sparse}
    gain = sum(dense) / sum(sparse)
    return ComparisonRow(
        f"MLP on MNIST, {RANKS} ranks: bytes of a dense allreduce over those of Top16_Q4",
        "above 1",
        f"{gain:.1f}",
        holds(gain > 1.0),
    )


def _steps(context: ExperimentContext, samples: dict[str, list[float]]) -> list[ComparisonRow]:
    """The same training on ranks of this machine, where messages cost hardly anything."""
    ranks = min(2, usable_cores())
    if ranks < 2:
        return []
    context.tell(f"steps on {ranks} ranks")
    plain = {"network": "mlp", "batch": 256, "steps": 8 if context.quick else 40}
    (dense, sparse), what = run_ranks("steps", ranks, [plain, plain | {"compression": "top16_q4"}])
    samples["dense: s a step"], samples["Top16_Q4: s a step"] = dense["seconds"], sparse["seconds"]
    gain = median(dense["seconds"]) / median(sparse["seconds"])
    return [
        ComparisonRow(
            f"MLP on MNIST, {ranks} {what} of this machine: a step, times as fast",
            "",
            f"{gain:.2f} (encoding costs more than shared memory)" if gain < 1 else f"{gain:.2f}",
            BESIDE,
        )
    ]


SECONDS_A_LAYER = {
    "MagmaDNN": 0.6197,
    "TensorFlow": 1.7524,
    "Theano (GPU)": 1.5271,
    "Theano (CPU)": 12.5071,
}
"""Seconds of five epochs more for each layer more."""
STEPS = 5 * 600
"""Five epochs of MNIST in batches of 100."""


@claim(
    "mlp-layers",
    "MagmaDNN, table 1",
    "The time of training an MLP grows linearly with its layers, and more slowly than in "
    "other frameworks",
)
def mlp_layers(context: ExperimentContext) -> ExperimentResult:
    """Steps of the same networks in Caldera and in the peers that are here, in turns."""
    work = WORKLOADS["mlp-depth"]
    cases = work.quick if context.quick else work.cases
    names = [name for name in frameworks() if name != "reference"]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    turns = max(LEAST_TURNS, context.repeats)
    samples = {}
    for case in cases:
        assert isinstance(case, TrainingCase)
        context.tell(f"{case.name}")
        calls: dict[str, Callable[[], object]] = {}
        for name in names:
            with framework_here(name) as framework:
                calls[name] = _stepping(framework.trainer(case, "float32"))
        for name, found in in_turns(calls, turns, least=0.05).items():
            times[name].append((float(case.depth), STEPS * min(found)))
            samples[f"{name}, {case.depth} layers: s a step"] = found
    straight = _residual(times["caldera"])
    depths = [depth for depth, _ in times["caldera"]]
    by_turn = {name: _slopes(name, depths, samples) for name in names}
    rows = [
        *(
            ComparisonRow(f"{name}, s a layer", f"{seconds:.4f}", "", BESIDE)
            for name, seconds in SECONDS_A_LAYER.items()
        ),
        *(
            ComparisonRow(f"{name}, s a layer", "", f"{_slope(points):.3f}", BESIDE)
            for name, points in times.items()
        ),
        ComparisonRow(
            "time grows linearly with layers",
            "yes",
            f"{straight:.1%} off a line",
            holds(straight < 0.15),
        ),
        *(
            ComparisonRow(
                f"slope of {name} over ours",
                "above 1",
                *faster(by_turn["caldera"], by_turn[name]),
            )
            for name in names[1:]
        ),
    ]
    plot = Plot("Five epochs of MNIST", "layers", "s", times)
    return ExperimentResult(rows, [plot], samples, context.skipped("depths 3 and 6"))


def _stepping(task: BenchTask) -> Callable[[], object]:
    def step() -> None:
        task.call()
        task.wait()

    return step


def _slope(points: list[tuple[float, float]]) -> float:
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def _slopes(name: str, depths: list[float], samples: Mapping[str, list[float]]) -> list[float]:
    """One of every turn."""
    taken = [samples[f"{name}, {depth:.0f} layers: s a step"] for depth in depths]
    return [_slope(list(zip(depths, turn, strict=True))) for turn in zip(*taken, strict=False)]


def _residual(points: list[tuple[float, float]]) -> float:
    """The largest distance to a straight line, relative to the largest time."""
    x, y = np.array(points).T
    return float(np.abs(y - np.polyval(np.polyfit(x, y, 1), x)).max() / y.max())
