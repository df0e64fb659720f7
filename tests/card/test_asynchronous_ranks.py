"""Ranks that train on cards, or share one, at their own pace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.core.memory import Device
from caldera.parallel import ElasticAveraging, Ensemble, Gossip, LocalSGD, ParameterServer
from caldera.train.strategy import Strategy
from tests.card.emulated import EmulatedCard, emulated_card
from tests.card.test_training import perceptron, points

RANKS, EPOCHS = 2, 4
STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "synchronous": ParameterServer,
    "stale": partial(ParameterServer, mode="stale", bound=2),
    "asynchronous": partial(ParameterServer, mode="asynchronous"),
    "local": partial(LocalSGD, every=2),
    "elastic": partial(ElasticAveraging, every=2),
    "gossip": Gossip,
    "ensemble": Ensemble,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_learn(card: Device, name: str) -> None:
    strategies: dict[int, Strategy] = {}

    def work(comm: Communicator) -> list[float]:
        mine = emulated_card(comm.rank) if isinstance(card, EmulatedCard) else card
        strategies[comm.rank] = STRATEGIES[name](communicator=comm)
        history = perceptron(mine).fit(
            points(), epochs=EPOCHS, parallel=strategies[comm.rank], verbose=0
        )
        return list(history["loss"])

    for losses in run_virtual_ranks(RANKS, work):
        assert np.isfinite(losses).all()
        assert losses[-1] < losses[0]
    first = strategies[0]
    if isinstance(first, ParameterServer):
        assert first.record.applied > 0
        if name == "asynchronous":
            assert first.record.applied == first.record.sent
