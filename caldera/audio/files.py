"""Sound files: wav through the standard library, flac and others through soundfile; resampling."""

from __future__ import annotations

import math
import wave
from fractions import Fraction
from functools import lru_cache
from os import PathLike, fspath
from os.path import isfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.base.file_access import check_asked
from caldera.base.registry import optional_import
from caldera.core.tensor.dtype import real_array_of
from caldera.errors import ConfigError, DataError
from caldera.io.files import created

SUFFIXES = (".wav", ".flac", ".ogg")
"""Names of files that are sounds."""
MOST_RATE = 10_000_000
Channels = Literal["mean", "first", "all"]
_ZEROS = 16
"""Zero crossings of the filter on each side: what resampling keeps is right to about 1e-4."""
_BLOCK = 1 << 20
"""Maximum number of elements of windows that are resampled as a block."""
_KEPT = 0.97
"""The part of the frequencies below half the lower rate that resampling keeps."""


class Sound(NamedTuple):
    """Samples with their rate; float32 from -1 to 1 unless another scale was requested.

    >>> import numpy as np
    >>> from caldera import audio
    >>> samples, rate = audio.Sound(np.zeros(8000, "float32"), 8000)
    """

    samples: np.ndarray
    rate: int


def read(
    path: str | PathLike[str],
    rate: int | None = None,
    *,
    channels: Channels = "mean",
    scale: float = 1.0,
) -> Sound:
    """Read the samples of a file, (samples,), resampled to `rate` samples a second if set.

    Channels are averaged, or the first is used; "all" returns (channels, samples). `scale` is the
    value of the loudest sound that a file can contain; Kaldi's features require 32768.

    >>> import numpy as np
    >>> from caldera import audio
    >>> audio.write("tone.wav", np.sin(np.arange(800.0) / 5), rate=8000)
    >>> sound = audio.read("tone.wav", rate=16000)
    >>> sound.samples.shape, sound.rate
    ((1600,), 16000)
    """
    require(
        channels in ("mean", "first", "all"),
        "audio.read",
        "channels='mean', 'first' or 'all'",
        repr(channels),
    )
    name = Path(fspath(path))
    require(isfile(name), "audio.read", "a file", f"{name}, which there is not", error=DataError)
    found, own_rate = _read_wav(name) if name.suffix.lower() == ".wav" else _read_other(name)
    if channels == "mean":
        found = found.mean(axis=0, keepdims=True)
    picked = found if channels == "all" else found[0]
    samples = (picked * scale).astype(np.float32)
    if rate is not None and rate != own_rate:
        _check_resampled(name, samples, own_rate, rate)
        return Sound(resample(samples, own_rate, rate), rate)
    return Sound(samples, own_rate)


def write(path: str | PathLike[str], samples: Any, rate: int) -> None:
    """Write samples from -1 to 1, (samples,) or (channels, samples), as a wav file of 16 bits.

    Larger values are clipped.

    >>> from caldera import audio
    >>> audio.write("two.wav", [0.5, -2.0], rate=8000)
    >>> audio.read("two.wav").samples.tolist()
    [0.5, -1.0]
    """
    array = np.atleast_2d(real_array_of(samples, "audio.write").astype(np.float64))
    _check_rates("audio.write", rate)
    require(
        array.ndim == 2 and np.isfinite(array).all(),
        "audio.write",
        "finite samples (samples,) or (channels, samples)",
        f"shape {array.shape}",
        error=DataError,
    )
    whole = np.clip(np.round(array.T * 32768), -32768, 32767).astype("<i2")
    with created(path, "wb", "audio.write") as opened, wave.Wave_write(opened) as file:
        file.setnchannels(array.shape[0])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())


def _read_wav(path: Path) -> tuple[np.ndarray, int]:
    """Return samples (channels, samples) from -1 to 1, and their rate."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            check_asked(file.getnframes() * channels * 8, f"{path}", held=path.stat().st_size)
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        # Other packages may support formats that the standard library lacks (floats, compression).
        return _read_other(path)
    usable = len(raw) // (width * channels) * width * channels
    return _wide(np.frombuffer(raw[:usable], np.uint8), width).reshape(-1, channels).T, rate


def _wide(raw: np.ndarray, width: int) -> np.ndarray:
    if width == 1:
        return (raw.astype(np.float64) - 128) / 128
    if width == 3:
        # The three bytes become the upper ones of four.
        raw = np.pad(raw.reshape(-1, 3), ((0, 0), (1, 0))).reshape(-1)
        width = 4
    return raw.view({2: "<i2", 4: "<i4"}[width]).astype(np.float64) / (1 << (8 * width - 1))


def _read_other(path: Path) -> tuple[np.ndarray, int]:
    soundfile = optional_import("soundfile", "'caldera[audio]'", f"audio.read of {path.name}")
    try:
        about = soundfile.info(str(path))
        check_asked(about.frames * about.channels * 8, f"{path}", held=path.stat().st_size)
        samples, rate = soundfile.read(str(path), always_2d=True)
    except RuntimeError as error:
        raise DataError.build(
            "audio.read", expected="a sound file (wav, flac, ogg)", got=f"{path}: {error}"
        ) from None
    return samples.T, int(rate)


# --- resampling


def resample(samples: Any, old: int, new: int) -> np.ndarray:
    """Return the same sound in another number of samples a second, along the last axis.

    >>> import numpy as np
    >>> from caldera import audio
    >>> tone = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000).astype("float32")
    >>> higher = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    >>> bool(np.abs(audio.resample(tone, 8000, 16000)[100:-100] - higher[100:-100]).max() < 1e-3)
    True
    """
    _check_rates("audio.resample", old, new)
    array = real_array_of(samples, "audio.resample")
    require(array.ndim, "audio.resample", "samples along an axis", "a number", error=DataError)
    if array.dtype.kind != "f":
        array = array.astype(np.float32)
    ratio = Fraction(new, old)
    if ratio == 1:
        return array.copy()
    up, down = ratio.numerator, ratio.denominator
    taps, reach = _filters(up, down)
    length = -(-array.shape[-1] * up // down)
    padded = np.zeros((*array.shape[:-1], array.shape[-1] + 2 * reach + 2), array.dtype)
    padded[..., reach : reach + array.shape[-1]] = array
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps.shape[1], axis=-1)
    taps = taps.astype(array.dtype)
    found = np.empty((*array.shape[:-1], length), array.dtype)
    # In blocks, since each new sample needs a separate window.
    block = max(1, _BLOCK // taps.shape[1])
    for start in range(0, length, block):
        # New sample k is between two old ones; its weights repeat with period `up`.
        k = np.arange(start, min(start + block, length))
        weighted = windows[..., k * down // up, :], taps[k % up]
        found[..., start : start + block] = np.einsum("...kw,kw->...k", *weighted)
    return found


def _check_resampled(path: Path, samples: np.ndarray, old: int, new: int) -> None:
    """Refuse a file whose rate makes much of few samples, or a filter of many weights."""
    _check_rates("audio.resample", old, new)
    ratio = Fraction(new, old)
    # Each weight occurs in a few arrays while the filter is made.
    taps = 8 * ratio.numerator * 2 * _reach(ratio)
    wanted = 8 * (math.ceil(samples.size * ratio) + taps)
    check_asked(wanted, f"{path}, from {old} to {new} samples a second", held=samples.nbytes)


def _reach(ratio: Fraction) -> int:
    """Return the number of old samples on each side that contribute to a new one."""
    return math.ceil(_ZEROS / (min(1.0, float(ratio)) * _KEPT))


def _check_rates(where: str, *rates: int) -> None:
    if not all(1 <= rate <= MOST_RATE for rate in rates):
        raise ConfigError.build(
            where,
            expected=f"samples a second from 1 to {MOST_RATE}",
            got=" and ".join(map(repr, rates)),
        )


@lru_cache(maxsize=32)
def _filters(up: int, down: int) -> tuple[np.ndarray, int]:
    """Return the weights of old samples for `up` new ones, and the number before the first."""
    cut, reach = min(1.0, up / down) * _KEPT, _reach(Fraction(up, down))
    places = np.arange(2 * reach + 2)[None, :] - reach
    when = places - (np.arange(up) * down % up / up)[:, None]
    window = np.where(np.abs(when) <= reach, np.cos(np.pi * when / reach / 2) ** 2, 0)
    taps = np.sinc(when * cut) * cut * window
    return taps / taps.sum(1, keepdims=True), reach
