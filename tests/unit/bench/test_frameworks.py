"""Each framework computes the same. Those that are not installed here are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera.bench.comparison import checked, written
from caldera.bench.equality import TOLERANCES, compare_training, distance, largest_difference
from caldera.bench.frameworks import FRAMEWORKS, Framework
from caldera.bench.frameworks.base import Restartable
from caldera.bench.timing import first_call, timed
from caldera.bench.workloads import (
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
)
from caldera.bench.workloads.kernels import _chain
from caldera.bench.workloads.training import _mlp

OPTIONS: dict[str, dict[str, Any]] = {
    "caldera": {"accuracy": "strict"},
    "torch": {"compiled": False, "style": "fused"},
    "jax": {},
}
PEERS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not find_spec(name), reason=f"{name} is not installed")
    )
    for name in ("torch", "jax")
]
CONVOLUTION: dict[str, Any] = {
    "images": 2,
    "channels": 3,
    "height": 9,
    "width": 7,
    "filters": 4,
    "kernel": (3, 5),
    "stride": 2,
    "padding": (1, 2),
}
SMALL = [
    ConvolutionCase("forward", **CONVOLUTION),
    ConvolutionCase("input", what="input gradient", **CONVOLUTION),
    ConvolutionCase("filter", what="filter gradient", **CONVOLUTION),
    ProductCase("plain", m=5, n=6, k=7),
    ProductCase("first", m=5, n=6, k=7, transpose_a=True),
    ProductCase("second", m=5, n=6, k=7, transpose_b=True),
    FormulaCase("chain", formula=_chain, shapes=((30,), (30,), (30,))),
    FormulaCase("softmax", formula=lambda f, x: f.softmax(x), shapes=((3, 5),)),
    FormulaCase("rows", formula=lambda f, x: f.sum_of_rows(f.gelu(x)), shapes=((3, 5),)),
    *[
        UpdateCase(f"{rule.name} {rule.momentum}", rule=rule, shapes=((4, 5), (3,)))
        for rule in (
            Rule("sgd", 0.1),
            Rule("sgd", 0.1, momentum=0.9, weight_decay=0.1),
            Rule("adam", 0.01),
            Rule("adamw", 0.01, weight_decay=0.1),
            Rule("rmsprop", 0.01),
        )
    ],
]
NETWORK = TrainingCase(
    "small", layers=lambda: _mlp(2), batch=4, shape=(784,), rule=Rule("sgd", 0.05, momentum=0.9)
)


def _framework(name: str) -> Framework:
    return FRAMEWORKS[name](OPTIONS[name], 1)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("peer", PEERS)
def test_single_computations_agree(peer: str, case: Case) -> None:
    ours = _framework("caldera").task(case)
    theirs = _framework(peer).task(case)
    assert largest_difference(theirs.results(), ours.results()) < 1e-5


@pytest.mark.parametrize("peer", PEERS)
def test_training_agrees(peer: str, tmp_path: Path) -> None:
    ours = checked(_framework("caldera"), NETWORK, tmp_path / "ours", quick=True)
    theirs = checked(_framework(peer), NETWORK, tmp_path / "theirs", quick=True)
    equality = compare_training(
        theirs, written(tmp_path / "theirs"), ours, written(tmp_path / "ours")
    )
    equality.curve_allowed = 1e-5
    equality.judge()
    assert equality.holds, equality.broken
    assert len(ours["float64"]) == 5
    assert ours["loss"] == ours["curve"][-1]
    assert ours["curve"][-1] != ours["curve"][0]


@pytest.mark.parametrize("peer", PEERS)
def test_halves_are_near_and_begin_again_where_they_began(peer: str) -> None:
    framework = FRAMEWORKS[peer]({**OPTIONS[peer], "precision": "bfloat16"}, 1)
    truth = _framework("caldera").trainer(NETWORK, "float64")
    expected, exact = truth.gradients()
    trainer = framework.trainer(NETWORK, "float32")
    assert isinstance(trainer, Restartable)
    loss, gradients = trainer.gradients()
    assert loss == pytest.approx(expected, rel=TOLERANCES["bfloat16"].first_loss)
    assert 1e-6 < distance(exact, gradients) < TOLERANCES["bfloat16"].gradients
    assert {each.dtype.name for each in gradients} == {"float32"}
    first = trainer.losses(3)
    trainer.restart()
    assert trainer.losses(3) == first


def test_data_and_weights_are_the_same_each_time_and_batches_differ() -> None:
    first, again = NETWORK.data(), NETWORK.data()
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0][0], first[1][0])
    part = NETWORK.data("float64", 2)
    assert part[1][0].shape == (2, 784)
    assert np.array_equal(part[1][0], first[1][0][:2].astype("float64"))


def test_a_trainer_begins_with_the_same_weights_in_both_precisions() -> None:
    framework = _framework("caldera")
    single = framework.trainer(NETWORK, "float32").gradients()[0]
    double = framework.trainer(NETWORK, "float64").gradients()[0]
    assert single == pytest.approx(double, rel=1e-6)


def test_loaders_give_every_sample_once_an_epoch() -> None:
    case = InputCase("small", samples=50, width=3, batch=8)
    task = _framework("caldera").task(case)
    x, _ = case.arrays()
    assert np.allclose(task.results()[0], x.sum(0, np.float64))
    for _ in range(20):
        task.call()


def test_times_are_taken_as_often_as_asked() -> None:
    task = _framework("caldera").task(SMALL[3])
    assert first_call(task) > 0
    assert len(timed(task, seconds=0.0, least=5).wall) == 5
