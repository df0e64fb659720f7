"""Codecs: how a vector of values becomes bytes on the wire."""

from __future__ import annotations

from caldera.compress.codecs.codec import Codec, HalfPrecisionCodec, LosslessCodec, RawCodec
from caldera.compress.codecs.quantised import QsgdCodec, SignCodec, TernaryCodec

__all__ = [
    "Codec",
    "HalfPrecisionCodec",
    "LosslessCodec",
    "QsgdCodec",
    "RawCodec",
    "SignCodec",
    "TernaryCodec",
]
