"""Training as several processes equals training as one: every strategy of a family, in one job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, parallel
from caldera.comm import world
from caldera.train.strategy import SingleProcessStrategy, Strategy
from tests.mpi.jobs.one_process import of_rank_0

FEATURES, CLASSES = 6, 3
UNEVEN = ("usual", "both")
"""Of their 25 samples the last batch is smaller than others, and planned apart on every rank."""


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return generator.normal(size=(count, FEATURES)), generator.integers(0, CLASSES, count)


def network() -> cd.NeuralNetwork:
    layers = [
        nn.Input((FEATURES,)),
        nn.Dense(5, bias=False),
        nn.BatchNorm(),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Dense(CLASSES),
    ]
    return cd.NeuralNetwork(
        layers, optimizer="momentum", learning_rate=0.1, dtype="float64", batch_size=10
    )


def trained(
    data: tuple[np.ndarray, np.ndarray], strategy: Strategy | None, **how: Any
) -> tuple[dict[str, np.ndarray], cd.History]:
    model = network()
    history = model.fit(data, validation=samples(10), parallel=strategy, epochs=2, **how)
    kept = [*model.parameters(), *model.states(), *model.optimizer.variables()]
    return {each.name: each.numpy() for each in kept}, history


FAMILIES: dict[str, dict[str, Callable[[], Strategy | None]]] = {
    "data": {
        "usual": lambda: None,
        "ring, small messages": lambda: parallel.DataParallel(algorithm="ring", bucket_bytes=1),
        "library, no overlap": lambda: parallel.DataParallel(
            # Sockets come without a library.
            algorithm="library" if "library" in world().algorithms() else "window",
            overlap=False,
        ),
        "shards": lambda: parallel.DataParallel(shards=4),
        "stage 1": lambda: parallel.Sharded(1),
        "stage 2": lambda: parallel.Sharded(2, bucket_bytes=1),
        "stage 3": lambda: parallel.Sharded(3, bucket_bytes=1),
    },
    "model": {
        "layers": lambda: parallel.TensorParallel(least=1),
        "both": lambda: parallel.Hybrid({"data": 2, "model": 2}, least=1),
        "samples over all": lambda: parallel.Hybrid(
            {"data": 2, "model": 2}, least=1, samples="all", bucket_bytes=1
        ),
    },
}


def main(folder: Path, family: str, only: list[str]) -> None:
    everyone = world()

    @cache
    def one_process(count: int) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
        return of_rank_0(
            everyone, lambda: trained(samples(count), SingleProcessStrategy(), verbose=0)
        )

    for name in only or FAMILIES[family]:
        count = 25 if name in UNEVEN else 20
        data = samples(count)
        expected, alone = one_process(count)
        found, history = trained(data, FAMILIES[family][name](), checkpoint=folder / name)
        assert found.keys() == expected.keys()
        for key, value in found.items():
            np.testing.assert_allclose(value, expected[key], rtol=1e-12, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(history["val_loss"], alone["val_loss"], rtol=1e-12)
        bits = everyone.gather_objects([each.tobytes().hex() for each in found.values()])
        assert all(other == bits[0] for other in bits), name
        assert len({str(each) for each in everyone.gather_objects(history.to_dict())}) == 1, name
        if everyone.rank == 0:
            print(f"equal: {name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
