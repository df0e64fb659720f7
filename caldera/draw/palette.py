"""The colours of a picture: one for each precision, and those of everything else."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.tensor.dtype import DType, bfloat16, bool_, float16, float32, float64


@dataclass(frozen=True)
class DtypeColour:
    """The strong and the pale shade of one colour, and what it stands for."""

    name: str
    strong: str
    pale: str


# Told apart by people who see colours differently; white text is readable on each strong shade.
FLOAT64 = DtypeColour("float64", "#7a3f9d", "#f1e6f8")
FLOAT32 = DtypeColour("float32", "#1f5fae", "#e4eefa")
FLOAT16 = DtypeColour("float16", "#c04a08", "#fde9db")
BFLOAT16 = DtypeColour("bfloat16", "#8a6500", "#faf0c8")
INTEGER = DtypeColour("integers", "#1d7a4c", "#def3e7")
BOOL = DtypeColour("bool", "#5b6470", "#e9ebee")

DTYPE_COLOURS = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INTEGER, BOOL)

_OF_DTYPE = {
    float64: FLOAT64, float32: FLOAT32, float16: FLOAT16, bfloat16: BFLOAT16, bool_: BOOL,
}  # fmt: skip

PAPER = "#f6f7f9"
CARD = "#ffffff"
LINE = "#d5d9df"
TEXT = "#1c2430"
QUIET = "#5f6b7a"
OUTPUT = "#1c2430"
UPDATE = "#a3194e"


def ink(dtype: DType) -> DtypeColour:
    """The colour of a precision."""
    return _OF_DTYPE.get(dtype, INTEGER)
