"""tests/fuzz/training.py: a few random networks, trained as PyTorch trains them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caldera import NeuralNetwork
from tests.fuzz import training as fuzz

NETWORKS = [(4, {}), (11, {}), (2, {"blocks": True}), (3, {"varied": True}), (6, {"varied": True})]


@pytest.mark.parametrize(("seed", "kind"), NETWORKS)
def test_a_small_network_is_trained_as_by_pytorch(seed: int, kind: dict[str, bool]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    network = fuzz.comparable(fuzz.random_network(seed, fuzz.SMALL, alone=True, **kind))
    outcome = fuzz.compared(replace(network, dtype="float64"))
    assert outcome.what == "agreed", outcome.detail


def test_a_wrong_step_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    network = replace(
        fuzz.comparable(fuzz.random_network(4, fuzz.SMALL, alone=True)), dtype="float64"
    )
    rate = fuzz.TorchTraining._rate
    monkeypatch.setattr(fuzz.TorchTraining, "_rate", lambda self: rate(self) * (1 + 1e-3))
    assert fuzz.compared(network).what == "difference"


def test_varied_networks_are_models_and_programs() -> None:
    for seed in range(12):
        network = fuzz.random_network(seed, fuzz.SMALL, alone=True, varied=True)
        compile(network.code("cuda", {}), "network", "exec")
        model = network.model("cpu")
        assert isinstance(model, NeuralNetwork)
        x, y = network.data()
        assert len(x) == len(y) == network.count
