"""Fourier transforms on a card, of all kinds of lengths; a played card has NumPy for cuFFT."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from caldera.core.graph.node import Node
from caldera.core.graph.ops import fourier
from caldera.core.memory import Device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.candidates import run_kernel, stand_ins
from tests.unit.kernels.checking import DTYPES, compare


def _check(card: Device, node: Node, given: np.ndarray, by: Callable[..., None] = compare) -> None:
    (kernel,) = TABLE.candidates(node, "cuda")
    (found,) = run_kernel(card, kernel, node, (given,), times=2)
    by(found, *evaluate(node, (given,)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 12, 31, 64, 1001])
def test_lengths(libraries: Device, n: int, dtype: str) -> None:
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
        _check(libraries, node, given)


def test_a_transform_along_another_axis(libraries: Device) -> None:
    pairs = np.random.default_rng(0).normal(size=(3, 20, 4, 2)).astype("float32")
    for axis in range(3):
        _check(libraries, fourier.fft(*stand_ins(pairs), axis=axis, inverse=False), pairs)


def test_no_rows(libraries: Device) -> None:
    pairs = np.empty((0, 8, 2), "float32")
    _check(libraries, fourier.fft(*stand_ins(pairs), axis=1, inverse=False), pairs)


def test_quarter_turns_are_exact(libraries: Device) -> None:
    pairs = np.zeros((4, 2), "float32")
    pairs[1, 0] = 1.0
    node = fourier.fft(*stand_ins(pairs), axis=0, inverse=False)
    _check(libraries, node, pairs, by=np.testing.assert_array_equal)
