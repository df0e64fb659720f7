"""Optimizers under every strategy: of large batches, with a batch that grows, and of matrices."""

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
    "amsgrad": lambda: optim.Adam(0.01, amsgrad=True),
    "nadam": lambda: optim.Nadam(0.01),
    "radam": lambda: optim.RAdam(0.01),
    "asgd": lambda: optim.ASGD(0.1),
    "rprop": lambda: optim.Rprop(0.01),
}
WHOLE: dict[str, Callable[[], optim.Optimizer]] = {
    "muon": lambda: optim.Muon(0.01),
    "adafactor": lambda: optim.Adafactor(0.1),
}
PARTS = ("sharded", "layers")
"""Strategies in which ranks have parts of parameters."""

# Strategies take turns; both are under the plainest in test_data_parallel, test_tensor_parallel.
_NAMES = list(OPTIMIZERS)
TURNS = [(name, _NAMES[number % len(_NAMES)]) for number, name in enumerate(FAMILIES)]
TURNS += [("sharded", name) for name in ("amsgrad", "nadam", "radam", "asgd", "rprop")]
TURNS += [("data", "muon"), ("data", "adafactor"), ("pipeline", "muon"), ("pipeline", "adafactor")]
TURNS += [("server", "adafactor"), ("hogwild", "muon"), ("gossip", "adafactor")]


@pytest.mark.parametrize(("name", "optimizer"), TURNS)
def test_it_works_under_every_strategy(name: str, optimizer: str) -> None:
    """Equal to one process where the strategy is; else finite, and the same on all ranks."""

    def make() -> cd.NeuralNetwork:
        hidden = [nn.Dense(8, activation="tanh"), nn.Dense(8, activation="tanh")]
        return network(
            (OPTIMIZERS | WHOLE)[optimizer],
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


@pytest.mark.parametrize(("name", "optimizer"), list(zip(PARTS, WHOLE, strict=True)))
def test_parts_of_a_matrix_are_refused_where_a_rule_needs_it_whole(
    name: str, optimizer: str
) -> None:
    with pytest.raises(cd.ConfigError, match=r"whole parameters.*a part of .*DataParallel"):
        trained(2, lambda: network(WHOLE[optimizer]), FAMILIES[name], samples(20), watch=False)
