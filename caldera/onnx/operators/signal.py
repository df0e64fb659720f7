"""Fourier transforms, windows and mel scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.onnx.library import dtype_of
from caldera.onnx.operators.movement import widened
from caldera.onnx.operators.registry import Value, axis_of, check_size, integer, numbers, operator


def _length_changed(x: Value, axis: int, length: int) -> Value:
    """Truncate, or pad with zeros at the end."""
    return widened(x, [(0, (length - n) * (i == axis)) for i, n in enumerate(x.shape)])


def _complex(x: Value) -> Value:
    """Return complex numbers from pairs, or from real parts only."""
    return op.view_as_complex(x) if x.shape[-1] == 2 else op.squeeze(x, -1)


@operator("DFT")
def dft(
    x: Value,
    dft_length: Value = None,
    axis: Value = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    opset: int,
) -> Expr:
    """Return the Fourier transform along an axis; the last axis holds real and imaginary parts."""
    default = -2 if opset >= 20 else 1
    position = axis_of(default if axis is None else integer(axis, "an axis"), len(x.shape))
    own = 2 * (x.shape[position] - 1) if inverse and onesided else x.shape[position]
    length = own if dft_length is None else integer(dft_length, "a length")
    if inverse and onesided:
        return op.unsqueeze(op.irfft(_complex(x), length, position), -1)
    transform = op.ifft if inverse else op.fft
    spectrum = op.view_as_real(transform(_complex(x), length, position))
    return _length_changed(spectrum, position, length // 2 + 1) if onesided else spectrum


@operator("STFT")
def stft(
    signal: Value,
    frame_step: Value,
    window: Value = None,
    frame_length: Value = None,
    *,
    onesided: int = 1,
) -> Expr:
    """The transforms of pieces of a signal (N, L, 1 or 2), one every `frame_step` elements."""
    step = integer(frame_step, "a step")
    if frame_length is not None:
        length = integer(frame_length, "a length")
    else:
        length = signal.shape[1] if window is None else window.shape[0]
    count = (signal.shape[1] - length) // step + 1
    check_size((max(count, 0), length))
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = op.gather(signal, places, axis=1)
    if window is not None:
        frames = op.mul(frames, op.reshape(window, (length, 1)))
    spectrum = op.view_as_real(op.fft(_complex(frames), axis=2))
    return _length_changed(spectrum, 2, length // 2 + 1) if onesided else spectrum


def _cosines(terms: tuple[float, ...]) -> Any:
    """Return a window that is a sum of cosines."""

    def translate(size: Value, *, output_datatype: int = 1, periodic: int = 1) -> np.ndarray:
        length = integer(size, "a length")
        check_size((length,))
        angle = 2 * np.pi * np.arange(length) / max(length if periodic else length - 1, 1)
        total = sum(share * np.cos(k * angle) for k, share in enumerate(terms))
        return np.asarray(total).astype(dtype_of(output_datatype))

    return translate


operator("HannWindow")(_cosines((0.5, -0.5)))
operator("HammingWindow")(_cosines((25 / 46, -21 / 46)))
operator("BlackmanWindow")(_cosines((0.42, -0.5, 0.08)))


@operator("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Value,
    dft_length: Value,
    sample_rate: Value,
    lower_edge_hertz: Value,
    upper_edge_hertz: Value,
    *,
    output_datatype: int = 1,
) -> np.ndarray:
    """Triangles that are equally wide on the mel scale, over the frequencies of a transform."""
    bands, length = integer(num_mel_bins, "a number"), integer(dft_length, "a length")
    rate = integer(sample_rate, "a rate")
    check_size((length // 2 + 1, bands + 2))
    edges = np.array([*numbers(lower_edge_hertz), *numbers(upper_edge_hertz)])
    low, high = 2595 * np.log10(1 + edges / 700)
    points = low + np.arange(bands + 2) * (high - low) / (bands + 2)
    hertz = 700 * (10 ** (points / 2595) - 1)
    bins = np.floor((length + 1) * hertz / rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bands))
    for band in range(bands):
        start, peak, end = bins[band : band + 3]
        if peak == start:
            matrix[peak, band] = 1
        else:
            rising = np.arange(start, peak + 1)
            matrix[rising, band] = (rising - start) / (peak - start)
        falling = np.arange(peak, end)
        if end > peak:
            matrix[falling, band] = (end - falling) / (end - peak)
    return matrix.astype(dtype_of(output_datatype))
