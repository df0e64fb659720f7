"""Ranks that train by themselves, as processes: what holds in threads holds there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, parallel
from caldera.comm import world
from caldera.train.saving.checkpoint import CheckpointFolder
from caldera.train.strategy import SingleProcessStrategy, Strategy

FEATURES, CLASSES = 6, 3
generator = np.random.default_rng(1)
x = generator.normal(size=(20, FEATURES))
y = generator.integers(0, CLASSES, 20)
everyone = world()


def network(seed: int = 0) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(5, activation="tanh"), nn.Dropout(0.3)]
    return cd.NeuralNetwork(
        [*layers, nn.Dense(CLASSES)],
        optimizer="momentum",
        learning_rate=0.1,
        dtype="float64",
        batch_size=10,
        seed=seed,
    )


def values(model: cd.Model) -> dict[str, np.ndarray]:
    kept = [*model.parameters(), *model.states(), *model.optimizer.variables()]
    return {each.name: each.numpy() for each in kept}


def trained(strategy: Strategy, seed: int = 0, **how: Any) -> tuple[cd.Model, cd.History]:
    model = network(seed)
    how = {"validation": (x, y), "epochs": 2, "verbose": 0} | how
    return model, model.fit((x, y), parallel=strategy, **how)


def said(name: str) -> None:
    if everyone.rank == 0:
        print(f"holds: {name}", flush=True)


def main(folder: Path) -> None:
    expected, alone = trained(SingleProcessStrategy())
    found, history = trained(parallel.LocalSGD(every=1))
    for key, value in values(found).items():
        np.testing.assert_allclose(value, values(expected)[key], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(history["val_loss"], alone["val_loss"], rtol=1e-12)
    said("a mean after every step is one process")
    strategies = {
        "local": lambda: parallel.LocalSGD(every=3),
        "elastic": lambda: parallel.ElasticAveraging(every=2),
        "ring": lambda: parallel.Gossip("ring"),
        "pairs": lambda: parallel.Gossip("random pairs"),
    }
    for name, make in strategies.items():
        whole, history = trained(make(), checkpoint=folder / name)
        bits = everyone.gather_objects([each.tobytes().hex() for each in values(whole).values()])
        assert all(other == bits[0] for other in bits), name
        assert len({str(each) for each in everyone.gather_objects(history.to_dict())}) == 1, name
        # What is left is the checkpoint of the first epoch.
        if everyone.rank == 0:
            shutil.rmtree(folder / name / "step-4")
            assert CheckpointFolder(folder / name).steps() == [2]
        everyone.Barrier()
        again, _ = trained(make(), checkpoint=folder / name, resume=True)
        for key, value in values(again).items():
            assert value.tobytes() == values(whole)[key].tobytes(), (name, key)
        said(f"{name} goes on to the bit")
    ensemble = parallel.Ensemble()
    member, _ = trained(ensemble)
    expected, _ = trained(SingleProcessStrategy(), seed=everyone.rank)
    for key, value in values(member).items():
        assert value.tobytes() == values(expected)[key].tobytes(), key
    means = everyone.gather_objects(ensemble.predict(member, x).tolist())
    assert all(mean == means[0] for mean in means)
    said("members are runs of one process")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
