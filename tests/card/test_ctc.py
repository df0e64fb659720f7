"""CTC on a card, where it is a loop of ops, beside the CPU's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.memory import Device, device
from caldera.core.memory.gpus import card_count

LABELS = np.array([[1, 1], [2, -1], [-1, -1]])
"""Repeated, single and none."""
COUNTS, FRAMES = np.array([2, 1, 0]), np.array([4, 3, 2])


def _loss_and_gradient(place: Device) -> list[np.ndarray]:
    logits = np.random.default_rng(0).normal(size=(3, 4, 3)).astype("float32")
    x = op.var("x", logits.shape, fill=logits, device=place)
    labels, frames, counts = (
        cd.Tensor.from_numpy(each, device=place) for each in (LABELS, FRAMES, COUNTS)
    )
    loss = op.ctc_loss(x, labels, frames, counts)
    plan = cd.compile([loss, op.grad(op.sum(loss), x)], device=place)
    return [each.numpy() for each in plan.run()]


@pytest.mark.skipif(
    not card_count(), reason="where the card is played its 58 sources take a minute to compile"
)
def test_loss_and_gradient_are_those_of_the_cpu(card: Device) -> None:
    for mine, right in zip(
        _loss_and_gradient(card), _loss_and_gradient(device("cpu")), strict=True
    ):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6)
