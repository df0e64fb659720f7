"""The keynote's table of SparCML: sparse and quantised allreduce of gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from caldera import nn
from caldera.base.machine import usable_cores
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    claim,
    holds,
)
from caldera.bench.reproduce.ranks import guess_way, run_ranks, setting_of
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import compressors
from caldera.nn.layer import Layer
from caldera.parallel.planner import Wire
from caldera.parallel.planner.compression_cost import default_codecs
from caldera.train.neural_network import NeuralNetwork

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


NETWORKS: Mapping[str, Callable[[], list[Layer]]] = {
    "VGG-19": _vgg19,
    "AlexNet": partial(nn.models.alexnet, dropout=0.0),
    "MLP": partial(nn.models.mlp, (784,), hidden=(528, 528, 528)),
}


@claim(
    "sparcml",
    "Keynote, SparCML",
    "Gradients are exchanged many times faster with 4 bits, and as the 16 largest of 512",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """Bytes and steps of the MLP, measured; the whole table by the planner."""
    samples: dict[str, list[float]] = {}
    rows = [_bytes(context, samples), *_steps(context, samples)]
    for line in TABLE:
        context.tell(f"{line.network} on {line.system}")
        codes = {line.way: default_codecs(line.wire)[line.way]}
        model = NeuralNetwork(NETWORKS[line.network](), batch_size=line.batch)
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
    samples["dense bytes of each rank"] = [each[0] for each in found]
    samples["sparse bytes of each rank"] = [each[1] for each in found]
    gain = sum(each[0] for each in found) / sum(each[1] for each in found)
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
