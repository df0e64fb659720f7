"""A deterministic run ends with the same bits every time, where ranks wait for each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import caldera as cd
from caldera import compress, nn, parallel
from caldera.comm import Communicator
from caldera.config import settings
from caldera.strategy import Strategy
from tests.unit.parallel.ranks import CLASSES, FEATURES, network, samples, trained, values

IN_STEP: dict[str, Callable[[Communicator], Strategy]] = {
    "data": lambda comm: parallel.DataParallel(bucket_bytes=100, communicator=comm),
    "compressed": lambda c: parallel.DataParallel(
        compression=compress.TopK(16, block=64, bits=4), communicator=c
    ),
    "sharded": lambda comm: parallel.Sharded(3, communicator=comm),
    "layers": lambda comm: parallel.TensorParallel(least=1, communicator=comm),
    "pipeline": lambda comm: parallel.PipelineParallel(communicator=comm),
    "servers": lambda comm: parallel.ParameterServer(2, communicator=comm),
    "local": lambda comm: parallel.LocalSGD(every=2, communicator=comm),
    "elastic": lambda comm: parallel.ElasticAveraging(every=2, communicator=comm),
    "gossip": lambda comm: parallel.Gossip("random pairs", communicator=comm),
    "ensemble": lambda comm: parallel.Ensemble(communicator=comm),
}


def make() -> cd.NeuralNetwork:
    hidden = [nn.Dense(8, activation="tanh"), nn.Dropout(0.3), nn.Dense(8, activation="tanh")]
    return network(
        layers=[nn.Input((FEATURES,)), *hidden, nn.Dense(CLASSES)],
        dtype="float32",
        optimizer="adam",
    )


@pytest.mark.parametrize("name", IN_STEP)
def test_two_runs_have_the_same_bits(name: str) -> None:
    def bits() -> list[bytes]:
        found = trained(3, make, IN_STEP[name], samples(23, "float32"), watch=False, epochs=2)
        return [each.tobytes() for model in found.models for each in values(model).values()]

    with settings.override(deterministic=True):
        assert bits() == bits()
