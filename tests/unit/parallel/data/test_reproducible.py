"""A deterministic run ends with the same bits every time, where ranks wait for each other."""

from __future__ import annotations

import pytest

import caldera as cd
from caldera import nn
from caldera.base.config import settings
from tests.unit.parallel.families import FAMILIES
from tests.unit.parallel.ranks import CLASSES, FEATURES, network, samples, trained, values

AT_THEIR_OWN_PACE = ("stale", "asynchronous", "hogwild")


def make() -> cd.NeuralNetwork:
    hidden = [nn.Dense(8, activation="tanh"), nn.Dropout(0.3), nn.Dense(8, activation="tanh")]
    return network(
        layers=[nn.Input((FEATURES,)), *hidden, nn.Dense(CLASSES)],
        dtype="float32",
        optimizer="adam",
    )


@pytest.mark.parametrize("name", sorted({*FAMILIES} - {*AT_THEIR_OWN_PACE}))
def test_two_runs_have_the_same_bits(name: str) -> None:
    def bits() -> list[bytes]:
        found = trained(2, make, FAMILIES[name], samples(20, "float32"), watch=False, epochs=2)
        return [each.tobytes() for model in found.models for each in values(model).values()]

    with settings.override(deterministic=True):
        assert bits() == bits()
