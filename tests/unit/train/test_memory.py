"""What models hold: a plan for each of a few sizes, and nothing once they are gone."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.train.predictors import filled_up
from caldera.train.step import MOST_SIZES


def _model(device: str = "cpu") -> cd.NeuralNetwork:
    layers = [nn.Input((3,)), nn.Dense(4), nn.ReLU(), nn.Dense(2)]
    return cd.NeuralNetwork(layers, device=device, batch_size=16, seed=1)


def test_predictions_of_many_sizes_take_few_plans() -> None:
    model = _model()
    x = np.random.default_rng(0).normal(size=(200, 3)).astype("float32")
    wanted = model.predict(x, batch_size=200)
    for samples in (*range(200, 0, -7), 1, 3, 200):
        found = model.predict(x[:samples], batch_size=1 << 12)
        np.testing.assert_allclose(found, wanted[:samples], rtol=1e-5)
    assert len(model._predictors) <= 24
    assert len({filled_up(samples) for samples in range(1 << 14)}) <= MOST_SIZES


def test_many_samples_are_predicted_in_few_large_batches() -> None:
    x = np.random.default_rng(0).normal(size=(1000, 3)).astype("float32")
    model = _model()
    np.testing.assert_allclose(model.predict(x), model.predict(x, batch_size=7), rtol=1e-5)
    assert [plan.original.outputs[0].shape[0] for plan in model._predictors] == [1024, 7]
    # A value of 4 MB for each sample: two of them would leave the caches of a core.
    wide = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(1 << 20), nn.Dense(1)], batch_size=2)
    wide.predict(x[:5])
    assert [plan.original.outputs[0].shape[0] for plan in wide._predictors] == [2]


@pytest.mark.parametrize("samples", [1, 9, 100, 1000, 4095])
def test_filling_is_less_than_a_quarter(samples: int) -> None:
    assert samples <= filled_up(samples) < 1.25 * samples + 1


@pytest.mark.parametrize("device", ["cpu", "loopback:26"])
def test_a_model_that_is_gone_holds_nothing(device: str) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    y = np.arange(40) % 2
    pools = {"cpu": cd.device("cpu").pool, device: cd.device(device).pool}
    gc.collect()
    before = {name: pool.report() for name, pool in pools.items()}
    model = _model(device)
    model.fit((x, y), epochs=2, verbose=0, validation=(x, y))
    model.predict(x)
    model.evaluate((x, y))
    cd.op.sum(model.parameters()[0] * 2.0).eval()
    assert {name: pool.report() for name, pool in pools.items()} != before
    parameter = weakref.ref(model.parameters()[0].symbol)
    del model
    gc.collect()
    cd.device(device).stream.synchronize()
    cd.device(device).copy_stream.synchronize()
    assert parameter() is None
    assert {name: pool.report() for name, pool in pools.items()} == before
