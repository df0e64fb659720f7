"""Augmentation: noise at a given ratio and other speeds (arrays), SpecAugment (expressions)."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.audio.files import resample
from caldera.base.arguments import require, within
from caldera.compiler.lazy import Expr, lift
from caldera.core.tensor.dtype import real_array_of
from caldera.core.tensor.random import checked_seed
from caldera.errors import DataError

MOST_SNR = 1000


def add_noise(samples: Any, noise: Any, snr: float, seed: int = 0) -> np.ndarray:
    """Add a randomly drawn part of the noise, `snr` decibels below the samples.

    >>> import numpy as np
    >>> from caldera import audio
    >>> clean, noise = np.ones(1000, "float32"), np.random.default_rng(0).normal(size=4000)
    >>> added = audio.add_noise(clean, noise, snr=20.0) - clean
    >>> round(float(10 * np.log10(np.mean(clean**2) / np.mean(added**2))), 3)
    20.0
    """
    clean = real_array_of(samples, "audio.add_noise").astype(np.float32)
    sound = real_array_of(noise, "audio.add_noise").astype(np.float32)
    require(
        -MOST_SNR <= snr <= MOST_SNR,
        "audio.add_noise",
        f"snr= in dB, from -{MOST_SNR} to {MOST_SNR}",
        snr,
    )
    require(
        sound.ndim == 1 and sound.size and clean.ndim == 1,
        "audio.add_noise",
        "samples and noise with a single channel, (samples,)",
        f"{clean.shape} and {sound.shape}",
        error=DataError,
    )
    start = int(np.random.default_rng(checked_seed(seed, "add_noise")).integers(len(sound)))
    part = np.take(sound, np.arange(start, start + len(clean)), mode="wrap")
    power = float(np.mean(np.square(part, dtype=np.float64)))
    if power == 0.0:
        return clean
    wanted = float(np.mean(np.square(clean, dtype=np.float64))) / 10 ** (snr / 10)
    return (clean + part * np.float32(np.sqrt(wanted / power))).astype(np.float32)


def change_speed(samples: Any, factor: float) -> np.ndarray:
    """Return the same said `factor` times as fast, with a pitch that much higher.

    >>> import numpy as np
    >>> from caldera import audio
    >>> audio.change_speed(np.zeros(1100, "float32"), 1.1).shape
    (1000,)
    """
    require(0.1 <= factor <= 10, "audio.change_speed", "a factor from 0.1 to 10", factor)
    return resample(samples, round(factor * 100), 100)


def spec_augment(
    x: Any,
    *,
    bands: int = 2,
    band_width: int = 27,
    times: int = 2,
    time_width: int = 100,
    time_part: float = 1.0,
) -> Expr:
    """Mask random bands and stretches of time with zeros (SpecAugment).

    Features are (N, frames, bins). The widths are drawn uniformly up to the largest, at every step
    and for each sample; no stretch is longer than `time_part` of all frames. Use it only in
    training, on features of mean 0.

    >>> import caldera as cd
    >>> from caldera import audio
    >>> ones = cd.tensor([[[1.0] * 8] * 8])
    >>> hidden = audio.spec_augment(ones, bands=1, band_width=3, times=1, time_width=3).numpy()
    >>> int((hidden == 0).all(axis=1).sum()) <= 3
    True
    """
    x = x if isinstance(x, Expr) else Expr(lift(x))
    require(
        x.ndim == 3,
        "audio.spec_augment",
        "features (N, frames, bins)",
        f"shape {x.shape}",
        error=DataError,
    )
    samples, frames, bins = x.shape
    # More bands than bins would have no further effect.
    within("audio.spec_augment", "bands", bands, 0, bins)
    within("audio.spec_augment", "times", times, 0, frames)
    longest = min(time_width, int(time_part * frames))
    kept = _kept(samples, bins, bands, min(band_width, bins))
    other = _kept(samples, frames, times, longest)
    return x * op.cast(
        op.logical_and(
            op.reshape(kept, (samples, 1, bins)), op.reshape(other, (samples, frames, 1))
        ),
        x.dtype,
    )


def _kept(samples: int, length: int, count: int, widest: int) -> Expr:
    """Return a mask of the `length` positions of each sample outside all stretches."""
    places = op.cast(op.arange(length), "float32")
    kept = op.broadcast(op.cast(1.0, "bool"), (samples, length))
    for _ in range(count):
        width = op.floor(op.random_uniform((samples, 1)) * (widest + 1.0))
        start = op.floor(op.random_uniform((samples, 1)) * (float(length) - width + 1.0))
        taken = op.logical_and(places >= start, places < start + width)
        kept = op.logical_and(kept, op.logical_not(taken))
    return kept
