"""Codes: how a vector of values becomes bytes on the wire. One a file."""

from __future__ import annotations

from caldera.compress.codecs._base import Codec
from caldera.compress.codecs.half_precision import HalfPrecisionCodec
from caldera.compress.codecs.lossless import LosslessCodec
from caldera.compress.codecs.qsgd import QsgdCodec
from caldera.compress.codecs.raw import RawCodec
from caldera.compress.codecs.sign import SignCodec
from caldera.compress.codecs.ternary import TernaryCodec

__all__ = [
    "Codec",
    "HalfPrecisionCodec",
    "LosslessCodec",
    "QsgdCodec",
    "RawCodec",
    "SignCodec",
    "TernaryCodec",
]
