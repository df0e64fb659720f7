"""Fourier transforms of random sizes: NumPy's numbers, whatever the layout and the threads."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.kernels.native import fourier
from caldera.kernels.tuning.choose import choices


@pytest.fixture(params=["SciPy", "NumPy"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transforms float32, as if the other one were not there."""
    if request.param == "NumPy":
        monkeypatch.setattr(fourier, "_scipy", lambda: None)
    else:
        pytest.importorskip("scipy")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("seed", range(6))
def test_random_signals(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(fourier, "WORTH_SPLITTING", 1)
    for dtype in fourier.BLOCK_BYTES:
        monkeypatch.setitem(fourier.BLOCK_BYTES, dtype, int(draw.integers(1, 4096)))
        monkeypatch.setitem(fourier.SIDE_BY_SIDE, dtype, int(draw.integers(1, 8)))
    shape = tuple(int(n) for n in draw.integers(1, 14, draw.integers(1, 4)))
    axis = int(draw.integers(len(shape)))
    kind = np.complex64 if seed % 2 else np.complex128
    near = {"rtol": 1e-4, "atol": 1e-4} if seed % 2 else {"rtol": 1e-11, "atol": 1e-11}
    x = (draw.standard_normal(shape) + 1j * draw.standard_normal(shape)).astype(kind)
    real = np.ascontiguousarray(x.real)
    wanted = [
        (op.fft(x, axis=axis), np.fft.fft(x, axis=axis)),
        (op.ifft(x, axis=axis), np.fft.ifft(x, axis=axis)),
        (op.rfft(real, axis=axis), np.fft.rfft(real, axis=axis)),
        (op.fft(real, axis=axis), np.fft.fft(real, axis=axis)),
        (op.fftn(real), np.fft.fftn(real)),
        (op.irfft(x, n=5, axis=axis), np.fft.irfft(x, n=5, axis=axis)),
        # Pairs that do not lie side by side.
        (op.fft(op.conj(op.transpose(x)) + 1.0, axis=0), np.fft.fft(x.T.conj() + 1.0, axis=0)),
    ]
    with cd.settings.override(threads=int(draw.integers(1, 5))):
        for name in ("fft", "rfft", "irfft"):
            choices.fix(name, "pocketfft", "cpu")
        try:
            for found, expected in wanted:
                np.testing.assert_allclose(found.numpy(), expected, **near)
        finally:
            for name in ("fft", "rfft", "irfft"):
                choices.unfix(name, "cpu")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("kind", ["complex64", "complex128"])
@pytest.mark.parametrize("axis", [0, 1])
def test_bits_do_not_depend_on_the_number_of_threads(kind: str, axis: int) -> None:
    draw = np.random.default_rng(0)
    x = (draw.standard_normal((201, 203)) + 1j * draw.standard_normal((201, 203))).astype(kind)

    def found(threads: int) -> np.ndarray:
        with cd.settings.override(threads=threads):
            return op.fft(x, axis=axis).numpy()

    one = found(1)
    for threads in (2, 3):
        np.testing.assert_array_equal(found(threads), one)
