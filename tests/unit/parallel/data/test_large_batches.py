"""Large batches: LARS and LAMB, warm-up and a batch that grows work under every strategy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from tests.unit.parallel.families import EQUAL, FAMILIES
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    alone,
    assert_close,
    network,
    samples,
    trained,
    values,
)

OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "lars": lambda: optim.LARS(optim.LinearWarmUp(3, then=0.5), weight_decay=1e-2),
    "lamb": lambda: optim.LAMB(optim.LinearWarmUp(3, then=0.01)),
}


# Strategies take turns; both are under the plainest in test_data_parallel, test_tensor_parallel.
TURNS = [(name, list(OPTIMIZERS)[number % 2]) for number, name in enumerate(FAMILIES)]


@pytest.mark.parametrize(("name", "optimizer"), TURNS)
def test_it_works_under_every_strategy(name: str, optimizer: str) -> None:
    """Equal to one process where the strategy is; else finite, and the same on all ranks."""

    def make() -> cd.NeuralNetwork:
        hidden = [nn.Dense(8, activation="tanh"), nn.Dense(8, activation="tanh")]
        return network(
            OPTIMIZERS[optimizer],
            layers=[nn.Input((FEATURES,)), *hidden, nn.Dense(CLASSES)],
            batch_size=optim.GrowingBatch(5, factor=2),
        )

    # Five samples for two ranks, then ten: two sizes, each of which is planned on every rank.
    data = samples(20)
    found = trained(2, make, FAMILIES[name], data, watch=False, epochs=2)
    if name in EQUAL:
        assert_close(found, alone(make, data, epochs=2))
    assert all(np.isfinite(each).all() for each in values(found.models[1]).values())
    assert name == "ensemble" or found.same_on_all_ranks()
