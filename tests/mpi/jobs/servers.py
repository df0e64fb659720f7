"""Parameter servers and Hogwild as several processes."""

from __future__ import annotations

from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, parallel
from caldera.comm import world
from caldera.train.strategy import SingleProcessStrategy, Strategy

FEATURES, CLASSES = 6, 3
generator = np.random.default_rng(1)
x = generator.normal(size=(20, FEATURES))
y = generator.integers(0, CLASSES, 20)
STEPS = 4
"""Of two epochs."""


def trained(strategy: Strategy, *, statistics: bool) -> tuple[dict[str, np.ndarray], Any]:
    between = [nn.BatchNorm(), nn.Dropout(0.3)] if statistics else [nn.ReLU()]
    model = cd.NeuralNetwork(
        [nn.Input((FEATURES,)), nn.Dense(5, bias=False), *between, nn.Dense(CLASSES)],
        optimizer="sgd",
        learning_rate=0.1,
        dtype="float64",
        batch_size=10,
    )
    history = model.fit((x, y), validation=(x, y), parallel=strategy, epochs=2, verbose=0)
    kept = [*model.parameters(), *model.states(), *model.optimizer.variables()]
    return {each.name: each.numpy() for each in kept}, history


def main() -> None:
    everyone = world()
    # The server's thread and its worker share one core here, as they may anywhere.
    strategies: dict[str, Any] = {
        "synchronous": lambda: parallel.ParameterServer(2),
        "bound 0": lambda: parallel.ParameterServer(mode="stale", bound=0),
        "stale": lambda: parallel.ParameterServer(2, mode="stale", bound=2),
        "asynchronous": lambda: parallel.ParameterServer(mode="asynchronous"),
        "hogwild": parallel.Hogwild,
    }
    for name, make in strategies.items():
        strategy = make()
        statistics = name == "synchronous"
        found, history = trained(strategy, statistics=statistics)
        if name in ("synchronous", "bound 0"):
            expected, alone = trained(SingleProcessStrategy(), statistics=statistics)
            for key, value in found.items():
                np.testing.assert_allclose(value, expected[key], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(history["val_loss"], alone["val_loss"], rtol=1e-12)
        bits = everyone.gather_objects([each.tobytes().hex() for each in found.values()])
        assert all(other == bits[0] for other in bits), name
        assert len({str(each) for each in everyone.gather_objects(history.to_dict())}) == 1, name
        if name == "stale":
            assert max(strategy.record.gaps) <= 2
        if name == "asynchronous":
            assert strategy.record.sent == strategy.record.applied == STEPS * everyone.size
        if name == "hogwild":
            assert strategy.updates == STEPS * everyone.size
        if everyone.rank == 0:
            print(f"as it should be: {name}", flush=True)


if __name__ == "__main__":
    main()
