"""Settings of an optimizer that a callback changes take effect, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from tests.unit.parallel.families import FAMILIES
from tests.unit.parallel.ranks import CLASSES, FEATURES, network, samples, trained

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1] * 2 + 1


class Assign(cd.Callback):
    """Sets attributes of the optimizer at the start of the second epoch."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def epoch_begins(self, run: cd.Run) -> None:
        if run.epoch == 1:
            for name, value in self.given.items():
                setattr(run.model.optimizer, name, value)


def _made(optimizer: optim.Optimizer) -> cd.NeuralNetwork:
    layers = [nn.Input((4,)), nn.Dense(1)]
    return cd.NeuralNetwork(layers, loss="mse", optimizer=optimizer, batch_size=8, seed=3)


def _fitted(optimizer: optim.Optimizer, epochs: int = 3, **given: Any) -> cd.NeuralNetwork:
    model = _made(optimizer)
    model.fit(X, Y, epochs=epochs, verbose=0, callbacks=[Assign(**given)])
    return model


def _with_state(make: Callable[[], optim.Optimizer], **given: Any) -> np.ndarray:
    """Parameters after an epoch, and two more of a run that begins with the changed optimizer."""
    model = _made(make())
    model.fit(X, Y, epochs=1, verbose=0)
    for name, value in given.items():
        setattr(model.optimizer, name, value)
    model.fit(X, Y, epochs=2, verbose=0)
    return model.parameters()[0].numpy()


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: optim.SGD(0.01, momentum=0.5), {"learning_rate": 0.1}),
        (lambda: optim.SGD(0.01, momentum=0.5), {"momentum": 0.9}),
        (lambda: optim.SGD(0.01), {"momentum": 0.9}),
        (lambda: optim.SGD(0.01, momentum=0.9), {"momentum": 0.0}),
        (lambda: optim.RMSProp(0.01), {"centered": True}),
        (lambda: optim.Adam(0.01), {"beta1": 0.0, "epsilon": 1e-3}),
        (lambda: optim.Adam(0.01), {"amsgrad": True}),
        (lambda: optim.Adam(0.01), {"weight_decay": 0.5}),
        (lambda: optim.Adam(0.01), {"decay": optim.L1(0.5)}),
        (lambda: optim.SGD(0.01), {"clip": optim.ClipNorm(1e-3)}),
        (lambda: optim.Adam(0.01), {"groups": (optim.Group("bias", 0.0),)}),
    ],
)
def test_what_a_callback_assigns_takes_effect(
    make: Callable[[], optim.Optimizer], given: dict[str, Any]
) -> None:
    found = _fitted(make(), **given).parameters()[0].numpy()
    assert not np.array_equal(found, _fitted(make()).parameters()[0].numpy())
    np.testing.assert_array_equal(found, _with_state(make, **given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": 1.0}, "did you mean 'learning_rate'"),
        ({"learning_rate": -1.0}, "learning rate above 0, got -1"),
        ({"learning_rate": optim.Cosine(0.1, steps=5)}, "learning rate above 0, got Cosine"),
        ({"weight_decay": -1.0}, "strength >= 0"),
        ({"accumulate": 2}, "an unchanged accumulate"),
        ({"device": "cpu"}, "an unchanged device"),
        ({"state": {}}, "an unchanged state"),
        ({"step": 3}, "attribute that can be assigned"),
        ({"keeps": ()}, "attribute that can be assigned"),
    ],
)
def test_what_would_be_ignored_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(cd.ConfigError, match=message):
        _fitted(optim.Adam(0.01), **given)


def test_it_takes_effect_in_a_model_of_several_losses() -> None:
    class Two(cd.CustomModel):
        def __init__(self) -> None:
            super().__init__({"first": optim.SGD(0.05)}, batch_size=32)
            self.first = nn.Dense(1)

        def losses(self, x: Any) -> dict[str, Any]:
            return {"first": op.mean(op.square(self.first(x) - 1.0))}

    def ended(**given: Any) -> np.ndarray:
        model = Two()
        for _ in range(2):
            model.fit(X, epochs=2, verbose=0)
            for name, value in given.items():
                setattr(model.optimizers["first"], name, value)
        return model.first.weight.numpy()

    assert not np.array_equal(ended(momentum=0.9), ended())


def test_a_rate_that_no_step_reads_is_refused() -> None:
    with pytest.raises(cd.ConfigError, match="no schedule decides"):
        _fitted(optim.Adam(optim.Cosine(0.01, steps=20)), learning_rate=1.0)
    with pytest.raises(cd.ConfigError, match="only the size of the first step"):
        _fitted(optim.Rprop(0.01), learning_rate=1.0)


def _plain() -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(5, activation="tanh"), nn.Dense(CLASSES)]
    return network(lambda: optim.SGD(0.05), layers=layers, batch_size=5)


def _on_ranks(name: str) -> cd.Model:
    change = [Assign(momentum=0.9)]
    strategy = FAMILIES[name]
    found = trained(2, _plain, strategy, samples(20), epochs=3, watch=False, callbacks=change)
    return found.models[0]


@pytest.mark.parametrize("name", ["data", "sharded", "layers", "pipeline"])
def test_it_takes_effect_on_ranks(name: str) -> None:
    alone = _plain()
    alone.fit(samples(20), epochs=3, verbose=0, callbacks=[Assign(momentum=0.9)])
    for ours, theirs in zip(_on_ranks(name).parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["server", "hogwild"])
def test_it_is_refused_where_others_would_not_know(name: str) -> None:
    with pytest.raises(cd.ConfigError, match="stays as it was when the run began"):
        _on_ranks(name)
