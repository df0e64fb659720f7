"""Momentum of gradients from older parameters: measured, reported and corrected."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import ConfigError
from caldera.parallel import Hogwild, ParameterServer
from caldera.parallel.asynchronous.staleness import LEAST, MomentumCorrection, implicit_momentum
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    alone,
    network,
    samples,
    strategies_of,
    trained,
    values,
)

STRATEGIES = {
    "stale": partial(ParameterServer, mode="stale", bound=2),
    "asynchronous": partial(ParameterServer, mode="asynchronous"),
    "hogwild": Hogwild,
}


def plain(momentum: float = 0.9, **more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(4, activation="tanh"), nn.Dense(CLASSES)]
    return network(lambda: optim.SGD(0.05, momentum=momentum), layers=layers, **more)


def test_workers_at_their_own_pace_have_the_momentum_of_the_paper() -> None:
    for workers in range(1, 20):
        assert implicit_momentum(workers - 1) == pytest.approx(1 - 1 / workers)


@pytest.mark.parametrize(
    ("age", "accumulate", "left"), [(0.0, 1, 0.9), (3.0, 1, 0.15), (6.0, 2, 0.15), (20.0, 1, LEAST)]
)
def test_what_staleness_leaves_of_a_momentum(age: float, accumulate: int, left: float) -> None:
    given = optim.SGD(0.1, momentum=0.9, nesterov=True, accumulate=accumulate)
    found = MomentumCorrection("here", corrects=True, age=age).corrected(given)
    assert found.momentum == pytest.approx(left)  # type: ignore[attr-defined]
    assert given.momentum == 0.9
    assert found.state is given.state
    assert MomentumCorrection("here", corrects=False, age=age).corrected(given) is given


def test_a_warning_has_the_number_and_comes_once() -> None:
    found = MomentumCorrection("ParameterServer", corrects=False, age=0.0)
    with pytest.warns(
        UserWarning, match=r"lacked 3\.0 updates .* momentum 0\.75 in addition .* 0\.9;"
    ):
        found.take(3.0, optim.SGD(0.1, momentum=0.9), warns=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.take(3.0, optim.SGD(0.1, momentum=0.9), warns=True)
        for corrects, age, momentum in ((True, 3.0, 0.9), (False, 0.1, 0.9), (False, 3.0, 0.0)):
            quiet = MomentumCorrection("here", corrects=corrects, age=0.0)
            quiet.take(age, optim.SGD(0.1, momentum=momentum), warns=True)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_training_measures_it(name: str) -> None:
    found: dict[int, float] = {}

    def strategy(comm: Communicator) -> Any:
        made = STRATEGIES[name](communicator=comm)
        assert made.implicit_momentum == 0.0
        end = made.end

        def ended() -> None:
            found[comm.rank] = made.implicit_momentum
            end()

        made.end = ended
        return made

    trained(3, plain, strategy, samples(120), watch=False, epochs=2)
    assert len(set(found.values())) == 1, "every rank knows the same"
    assert 0.0 <= found[0] < 1.0


@pytest.mark.parametrize("name", ["asynchronous", "hogwild"])
def test_a_corrected_run_takes_the_steps_of_less_momentum(name: str) -> None:
    """One of two ranks never has a sample, so steps have an order: each is expected to lack one
    update, and 0.9 less 1/2 is left. Servers learn from the first epoch that none is lacking."""
    how: dict[str, Any] = {"batch_size": 1, "shuffle": False}
    make = strategies_of(STRATEGIES[name])(momentum="corrected")
    expected = alone(partial(plain, 0.4), samples(12), epochs=1, **how).models[0]
    for epochs in (1, 2):
        if epochs == 2:
            expected.optimizer.momentum = 0.9 if name == "asynchronous" else 0.4
            expected.fit(samples(12), verbose=0, **how)
        found = trained(2, plain, make, samples(12), watch=False, epochs=epochs, **how)
        for key, value in values(expected).items():
            np.testing.assert_allclose(values(found.models[0])[key], value, rtol=1e-12)


def test_in_step_nothing_is_corrected() -> None:
    make = strategies_of(ParameterServer)(momentum="corrected")
    found = trained(2, plain, make, samples(30), watch=False)
    for key, value in values(alone(plain, samples(30)).models[0]).items():
        np.testing.assert_allclose(values(found.models[0])[key], value, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_what_cannot_be_corrected_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="momentum= 'given' or 'corrected', got 'less'"):
        STRATEGIES[name](momentum="less")
    make = strategies_of(STRATEGIES[name])(momentum="corrected")
    with pytest.raises(ConfigError, match=r'for momentum="corrected", got Adam; leave out'):
        trained(2, partial(network, "adam"), make, samples(20), watch=False)


def test_digits_are_learnt_with_momentum_from_older_parameters() -> None:
    digits = data.digits()
    models = [
        cd.NeuralNetwork(
            nn.models.mlp(digits.shape, hidden=(64,), classes=digits.outputs),
            optimizer=optim.SGD(0.1, momentum=0.9),
            batch_size=32,
        )
        for _ in range(4)
    ]

    def work(comm: Communicator) -> None:
        strategy = ParameterServer(mode="asynchronous", momentum="corrected", communicator=comm)
        models[comm.rank].fit(digits.train, epochs=4, verbose=0, parallel=strategy)

    run_virtual_ranks(4, work)
    assert models[0].evaluate(digits.test)["accuracy"] > 0.8, "without a correction it is 10%"
