"""Conventions and refusals of Fourier transforms."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import lift
from caldera.core.graph.node import Node
from caldera.core.graph.ops import fourier
from caldera.errors import ConfigError, DtypeError, ShapeError
from tests.unit.ops.case import complex_numbers, numbers


@pytest.mark.parametrize("n", [1, 7, 8])
def test_inverse_transforms_give_the_signal_back(n: int) -> None:
    signal, other = numbers(2, n), complex_numbers(2, n)
    np.testing.assert_allclose(op.irfft(op.rfft(signal), n).numpy(), signal, atol=1e-14)
    np.testing.assert_allclose(op.ifft(op.fft(other)).numpy(), other, atol=1e-14)
    np.testing.assert_allclose(op.irfft2(op.rfft2(signal), n).numpy(), signal, atol=1e-14)
    np.testing.assert_allclose(op.ifft2(op.fft2(other)).numpy(), other, atol=1e-14)


def test_a_product_of_spectra_is_a_circular_convolution() -> None:
    a, b = numbers(5), numbers(5, seed=1)
    through_frequencies = op.irfft(op.rfft(a) * op.rfft(b), 5)
    directly = [sum(a[j] * b[(i - j) % 5] for j in range(5)) for i in range(5)]
    np.testing.assert_allclose(through_frequencies.numpy(), directly, atol=1e-14)


@pytest.mark.parametrize("dtype", ["int64", "float16", "bfloat16", "float32", "float64"])
def test_frequencies_are_complex64_but_for_those_of_float64(dtype: str) -> None:
    x = op.var("x", (4,), fill=np.array([1, 2, 3, 4]), dtype=dtype)
    wide = dtype == "float64"
    for spectrum in (op.rfft(x), op.fft(x)[:3]):
        assert spectrum.dtype.name == ("complex128" if wide else "complex64")
        assert spectrum.tolist() == [10, -2 + 2j, -2]
    assert op.irfft(op.rfft(x)).dtype.name == ("float64" if wide else "float32")


def test_the_imaginary_part_of_the_ends_of_a_half_spectrum_does_not_count() -> None:
    spectrum = op.var("spectrum", (3,), fill=[1 + 9j, 2 + 3j, 4 + 9j], dtype="complex64")
    signal = op.irfft(spectrum)
    assert signal.tolist() == [2.25, -2.25, 0.25, 0.75]
    slope = op.grad(op.sum(signal * signal), spectrum).numpy()
    assert slope.imag[[0, 2]].tolist() == [0, 0]


def test_infinities_stay_in_their_part() -> None:
    result = op.view_as_real(op.fft([complex(np.inf, 0.0)]))
    assert result.tolist() == [[np.inf, 0.0]]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda x: op.fft(x[0, 0]), r"op\.fft: expected no axis: this is a scalar"),
        (lambda x: op.ifft2(x[0]), r"op\.ifft2: expected an axis"),
        (lambda x: op.fft(x, 0), r"op\.fft: expected at least one element along axis 1"),
        (lambda x: op.rfft(x, axis=2), r"op\.rfft: expected an axis from -2 to 1, got 2"),
        (lambda x: op.rfft(x[:0], axis=0), r"op\.rfft: expected at least one element along axis 0"),
        (lambda x: op.rfft2(x[0]), r"op\.rfft2: expected an axis"),
        (lambda x: op.irfft(x[:, :1]), r"op\.irfft: expected a length of 1 or more.*got n = 0"),
        (lambda x: op.irfft(x[:, :2], -1), r"op\.irfft n"),
        (lambda x: op.view_as_complex(x), r"op\.view_as_complex: expected a last axis of length 2"),
    ],
)
def test_bad_use_fails_when_written(write, message) -> None:  # type: ignore[no-untyped-def]
    x = op.var("signal", (4, 3), fill=cd.constant(1.0))
    with pytest.raises(ShapeError, match=message):
        write(x)


def test_a_real_transform_refuses_complex_numbers_and_an_unknown_norm() -> None:
    with pytest.raises(DtypeError, match=r"op\.rfft: expected real numbers.*take op\.real"):
        op.rfft([1j, 2.0])
    with pytest.raises(ConfigError, match=r"op\.fft: expected norm= backward, ortho or forward"):
        op.fft([1.0], norm="none")  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="floating-point"):
        fourier.rfft(lift(np.array([1, 2])), axis=0)


def test_the_cost_of_a_real_transform_is_half_that_of_a_complex_one() -> None:
    def cost(node: Node) -> int:
        return node.op.count_flops(node)

    pairs, signal, spectrum = lift(numbers(3, 8, 2)), lift(numbers(3, 8)), lift(numbers(3, 5, 2))
    whole = cost(fourier.fft(pairs, axis=1, inverse=False))
    assert whole == 5 * 3 * 8 * 3
    assert cost(fourier.rfft(signal, axis=1)) * 2 == whole
    assert cost(fourier.irfft(spectrum, axis=1, n=8)) * 2 == whole


@pytest.mark.parametrize("write", [op.fft, op.fft2, op.fftn])
def test_all_frequencies_of_real_numbers_are_written_once(write) -> None:  # type: ignore[no-untyped-def]
    signal = np.random.default_rng(0).normal(size=(6, 8))
    spectrum = write(op.var("signal", signal.shape, fill=signal, dtype="float64"))
    names = [row.op for row in cd.compile([spectrum]).explain(time=False).rows]
    # No step puts parts side by side that `mirror` has written so.
    assert "mirror" in " ".join(names)
    assert "complex" not in names
