"""L-BFGS: its rule, its line search against recorded points, and where it is refused."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.comm import run_virtual_ranks
from caldera.train.strategy import Strategy
from tests.unit.parallel.families import FAMILIES

START = np.array([-1.2, 1.0, 0.5])
# The points at which PyTorch 2.13 evaluates the function of Rosenbrock below, by their number.
SEARCHED = {
    1: [-0.6537671232876713, 0.7602739726027398, 0.714041095890411],
    2: [-0.7427291277572524, 0.7304477891745309, 0.6697225436664568],
    4: [-0.7960924375312423, 0.7380843359147012, 0.5741717780680193],
    8: [-0.31221469466743124, 0.18434111897126815, -0.09386259134420928],
    12: [0.2607546973893322, -0.21058945783453026, -0.11678137472861064],
    16: [1.2387798984894722, 0.5035377868296611, 0.13310039120365733],
}


def _rosenbrock(w: cd.Expr) -> cd.Expr:
    return op.sum(10.0 * (w[1:] - w[:-1] ** 2.0) ** 2.0 + (1.0 - w[:-1]) ** 2.0)


def _variable() -> cd.Variable:
    return op.var("w", START.shape, fill=START, dtype="float64")


def test_the_line_search_tries_the_points_of_pytorch() -> None:
    w = _variable()
    search = optim.LBFGS(history=3, line_search="strong_wolfe")
    plan = cd.compile(search.train(_rosenbrock(w), [w]))
    for number in range(1, 17):
        plan.run()
        if number in SEARCHED:
            np.testing.assert_allclose(w.numpy(), SEARCHED[number], rtol=1e-9)


def test_without_a_search_it_follows_the_two_loops() -> None:
    w, x, g = _variable(), START, None
    scale, rate, d, t = 1.0, 0.05, np.zeros(3), 0.0
    pairs: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=3)
    plan = cd.compile(optim.LBFGS(rate, history=3).train(_rosenbrock(w), [w]))
    for _ in range(20):
        before, inner = g, x[1:] - x[:-1] ** 2
        g = np.append(-40 * x[:-1] * inner - 2 * (1 - x[:-1]), 0) + np.append(0, 20 * inner)
        if before is None:
            d, t = -g, min(1.0, 1 / np.abs(g).sum()) * rate
        else:
            if (g - before) @ (t * d) > 1e-10:
                pairs.append((t * d, g - before))
                scale = (t * d) @ (g - before) / ((g - before) @ (g - before))
            d, kept = -g, []
            for s, y in reversed(pairs):
                kept.append((s @ d) / (y @ s))
                d = d - kept[-1] * y
            d = scale * d
            for (s, y), part in zip(pairs, reversed(kept), strict=True):
                d = d + (part - (y @ d) / (y @ s)) * s
            t = rate
        x = x + t * d
        plan.run()
        np.testing.assert_allclose(w.numpy(), x, rtol=1e-9)


def test_it_finds_a_minimum_and_stays_there() -> None:
    w = _variable()
    search = optim.LBFGS(line_search="strong_wolfe", least_change=1e-18)
    found = search.minimize(_rosenbrock(w), [w], steps=100)
    assert found.converged
    np.testing.assert_allclose(w.numpy(), 1.0, rtol=1e-6)
    ended = w.numpy()
    for _ in range(3):
        search.minimize(_rosenbrock(w), [w], steps=1)
    np.testing.assert_array_equal(w.numpy(), ended)


def _model(line_search: str | None = "strong_wolfe", **more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((4,)), nn.Dense(5, activation="tanh"), nn.Dense(1)]
    rate = 1.0 if line_search else 0.1
    optimizer = optim.LBFGS(rate, line_search=line_search)
    settings = {"loss": "mse", "batch_size": 24, "dtype": "float64", "seed": 1} | more
    return cd.NeuralNetwork(layers, optimizer=optimizer, **settings)


X = np.random.default_rng(0).normal(size=(24, 4))
Y = np.sin(X[:, :1]) + X[:, 1:2] ** 2


def _weights(model: cd.Model) -> np.ndarray:
    return np.concatenate([each.numpy().reshape(-1) for each in model.parameters()])


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_it_trains_and_resumes_within_a_search(tmp_path: Path, line_search: str | None) -> None:
    whole = _model(line_search)
    losses = whole.fit(X, Y, epochs=12, verbose=0)["loss"]
    assert min(losses) < 0.5 * losses[0]
    for cut in (2, 7):
        _model(line_search).fit(X, Y, epochs=cut, verbose=0, checkpoint=tmp_path / f"{cut}")
        again = _model(line_search)
        again.fit(X, Y, epochs=12, verbose=0, checkpoint=tmp_path / f"{cut}", resume=True)
        np.testing.assert_array_equal(_weights(again), _weights(whole))


def test_ranks_equal_one_process() -> None:
    alone = _model()
    alone.fit(X, Y, epochs=15, verbose=0)
    models = [_model() for _ in range(2)]

    def work(comm: Any) -> None:
        models[comm.rank].fit(X, Y, epochs=15, verbose=0, parallel=FAMILIES["data"](comm))

    run_virtual_ranks(2, work)
    np.testing.assert_array_equal(_weights(models[0]), _weights(models[1]))
    np.testing.assert_allclose(_weights(models[0]), _weights(alone), rtol=1e-6)


@pytest.mark.parametrize("name", ["sharded", "layers", "pipeline", "server", "hogwild", "local"])
def test_other_strategies_are_refused(name: str) -> None:
    models = [_model() for _ in range(2)]

    def work(comm: Any) -> None:
        strategy: Strategy = FAMILIES[name](comm)
        models[comm.rank].fit(X, Y, verbose=0, parallel=strategy)

    with pytest.raises(cd.ConfigError, match=r"LBFGS: expected one process or parallel.DataPar"):
        run_virtual_ranks(2, work)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(cd.ConfigError, match=r"full batch.*batch_size=8 of 24.*pass batch_size=24"):
        _model(batch_size=8).fit(X, Y, verbose=0)
    with pytest.raises(cd.ConfigError, match="line_search None or 'strong_wolfe', got armijo"):
        optim.LBFGS(line_search="armijo")
    with pytest.raises(cd.ConfigError, match="an argument it takes, got 'clip'"):
        optim.get("lbfgs", clip=optim.ClipNorm(1.0))
    with pytest.raises(cd.ConfigError, match="an unchanged clip"):
        optim.LBFGS().clip = optim.ClipNorm(1.0)
    w = _variable()
    search = optim.LBFGS(line_search="strong_wolfe")
    with pytest.raises(cd.ConfigError, match="loss= of the gradients"):
        search.apply([w], [w * 2.0])
    search.train(_rosenbrock(w), [w])
    other = _variable()
    with pytest.raises(cd.ConfigError, match="parameters of its first step"):
        search.train(_rosenbrock(w) + _rosenbrock(other), [w, other])
