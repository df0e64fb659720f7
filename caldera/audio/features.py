"""Features of sound as expressions: they have gradients, and run wherever a network does.

Samples are (N, samples) or (samples,); time is the last but one axis of what comes out. `fbank` and
`mfcc` are Kaldi's, number by number (`compute-fbank-feats`, `compute-mfcc-feats` without dither);
`stft` and `mel_spectrogram` are librosa's, and `cepstra(power_to_db(mel_spectrogram(x, rate)), 20)`
is its `mfcc`. Kaldi's take samples as 16-bit numbers: `audio.read(..., scale=32768)`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.errors import ConfigError, ShapeError

MOST_SAMPLES = 1 << 24
"""Of a frame."""
MOST_FRAMES = 1000
"""That are put beside a frame on one side."""
_TINY = float(np.finfo(np.float32).eps)


def frame_signal(x: Any, length: int, hop: int) -> Expr:
    """The frames of `length` samples that begin every `hop` samples: (..., frames, length).

    The last one ends before the signal does.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.frame_signal(cd.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), length=3, hop=2).tolist()
    [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]]
    """
    x = _samples(x, "frame_signal")
    if min(length, hop) < 1 or x.shape[-1] < length:
        raise ShapeError.build(
            "audio.frame_signal",
            expected=f"at least {length} samples, and a hop of 1 or more",
            got=f"samples of shape {tuple(x.shape)} and hop={hop}",
            hint="make the signal longer with op.pad",
        )
    count = 1 + (x.shape[-1] - length) // hop
    places = np.arange(count)[:, None] * hop + np.arange(length)
    return op.gather(x, places, axis=-1)


def stft(
    x: Any, n_fft: int = 2048, hop: int | None = None, *, window: str = "hann", center: bool = True
) -> Expr:
    """The short-time Fourier transform, complex: (..., frames, 1 + n_fft // 2).

    A quarter of `n_fft` is the usual `hop`. With `center`, zeros are put around the signal, so that
    frame t is about sample t * hop. librosa has frequencies first and frames last.

    >>> import caldera as cd
    >>> from caldera import audio, op
    >>> spectra = audio.stft(op.sin(op.arange(64.0)), n_fft=16)
    >>> spectra.shape, spectra.dtype.name
    ((17, 9), 'complex64')
    """
    _check_n_fft("audio.stft", n_fft)
    hop = n_fft // 4 if hop is None else hop
    x = _samples(x, "stft")
    if center:
        x = op.pad(x, ((0, 0),) * (x.ndim - 1) + ((n_fft // 2, n_fft // 2),))
    frames = frame_signal(x, n_fft, hop)
    return op.rfft(frames * _constant(_window(window, n_fft, periodic=True), frames))


def mel_spectrogram(
    x: Any,
    rate: float,
    bins: int = 128,
    n_fft: int = 2048,
    hop: int | None = None,
    *,
    low: float = 0.0,
    high: float | None = None,
    htk: bool = False,
    window: str = "hann",
    center: bool = True,
) -> Expr:
    """The power of `bins` triangular bands, evenly spaced in mel: (..., frames, bins), as librosa.

    >>> import caldera as cd
    >>> from caldera import audio, op
    >>> audio.mel_spectrogram(op.sin(op.arange(4000.0)), rate=8000, bins=40, n_fft=512).shape
    (32, 40)
    """
    power = power_spectrum(stft(x, n_fft, hop, window=window, center=center))
    bands = mel_filters(rate, n_fft, bins, low, high, htk=htk)
    return power @ _constant(bands.T, power)


def power_spectrum(spectrum: Any) -> Expr:
    """|z|^2, with a derivative at 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.power_spectrum(cd.tensor([3 + 4j])).tolist()
    [25.0]
    """
    return op.square(op.real(spectrum)) + op.square(op.imag(spectrum))


def power_to_db(power: Any, floor: float = 1e-10, range_db: float | None = 80.0) -> Expr:
    """10 log10(power), not below `floor`, nor `range_db` below the largest of all.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.power_to_db(cd.tensor([1.0, 10.0, 0.0])).tolist()
    [0.0, 10.0, -70.0]
    """
    decibels = 10.0 * op.log10(op.maximum(power, floor))
    return decibels if range_db is None else op.maximum(decibels, op.max(decibels) - range_db)


def fbank(
    x: Any,
    rate: float,
    bins: int = 23,
    *,
    frame_length: float = 0.025,
    frame_shift: float = 0.010,
    low: float = 20.0,
    high: float = 0.0,
    preemphasis: float = 0.97,
    window: str = "povey",
) -> Expr:
    """The logarithms of the power in `bins` mel bands, as Kaldi has them: (..., frames, bins).

    Lengths are in seconds; a `high` of 0 or less is counted down from half the rate.

    >>> import numpy as np
    >>> from caldera import audio
    >>> audio.fbank(np.sin(np.arange(8000.0)).astype("float32") * 1e4, rate=8000, bins=40).shape
    (98, 40)
    """
    power, _ = _kaldi_power(x, rate, frame_length, frame_shift, preemphasis, window)
    return _log_bands(power, rate, bins, low, high)


def mfcc(
    x: Any,
    rate: float,
    count: int = 13,
    bins: int = 23,
    *,
    lifter: float = 22.0,
    energy: bool = True,
    frame_length: float = 0.025,
    frame_shift: float = 0.010,
    low: float = 20.0,
    high: float = 0.0,
    preemphasis: float = 0.97,
    window: str = "povey",
) -> Expr:
    """Mel-frequency cepstral coefficients, as Kaldi has them: (..., frames, count).

    With `energy` the first is the logarithm of the frame's energy, before pre-emphasis.

    >>> import numpy as np
    >>> from caldera import audio
    >>> audio.mfcc(np.sin(np.arange(8000.0)).astype("float32") * 1e4, rate=8000).shape
    (98, 13)
    """
    power, total = _kaldi_power(x, rate, frame_length, frame_shift, preemphasis, window)
    found = cepstra(_log_bands(power, rate, bins, low, high), count, lifter)
    if not energy:
        return found
    first = op.log(op.maximum(total, _TINY))
    return op.concat([op.reshape(first, (*first.shape, 1)), found[..., 1:]], axis=-1)


def cepstra(bands: Any, count: int, lifter: float = 0.0) -> Expr:
    """The first `count` coefficients of the cosine transform along the last axis, liftered if
    `lifter` is not 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.cepstra(cd.tensor([1.0, 1.0, 1.0, 1.0]), count=2).tolist()
    [2.0, 0.0]
    """
    bands = _expr(bands, "audio.cepstra", 1)
    size = bands.shape[-1]
    if not 1 <= count <= size:
        raise ConfigError.build(
            "audio.cepstra",
            expected=f"a count from 1 to {size}, the number of bands",
            got=f"{count}",
        )
    n, k = np.arange(size), np.arange(count)
    matrix = np.cos(np.pi / size * (n[:, None] + 0.5) * k) * np.sqrt(2 / size)
    matrix[:, 0] = np.sqrt(1 / size)
    if lifter:
        matrix = matrix * (1 + 0.5 * lifter * np.sin(np.pi * k / lifter))
    # What cancels in a product of halves is exact here but for rounding.
    matrix[np.abs(matrix) < 1e-15] = 0
    return bands @ _constant(matrix, bands)


def deltas(x: Any, order: int = 2, window: int = 2) -> Expr:
    """Features with their first `order` derivatives in time behind them, as Kaldi's `add-deltas`.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> line = cd.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]])
    >>> audio.deltas(line, order=1)[2:4].tolist()
    [[2.0, 1.0], [3.0, 1.0]]
    """
    x = _expr(x, "audio.deltas", 2)
    if not (0 <= order <= MOST_FRAMES and 1 <= window <= MOST_FRAMES):
        raise ConfigError.build(
            "audio.deltas",
            expected=f"order= from 0 and window= from 1 to {MOST_FRAMES}",
            got=f"{order} and {window}",
        )
    frames = x.shape[-2]
    kernel, scales = np.ones(1), []
    base = np.arange(-window, window + 1) / (2 * np.sum(np.arange(1, window + 1) ** 2))
    for _ in range(order):
        kernel = np.convolve(kernel, base)
        scales.append(kernel)
    parts = [x]
    for each in scales:
        reach = len(each) // 2
        # One product with a matrix of frames, whose ends repeat the first and the last.
        matrix = np.zeros((frames, frames))
        for offset, weight in zip(range(-reach, reach + 1), each, strict=True):
            np.add.at(
                matrix,
                (np.arange(frames), np.clip(np.arange(frames) + offset, 0, frames - 1)),
                weight,
            )
        parts.append(_constant(matrix, x) @ x)
    return op.concat(parts, axis=-1)


def normalise(x: Any, lengths: Any = None, *, variance: bool = True, eps: float = 1e-5) -> Expr:
    """Features with mean 0 and variance 1 over the frames of each sample (CMVN).

    `lengths` says how many frames of each sample count; those behind become 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.normalise(cd.tensor([[[1.0], [3.0], [9.0]]]), lengths=[2]).tolist()
    [[[-1.0], [1.0], [0.0]]]
    """
    x = _expr(x)
    if lengths is None:
        centred = x - op.mean(x, axis=-2, keepdims=True)
        if not variance:
            return centred
        size = op.mean(op.square(centred), axis=-2, keepdims=True)
        return centred * op.rsqrt(op.maximum(size, eps))
    inside = mask(lengths, x.shape[-2])
    weight = op.reshape(op.cast(inside, x.dtype), (*inside.shape, 1))
    count = op.maximum(op.sum(weight, axis=-2, keepdims=True), 1.0)
    centred = (x - op.sum(x * weight, axis=-2, keepdims=True) / count) * weight
    if not variance:
        return centred
    size = op.sum(op.square(centred), axis=-2, keepdims=True) / count
    return centred * op.rsqrt(op.maximum(size, eps))


def mask(lengths: Any, frames: int) -> Expr:
    """Which frames lie before the end of each sample: (N, frames).

    >>> from caldera import audio
    >>> audio.mask([1, 2], frames=3).tolist()
    [[True, False, False], [True, True, False]]
    """
    counts = op.cast(_expr(lengths), "int64")
    return op.arange(frames) < op.reshape(counts, (-1, 1))


def splice(x: Any, left: int, right: int) -> Expr:
    """Each frame with those around it, side by side; the ends are repeated (Kaldi's
    `splice-feats`).

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.splice(cd.tensor([[1.0], [2.0], [3.0]]), left=1, right=1).tolist()
    [[1.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 3.0]]
    """
    x = _expr(x, "audio.splice", 2)
    if not (0 <= left <= MOST_FRAMES and 0 <= right <= MOST_FRAMES):
        raise ConfigError.build(
            "audio.splice",
            expected=f"left= and right= from 0 to {MOST_FRAMES}",
            got=f"{left} and {right}",
        )
    frames = x.shape[-2]
    parts = [
        op.gather(x, np.clip(np.arange(frames) + offset, 0, frames - 1), axis=-2)
        for offset in range(-left, right + 1)
    ]
    return op.concat(parts, axis=-1)


# --- what they are made of


def mel_filters(
    rate: float,
    n_fft: int,
    bins: int,
    low: float = 0.0,
    high: float | None = None,
    *,
    htk: bool = False,
) -> np.ndarray:
    """The weights of triangular bands, (bins, 1 + n_fft // 2), each of area 1: librosa's.

    >>> from caldera import audio
    >>> audio.mel_filters(16000, 512, 40).shape
    (40, 257)
    """
    _check_n_fft("audio.mel_filters", n_fft)
    top = rate / 2 if high is None else high
    _check_band(bins, low, top, rate)
    to_mel, to_hertz = (_htk_mel, _htk_hertz) if htk else (_slaney_mel, _slaney_hertz)
    first, last = to_mel(np.array([low, top])).tolist()
    edges = to_hertz(np.linspace(first, last, bins + 2))
    places = np.linspace(0, rate / 2, 1 + n_fft // 2)
    rising = (places - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - places) / np.diff(edges)[1:, None]
    area = 2.0 / (edges[2:] - edges[:-2])
    return np.maximum(0, np.minimum(rising, falling)) * area[:, None]


@lru_cache(maxsize=64)
def _kaldi_filters(rate: float, n_fft: int, bins: int, low: float, high: float) -> np.ndarray:
    """Triangles in mel, of height 1; the last frequency belongs to none."""
    top = high if high > 0 else rate / 2 + high
    _check_band(bins, low, top, rate)
    places = _kaldi_mel(np.arange(n_fft // 2) * rate / n_fft)
    edges = np.linspace(_kaldi_mel(np.array(low)), _kaldi_mel(np.array(top)), bins + 2)
    step = edges[1] - edges[0]
    height = 1 - np.abs(places - edges[1:-1, None]) / step
    return np.pad(np.maximum(height, 0), ((0, 0), (0, 1)))


def _check_band(bins: int, low: float, top: float, rate: float) -> None:
    if not (bins >= 1 and 0 <= low < top <= rate / 2):
        raise ConfigError.build(
            "audio",
            expected=f"some bands between 0 and half the rate, {rate / 2:g}",
            got=f"{bins} from {low:g} to {top:g}",
        )


def _kaldi_mel(hertz: np.ndarray) -> np.ndarray:
    return 1127.0 * np.log(1.0 + hertz / 700.0)


def _htk_mel(hertz: np.ndarray) -> np.ndarray:
    return 2595.0 * np.log10(1.0 + hertz / 700.0)


def _htk_hertz(mel: np.ndarray) -> np.ndarray:
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


_STEP, _BREAK, _LOG_STEP = 200.0 / 3, 1000.0, math.log(6.4) / 27.0
"""Slaney's scale: straight up to 1 kHz, logarithmic from there."""


def _slaney_mel(hertz: np.ndarray) -> np.ndarray:
    above = _BREAK / _STEP + np.log(np.maximum(hertz, _BREAK) / _BREAK) / _LOG_STEP
    return np.where(hertz < _BREAK, hertz / _STEP, above)


def _slaney_hertz(mel: np.ndarray) -> np.ndarray:
    above = _BREAK * np.exp(_LOG_STEP * (mel - _BREAK / _STEP))
    return np.where(mel < _BREAK / _STEP, mel * _STEP, above)


def _window(name: str, length: int, *, periodic: bool) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / (length if periodic else max(length - 1, 1))
    known = {
        "hann": lambda: 0.5 - 0.5 * np.cos(angle),
        "hamming": lambda: 0.54 - 0.46 * np.cos(angle),
        "povey": lambda: (0.5 - 0.5 * np.cos(angle)) ** 0.85,
        "blackman": lambda: 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle),
        "rectangular": lambda: np.ones(length),
    }
    if name not in known:
        raise ConfigError.build(
            "audio", expected="window= one of " + ", ".join(known), got=repr(name)
        )
    return known[name]()


def _kaldi_power(
    x: Any, rate: float, frame_length: float, frame_shift: float, preemphasis: float, window: str
) -> tuple[Expr, Expr]:
    """Power spectra of the frames, and the energy of each before anything but its mean is gone."""
    if not all(0 < each < 1e6 for each in (frame_length, frame_shift)):
        raise ConfigError.build(
            "audio.fbank",
            expected="frame_length= and frame_shift= in seconds, above 0",
            got=f"{frame_length} and {frame_shift}",
        )
    length, hop = round(rate * frame_length), round(rate * frame_shift)
    n_fft = 1 << (length - 1).bit_length()
    frames = frame_signal(x, length, hop)
    frames = frames - op.mean(frames, axis=-1, keepdims=True)
    energy = op.sum(op.square(frames), axis=-1)
    before = op.concat([frames[..., :1], frames[..., :-1]], axis=-1)
    frames = (frames - preemphasis * before) * _constant(
        _window(window, length, periodic=False), frames
    )
    return power_spectrum(op.rfft(frames, n=n_fft)), energy


def _log_bands(power: Expr, rate: float, bins: int, low: float, high: float) -> Expr:
    filters = _kaldi_filters(rate, 2 * (power.shape[-1] - 1), bins, low, high)
    return op.log(op.maximum(power @ _constant(filters.T, power), _TINY))


def _expr(x: Any, where: str = "", axes: int = 0) -> Expr:
    found = x if isinstance(x, Expr) else Expr(lift(x))
    if found.ndim < axes:
        wanted = "frames of features, (..., frames, bins)" if axes == 2 else "bands along an axis"
        raise ShapeError.build(where, expected=wanted, got=f"shape {tuple(found.shape)}")
    return found


def _check_n_fft(where: str, n_fft: int) -> None:
    if not 1 <= n_fft <= MOST_SAMPLES:
        raise ConfigError.build(where, expected=f"n_fft= from 1 to {MOST_SAMPLES}", got=repr(n_fft))


def _samples(x: Any, name: str) -> Expr:
    x = _expr(x)
    if x.ndim not in (1, 2) or x.dtype.kind != "f":
        raise ShapeError.build(
            f"audio.{name}",
            expected="samples (samples,) or (N, samples), floating-point numbers",
            got=f"shape {tuple(x.shape)} of {x.dtype}",
            hint="audio.read gives such; channels are averaged with channels='mean'",
        )
    return x


def _constant(array: np.ndarray, like: Expr) -> np.ndarray:
    return np.ascontiguousarray(array, like.dtype)
