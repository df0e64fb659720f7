"""A pipeline of several processes equals one, and a run goes on without it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, optim
from caldera.comm import world
from caldera.parallel import DataParallel, Hybrid, PipelineParallel
from caldera.train.strategy import SingleProcessStrategy, Strategy
from tests.mpi.jobs.one_process import of_rank_0

FEATURES, CLASSES = 6, 3
WIDE = 1500
"""Parts of three samples are too large to be sent before somebody receives them."""
MESH = {"data": 2, "model": 2}
generator = np.random.default_rng(1)
x = generator.normal(size=(20, FEATURES))
y = generator.integers(0, CLASSES, 20)


def trained(strategy: Strategy, **how: Any) -> tuple[dict[str, np.ndarray], cd.History]:
    layers = [
        nn.Input((FEATURES,)),
        nn.Dense(WIDE, activation="tanh"),
        nn.Dropout(0.3),
        nn.ReLU(),
        nn.Dense(8),
        nn.Dense(WIDE, activation="tanh"),
        nn.Dense(CLASSES),
    ]
    clipped = optim.SGD(0.1, momentum=0.9, clip=optim.ClipNorm(1.0))
    model = cd.NeuralNetwork(layers, optimizer=clipped, dtype="float64", batch_size=10)
    history = model.fit((x, y), validation=(x, y), parallel=strategy, verbose=0, **how)
    kept = [*model.parameters(), *model.optimizer.variables()]
    return {each.name: each.numpy() for each in kept}, history


def main(folder: Path) -> None:
    everyone = world()
    expected, alone = of_rank_0(everyone, lambda: trained(SingleProcessStrategy(), epochs=2))
    cuts = ["2-Dropout", "3-ReLU", "5-Dense"]
    strategies = {
        "one pipeline": lambda: PipelineParallel(cuts, micro_batches=3),
        "two pipelines": lambda: PipelineParallel(data=2, schedule="fill-drain", micro_batches=2),
        "stages of two ranks": lambda: PipelineParallel(model=2, least=1, micro_batches=2),
    }
    goes_on = {"one pipeline": DataParallel, "stages of two ranks": partial(Hybrid, MESH)}
    for name, make in strategies.items():
        if name in goes_on:
            trained(make(), epochs=1, checkpoint=folder / name)
            after = goes_on[name]()
            found, history = trained(after, epochs=2, checkpoint=folder / name, resume=True)
        else:
            found, history = trained(make(), epochs=2)
        assert found.keys() == expected.keys()
        for key, value in found.items():
            np.testing.assert_allclose(value, expected[key], rtol=1e-12, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(history["val_loss"], alone["val_loss"], rtol=1e-12)
        bits = everyone.gather_objects([each.tobytes().hex() for each in found.values()])
        assert all(other == bits[0] for other in bits), name
        if everyone.rank == 0:
            print(f"equal: {name}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
