"""Whole plans with normalisation, pooling, attention and losses: as on the CPU, up to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import forget_plans
from caldera.core.memory import Device
from caldera.kernels.cuda.codegen import strides
from tests.card.variants import numbers


def _gradients(device: Any, build: Any, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """A loss and its gradients."""
    given = [
        op.var(name, array.shape, fill=array, device=device, dtype=array.dtype)
        for name, array in arrays.items()
    ]
    loss = build(*given)
    plan = cd.compile([loss, *op.grad(loss, given)], device=device)
    return [tensor.numpy() for tensor in plan.run()]


def _check(card: Device, build: Any, arrays: dict[str, np.ndarray]) -> None:
    there, here = (_gradients(device, build, arrays) for device in (card, "cpu"))
    for found, right in zip(there, here, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["narrow", "wide"])
def places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 32-bit places, and with the 64-bit ones that only large arrays need."""
    if request.param == "wide":
        forget_plans()
        monkeypatch.setattr(strides, "_FEW", 0)


def test_a_network_of_sequences(card: Device) -> None:
    def loss(x: Any, w: Any, scale: Any, shift: Any, v: Any) -> Any:
        y = op.conv1d(x, w, padding=(2, 0), dilation=2)
        value, gate = op.split(op.relu(op.batch_norm(y, scale, shift, eps=1e-3)[0]), 2, axis=1)
        return op.mean(op.square(x + op.conv1d(op.tanh(value) * op.sigmoid(gate), v)))

    shapes = {"x": (3, 4, 9), "w": (8, 4, 2), "scale": (8,), "shift": (8,), "v": (4, 4, 1)}
    _check(card, loss, {name: numbers(*shape) for name, shape in shapes.items()})


def test_a_network_of_images(card: Device, places: None) -> None:
    labels = np.array([0, 3, 1])

    def loss(x: Any, scale: Any, shift: Any, w: Any) -> Any:
        y = op.relu(op.batch_norm(x, scale, shift, eps=1e-3)[0])
        y = op.local_response_norm(op.max_pool2d(y, size=3, stride=2, padding=1), 3)
        y = op.group_norm(y + op.avg_pool2d(x, size=2), 2, scale, shift, eps=1e-3)
        return op.mean(op.cross_entropy(op.reshape(y, (3, 64)) @ w, labels))

    _check(
        card,
        loss,
        {
            "x": numbers(3, 4, 8, 8),
            "scale": numbers(4, low=0.5),
            "shift": numbers(4, seed=1),
            "w": numbers(64, 5, seed=2),
        },
    )


def test_a_block_of_a_transformer(card: Device, places: None) -> None:
    targets = np.abs(numbers(2, 6, 8, seed=9))

    def loss(x: Any, scale: Any, shift: Any, w: Any) -> Any:
        normal = op.layer_norm(x, scale, shift, axis=-1, eps=1e-3)
        heads = op.transpose(op.reshape(normal, (2, 6, 2, 4)), (0, 2, 1, 3))
        found = op.scaled_dot_product_attention(heads, heads, heads, causal=True)
        joined = op.reshape(op.transpose(found, (0, 2, 1, 3)), (2, 6, 8))
        logits = (x + joined) @ w
        soft = op.sum(op.softmax(logits, axis=1) * op.log_softmax(logits))
        return op.mean(op.cross_entropy(logits, targets)) + soft

    _check(
        card,
        loss,
        {
            "x": numbers(2, 6, 8),
            "scale": numbers(8, low=0.5),
            "shift": numbers(8, seed=1),
            "w": numbers(8, 8, seed=2),
        },
    )
