"""Ranks of experiments, and what is predicted for those that are not here."""

from __future__ import annotations

import pytest

from caldera import nn
from caldera.bench.reproduce import ranks
from caldera.bench.reproduce.ranks import THREADS, guesses, run_ranks
from caldera.parallel.planner import Compute, Wire
from caldera.train.neural_network import NeuralNetwork


def test_without_mpi_ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "find_launcher", lambda: None)
    asked = {"model": "gossip, ring", "epochs": 2, "seed": 0, "batch": 360, "rate": 0.2}
    (found,), what = run_ranks("consistency", 2, [asked])
    assert what == THREADS
    assert len(found["seconds"]) == len(found["accuracy"]) == 2
    assert 0.1 < found["accuracy"][-1] <= 1.0
    (steps,), _ = run_ranks("steps", 2, [{"network": "mlp", "batch": 8, "steps": 4}])
    assert len(steps["seconds"]) == 2
    assert steps["memory"] > 0


def test_predictions_fall_behind_ideal_scaling_where_links_are_slow() -> None:
    model = NeuralNetwork(nn.models.mlp((784,), hidden=(528,)), batch_size=256)
    compute = Compute(((1.0, 1e-5),))
    sizes = {1: 256, 8: 256}
    fast, slow = (guesses(model, compute, sizes, wire=Wire(1e-6, speed)) for speed in (1e11, 1e8))
    assert fast[0].rate == slow[0].rate == pytest.approx(1e5)
    assert slow[1].rate < fast[1].rate <= 8e5
    assert fast[1].ranks == 8
    assert fast[1].way
