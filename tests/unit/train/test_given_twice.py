"""Optimizers, rules and callbacks that are given to several models: each model has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import compress, nn, op, optim, parallel
from caldera.comm import Communicator, run_virtual_ranks

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1] * 2 + 1


def trained(**settings: Any) -> list[float]:
    model = cd.NeuralNetwork(
        [nn.Input((4,)), nn.Dense(8, activation="tanh"), nn.Dense(1)],
        loss="mse",
        **{"batch_size": 16, "seed": 3, **settings},
    )
    return model.fit(X, Y, epochs=4, verbose=0)["loss"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"optimizer": optim.Adam(0.05)},
        lambda: {"optimizer": optim.SGD(0.05, momentum=0.9, accumulate=2)},
        lambda: {"optimizer": optim.SGD(optim.Exponential(0.1, factor=0.5, steps=4))},
        lambda: {
            "optimizer": optim.SGD(
                optim.ReduceOnPlateau(0.05, factor=0.5, patience=0, threshold=0.5)
            )
        },
        lambda: {"batch_size": optim.GrowingBatch(8, every=1)},
    ],
)
def test_equal_models_end_equal(make: Callable[[], dict[str, Any]]) -> None:
    settings, expected = make(), trained(**make())
    for _ in range(3):
        assert trained(**settings) == expected


@pytest.mark.parametrize("kind", [lambda: compress.TopK(0.2), compress.OneBit, compress.PowerSGD])
@pytest.mark.parametrize("same_strategy", [False, True])
def test_a_compression_keeps_no_residual_of_another_model(
    kind: Callable[[], Any], same_strategy: bool
) -> None:
    def losses(comm: Communicator) -> list[list[float]]:
        compression, found = kind(), []
        for _ in range(2):
            if not (found and same_strategy):
                strategy = parallel.DataParallel(compression=compression, communicator=comm)
            model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(1)], loss="mse", batch_size=16)
            found.append(model.fit(X, Y, epochs=2, verbose=0, parallel=strategy)["loss"])
        return found

    for first, second in run_virtual_ranks(2, losses):
        assert first == second


def test_a_rule_given_to_two_optimizers() -> None:
    rule = optim.ReduceOnPlateau(0.05, factor=0.5, patience=0, threshold=0.5)
    first = trained(optimizer=optim.SGD(rule))
    assert trained(optimizer=optim.SGD(rule)) == first


def test_the_first_model_keeps_the_object_itself() -> None:
    given = optim.Adam(0.05)
    layers = [nn.Input((4,)), nn.Dense(1)]
    first = cd.NeuralNetwork(layers, loss="mse", optimizer=given)
    second = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(1)], loss="mse", optimizer=given)
    assert first.optimizer is given
    assert second.optimizer is not given
    assert second.optimizer.config() == given.config()
    first.fit(X, Y, verbose=0)
    first.optimizer = given
    assert int(first.optimizer.step.numpy()) == 2
    second.optimizer = given
    second.fit(X, Y, verbose=0)
    assert int(second.optimizer.step.numpy()) == 2


def test_steps_that_were_taken_before_do_not_count() -> None:
    given = optim.Adam(0.05)
    x = op.var("x", (), fill=cd.constant(1.0))
    given.minimize(x * x, [x], steps=50)
    assert trained(optimizer=given) == trained(optimizer=optim.Adam(0.05))


def test_layers_of_one_custom_model_take_steps_of_their_own() -> None:
    class Pair(cd.CustomModel):
        def __init__(self) -> None:
            given = optim.Adam(0.1)
            super().__init__({"first": given, "second": given}, batch_size=64)
            self.first, self.second = nn.Dense(1), nn.Dense(1)

        def losses(self, x: Any) -> dict[str, Any]:
            first, second = op.mean(self.first(x) ** 2), op.mean(self.second(x) ** 2)
            return {"first": first, "second": second}

    model = Pair()
    model.fit(X, epochs=3, verbose=0)
    assert [int(each.step.numpy()) for each in model.optimizers.values()] == [3, 3]


@pytest.mark.parametrize("kind", [cd.KeepBest, cd.EarlyStopping])
def test_a_callback_keeps_no_weights_of_another_model(kind: Any) -> None:
    keeper = kind("loss")

    def fitted(targets: np.ndarray) -> cd.NeuralNetwork:
        model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(1)], loss="mse", learning_rate=1e-3)
        model.fit(X, targets, epochs=2, callbacks=[keeper], verbose=0)
        return model

    easy, hard = fitted(0 * Y), fitted(100 * Y)
    assert not np.allclose(easy.parameters()[0].numpy(), hard.parameters()[0].numpy())
    assert keeper.best > 1000
