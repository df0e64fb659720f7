"""What kaldi-native-fbank, librosa and kaldiio made of the same input: `reference.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "reference.json").read_text())


def signal(count: int = 2400, rate: int = 16000) -> np.ndarray:
    """A tone, a rising one, and something like noise, as 16-bit numbers."""
    t = np.arange(count) / rate
    rising = 1500 * np.sin(2 * np.pi * 1700 * t * (1 + 3 * t))
    noise = 700 * np.cos(np.arange(count) ** 2 * 0.37)
    return (3000 * np.sin(2 * np.pi * 440 * t) + rising + noise).astype("float32")


def compare(name: str, found: np.ndarray, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    """The first and the last frame against the oracle's."""
    wanted = REFERENCE[name]
    assert list(found.shape) == wanted["shape"]
    for frame, key in ((0, "first"), (-1, "last")):
        np.testing.assert_allclose(found[frame], wanted[key], rtol=rtol, atol=atol)
