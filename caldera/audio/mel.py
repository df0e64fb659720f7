"""Mel scales and their triangular filters, as Kaldi, HTK and Slaney define them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from caldera.base.arguments import require
from caldera.errors import ConfigError

MOST_SAMPLES = 1 << 24
"""Maximum number of samples in a frame."""
_STEP, _BREAK, _LOG_STEP = 200.0 / 3, 1000.0, math.log(6.4) / 27.0


def mel_filters(
    rate: float,
    n_fft: int,
    bins: int,
    low: float = 0.0,
    high: float | None = None,
    *,
    htk: bool = False,
) -> np.ndarray:
    """Return the weights of triangular bands, (bins, 1 + n_fft // 2), each of area 1: librosa's.

    >>> from caldera import audio
    >>> audio.mel_filters(16000, 512, 40).shape
    (40, 257)
    """
    check_n_fft("audio.mel_filters", n_fft)
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
def kaldi_filters(rate: float, n_fft: int, bins: int, low: float, high: float) -> np.ndarray:
    """Return triangles in mel, of height 1; the last frequency belongs to none."""
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


def _slaney_mel(hertz: np.ndarray) -> np.ndarray:
    above = _BREAK / _STEP + np.log(np.maximum(hertz, _BREAK) / _BREAK) / _LOG_STEP
    return np.where(hertz < _BREAK, hertz / _STEP, above)


def _slaney_hertz(mel: np.ndarray) -> np.ndarray:
    above = _BREAK * np.exp(_LOG_STEP * (mel - _BREAK / _STEP))
    return np.where(mel < _BREAK / _STEP, mel * _STEP, above)


def check_n_fft(where: str, n_fft: int) -> None:
    require(1 <= n_fft <= MOST_SAMPLES, where, f"n_fft= from 1 to {MOST_SAMPLES}", repr(n_fft))
