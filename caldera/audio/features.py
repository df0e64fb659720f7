"""Features of sound as expressions: they have gradients, and run on every device.

Samples are (N, samples) or (samples,); time is the last but one axis of the result. `fbank` and
`mfcc` are Kaldi's, number by number (`compute-fbank-feats`, `compute-mfcc-feats` without dither);
`stft` and `mel_spectrogram` are librosa's, and `cepstra(power_to_db(mel_spectrogram(x, rate)), 20)`
is its `mfcc`. Kaldi's take samples as 16-bit numbers: `audio.read(..., scale=32768)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.audio.mel import check_n_fft, kaldi_filters, mel_filters
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, lift
from caldera.errors import ShapeError

MOST_FRAMES = 1000
"""Maximum number of neighbouring frames on each side of a spliced frame."""
_TINY = float(np.finfo(np.float32).eps)


def frame_signal(x: Any, length: int, hop: int) -> Expr:
    """Return the frames of `length` samples that begin every `hop` samples: (..., frames, length).

    The last one ends before the signal does.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.frame_signal(cd.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), length=3, hop=2).tolist()
    [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]]
    """
    x = _samples(x, "frame_signal")
    require(
        min(length, hop) >= 1 and x.shape[-1] >= length,
        "audio.frame_signal",
        f"at least {length} samples, and a hop >= 1",
        f"samples of shape {tuple(x.shape)} and hop={hop}",
        hint="make the signal longer with op.pad",
        error=ShapeError,
    )
    count = 1 + (x.shape[-1] - length) // hop
    places = np.arange(count)[:, None] * hop + np.arange(length)
    return op.gather(x, places, axis=-1)


def stft(
    x: Any, n_fft: int = 2048, hop: int | None = None, *, window: str = "hann", center: bool = True
) -> Expr:
    """Return the short-time Fourier transform, complex: (..., frames, 1 + n_fft // 2).

    A quarter of `n_fft` is the usual `hop`. With `center`, zeros are put around the signal, so that
    frame t is about sample t * hop. librosa has frequencies first and frames last.

    >>> import caldera as cd
    >>> from caldera import audio, op
    >>> spectra = audio.stft(op.sin(op.arange(64.0)), n_fft=16)
    >>> spectra.shape, spectra.dtype.name
    ((17, 9), 'complex64')
    """
    check_n_fft("audio.stft", n_fft)
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
    """Return the power of `bins` triangular mel bands: (..., frames, bins), as librosa.

    >>> import caldera as cd
    >>> from caldera import audio, op
    >>> audio.mel_spectrogram(op.sin(op.arange(4000.0)), rate=8000, bins=40, n_fft=512).shape
    (32, 40)
    """
    power = power_spectrum(stft(x, n_fft, hop, window=window, center=center))
    bands = mel_filters(rate, n_fft, bins, low, high, htk=htk)
    return power @ _constant(bands.T, power)


def power_spectrum(spectrum: Any) -> Expr:
    """Compute |z|^2, with a derivative at 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.power_spectrum(cd.tensor([3 + 4j])).tolist()
    [25.0]
    """
    return op.square(op.real(spectrum)) + op.square(op.imag(spectrum))


def power_to_db(power: Any, floor: float = 1e-10, range_db: float | None = 80.0) -> Expr:
    """Compute 10 log10(power), at least `floor` and within `range_db` of the largest of all.

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
    """Return the logarithms of the power in `bins` mel bands, as Kaldi: (..., frames, bins).

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
    """Return mel-frequency cepstral coefficients, as Kaldi has them: (..., frames, count).

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
    """Return the first `count` coefficients of the cosine transform along the last axis, liftered
    if `lifter` is not 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.cepstra(cd.tensor([1.0, 1.0, 1.0, 1.0]), count=2).tolist()
    [2.0, 0.0]
    """
    bands = _expr(bands, "audio.cepstra", 1)
    size = bands.shape[-1]
    require(
        1 <= count <= size, "audio.cepstra", f"a count from 1 to {size}, the number of bands", count
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
    """Append the first `order` derivatives in time to features, as Kaldi's `add-deltas`.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> line = cd.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]])
    >>> audio.deltas(line, order=1)[2:4].tolist()
    [[2.0, 1.0], [3.0, 1.0]]
    """
    x = _expr(x, "audio.deltas", 2)
    require(
        0 <= order <= MOST_FRAMES and 1 <= window <= MOST_FRAMES,
        "audio.deltas",
        f"order= from 0 and window= from 1 to {MOST_FRAMES}",
        f"{order} and {window}",
    )
    frames, parts, kernel = x.shape[-2], [x], np.ones(1)
    base = np.arange(-window, window + 1) / (2 * np.sum(np.arange(1, window + 1) ** 2))
    for number in range(1, order + 1):
        kernel = np.convolve(kernel, base)
        # One product with a matrix of frames, whose ends repeat the first and the last.
        matrix = np.zeros((frames, frames))
        for offset, weight in enumerate(kernel, -number * window):
            np.add.at(matrix, (np.arange(frames), _shifted(frames, offset)), weight)
        parts.append(_constant(matrix, x) @ x)
    return op.concat(parts, axis=-1)


def _shifted(frames: int, offset: int) -> np.ndarray:
    """Return the frame indices shifted by `offset`; the ends are repeated."""
    return np.clip(np.arange(frames) + offset, 0, frames - 1)


def normalise(x: Any, lengths: Any = None, *, variance: bool = True, eps: float = 1e-5) -> Expr:
    """Normalise features to mean 0 and variance 1 over the frames of each sample (CMVN).

    `lengths` contains the number of valid frames of each sample; later frames become 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.normalise(cd.tensor([[[1.0], [3.0], [9.0]]]), lengths=[2]).tolist()
    [[[-1.0], [1.0], [0.0]]]
    """
    x = _expr(x)
    require(x.ndim > 1, "audio.normalise", "features of (frames, bands)", f"shape {x.shape}")
    if lengths is None:
        centred = x - op.mean(x, axis=-2, keepdims=True)
        size = op.mean(op.square(centred), axis=-2, keepdims=True)
    else:
        inside = mask(lengths, x.shape[-2])
        weight = op.reshape(op.cast(inside, x.dtype), (*inside.shape, 1))
        count = op.maximum(op.sum(weight, axis=-2, keepdims=True), 1.0)
        centred = (x - op.sum(x * weight, axis=-2, keepdims=True) / count) * weight
        size = op.sum(op.square(centred), axis=-2, keepdims=True) / count
    return centred * op.rsqrt(op.maximum(size, eps)) if variance else centred


def mask(lengths: Any, frames: int) -> Expr:
    """Return a mask of the frames before the end of each sample: (N, frames).

    >>> from caldera import audio
    >>> audio.mask([1, 2], frames=3).tolist()
    [[True, False, False], [True, True, False]]
    """
    return op.arange(frames) < op.reshape(op.cast(_expr(lengths), "int64"), (-1, 1))


def splice(x: Any, left: int, right: int) -> Expr:
    """Each frame with those around it, side by side; the ends are repeated (Kaldi's
    `splice-feats`).

    >>> import caldera as cd
    >>> from caldera import audio
    >>> audio.splice(cd.tensor([[1.0], [2.0], [3.0]]), left=1, right=1).tolist()
    [[1.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 3.0]]
    """
    x = _expr(x, "audio.splice", 2)
    require(
        0 <= left <= MOST_FRAMES and 0 <= right <= MOST_FRAMES,
        "audio.splice",
        f"left= and right= from 0 to {MOST_FRAMES}",
        f"{left} and {right}",
    )
    shifted = [_shifted(x.shape[-2], offset) for offset in range(-left, right + 1)]
    return op.concat([op.gather(x, places, axis=-2) for places in shifted], axis=-1)


# --- what they are made of


def _window(name: str, length: int, *, periodic: bool) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / (length if periodic else max(length - 1, 1))
    known = {
        "hann": lambda: 0.5 - 0.5 * np.cos(angle),
        "hamming": lambda: 0.54 - 0.46 * np.cos(angle),
        "povey": lambda: (0.5 - 0.5 * np.cos(angle)) ** 0.85,
        "blackman": lambda: 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle),
        "rectangular": lambda: np.ones(length),
    }
    require(name in known, "audio", "window= one of " + ", ".join(known), repr(name))
    return known[name]()


def _kaldi_power(
    x: Any, rate: float, frame_length: float, frame_shift: float, preemphasis: float, window: str
) -> tuple[Expr, Expr]:
    """Power spectra of the frames, and the energy of each before anything but its mean is gone."""
    require(
        all(0 < each < 1e6 for each in (rate, frame_length, frame_shift)),
        "audio.fbank",
        "rate= in Hz, frame_length= and frame_shift= in seconds, above 0",
        f"{rate}, {frame_length} and {frame_shift}",
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
    filters = kaldi_filters(rate, 2 * (power.shape[-1] - 1), bins, low, high)
    return op.log(op.maximum(power @ _constant(filters.T, power), _TINY))


def _expr(x: Any, where: str = "", axes: int = 0) -> Expr:
    found = x if isinstance(x, Expr) else Expr(lift(x))
    if found.ndim < axes:
        wanted = "frames of features, (..., frames, bins)" if axes == 2 else "bands along an axis"
        raise ShapeError.build(where, expected=wanted, got=f"shape {tuple(found.shape)}")
    return found


def _samples(x: Any, name: str) -> Expr:
    x = _expr(x)
    require(
        x.ndim in (1, 2) and x.dtype.kind == "f",
        f"audio.{name}",
        "samples (samples,) or (N, samples), floating-point numbers",
        f"shape {tuple(x.shape)} of {x.dtype}",
        hint="audio.read returns this shape; channels are averaged with channels='mean'",
        error=ShapeError,
    )
    return x


def _constant(array: np.ndarray, like: Expr) -> np.ndarray:
    return np.ascontiguousarray(array, like.dtype)
