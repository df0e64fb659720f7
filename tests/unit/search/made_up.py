"""A study of a made-up function: learning curves without learning, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from caldera import search

SPACE = {
    "learning_rate": search.log(1e-4, 1e-1),
    "layers": search.integer(1, 4),
    "activation": search.choice(["relu", "tanh & co"]),
    "optimizer": search.choice({"adam": None, "sgd": {"momentum": search.uniform(0.0, 0.9)}}),
}
STEPS = 4


def curve(
    learning_rate: float, layers: int, activation: str, optimizer: str, momentum: float = 0.0
) -> Iterator[dict[str, float]]:
    """Best at a learning rate of 0.01; of four layers, large ones fail."""
    if layers == 4 and learning_rate > 0.03:
        raise ValueError("<script>alert(1)</script>")
    top = 0.95 - 0.1 * abs(math.log10(learning_rate) + 2) - (0.02 if activation == "relu" else 0.0)
    for step in range(1, STEPS + 1):
        value = top * (1 - math.exp(-step))
        yield {"val_accuracy": value, "val_loss": 1 - value, "seconds": float(layers * step)}


class StopsBad(search.Method):
    """Stops what is below 0.7 after its second step."""

    def stop(self, trial: search.Trial, step: int, loss: float) -> bool:
        return step == 2 and loss > -0.7


def study(**settings: Any) -> search.Study:
    """Forty trials: some done, some stopped, some failed."""
    given = {"trials": 40, "objective": "val_accuracy", "stop": StopsBad(), "verbose": 0}
    return search.run(curve, SPACE, **{**given, **settings})
