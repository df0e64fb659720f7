"""Fourier transforms on a card, of all kinds of lengths."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.ops import fourier
from caldera.core.memory import Device
from tests.card.candidates import check, nodes_of_cases, stand_ins
from tests.unit.kernels.checking import DTYPES

OPS = {"fft", "rfft", "irfft"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    found = set()
    for node, inputs in nodes_of_cases(OPS, dtype):
        assert "stockham" in check(card, node, inputs)
        found.add(node.op.name)
    assert found == OPS


@pytest.fixture(params=["shared memory", "workspace"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both places where rows may be while they are worked on."""
    if request.param == "workspace":
        monkeypatch.setattr("caldera.kernels.cuda.runtime.driver._MOST_SHARED", 0)
        monkeypatch.setattr("caldera.kernels.cuda.fourier._at_once", lambda: 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 8, 12, 31, 49, 64, 100, 210, 512, 1001, 2048])
@pytest.mark.usefixtures("room")
def test_lengths(card: Device, n: int, dtype: str) -> None:
    generator = np.random.default_rng(n)
    signal = generator.normal(size=(5, n)).astype(dtype)
    pairs = generator.normal(size=(5, n, 2)).astype(dtype)
    half = generator.normal(size=(5, n // 2 + 1, 2)).astype(dtype)
    for node, given in (
        (fourier.fft(*stand_ins(pairs), axis=1, inverse=False), pairs),
        (fourier.fft(*stand_ins(pairs), axis=1, inverse=True), pairs),
        (fourier.rfft(*stand_ins(signal), axis=1), signal),
        (fourier.irfft(*stand_ins(half), axis=1, n=n), half),
    ):
        assert check(card, node, (given,), layouts=["dense"])


def test_a_transform_along_another_axis(card: Device) -> None:
    pairs = np.random.default_rng(0).normal(size=(3, 20, 4, 2)).astype("float32")
    for axis in range(3):
        node = fourier.fft(*stand_ins(pairs), axis=axis, inverse=False)
        assert check(card, node, (pairs,))


def test_quarter_turns_are_exact(card: Device) -> None:
    pairs = np.zeros((4, 2), "float32")
    pairs[1, 0] = 1.0
    node = fourier.fft(*stand_ins(pairs), axis=0, inverse=False)
    assert check(card, node, (pairs,), by=np.testing.assert_array_equal)
