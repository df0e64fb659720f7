"""The one palette: colours of precisions, of lines in a chart, and of everything around them.

Pictures are drawn in the light colours. On a page, which knows each colour by name in a light and a
dark set, `named` turns those of a picture into the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from caldera.core.tensor.dtype import DType, bfloat16, bool_, float16, float32, float64


@dataclass(frozen=True)
class DtypeColour:
    """The colour of a precision: a strong and a pale shade, on a light and on a dark page."""

    name: str
    strong: str
    pale: str
    strong_on_dark: str
    pale_on_dark: str


# Told apart by people who see colours differently; white text is readable on each strong shade.
FLOAT64 = DtypeColour("float64", "#7a3f9d", "#f1e6f8", "#bb8fd8", "#30233c")
FLOAT32 = DtypeColour("float32", "#1f5fae", "#e4eefa", "#6ea8ee", "#182a42")
FLOAT16 = DtypeColour("float16", "#c04a08", "#fde9db", "#f0904f", "#3b2414")
BFLOAT16 = DtypeColour("bfloat16", "#8a6500", "#faf0c8", "#d3ab3a", "#332a10")
INTEGER = DtypeColour("integers", "#1d7a4c", "#def3e7", "#5cc08f", "#143023")
BOOL = DtypeColour("bool", "#5b6470", "#e9ebee", "#98a4b3", "#282f39")

DTYPE_COLOURS = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, INTEGER, BOOL)
_OF_DTYPE = {
    float64: FLOAT64,
    float32: FLOAT32,
    float16: FLOAT16,
    bfloat16: BFLOAT16,
    bool_: BOOL,
}

PAPER = "#f6f7f9"
CARD = "#ffffff"
LINE = "#d5d9df"
TEXT = "#1c2430"
QUIET = "#5f6b7a"
SOFT = "#eef0f3"
UPDATE = "#a3194e"
TARGET = "#e0186c"

_THEMES = {
    "paper": (PAPER, "#0f141a"),
    "card": (CARD, "#171d26"),
    "line": (LINE, "#2d3643"),
    "text": (TEXT, "#e7ebf0"),
    "quiet": (QUIET, "#9aa7b6"),
    "soft": (SOFT, "#252d38"),
    "update": (UPDATE, "#ee7aa4"),
    "target": (TARGET, "#ff6fa8"),
    "chosen": ("#eef4fb", FLOAT32.pale_on_dark),
    "on-strong": ("#ffffff", "#10161d"),
    "line0": (FLOAT32.strong, FLOAT32.strong_on_dark),
    "line1": (FLOAT16.strong, FLOAT16.strong_on_dark),
    "line2": (INTEGER.strong, INTEGER.strong_on_dark),
    "line3": (FLOAT64.strong, FLOAT64.strong_on_dark),
    "line4": (BFLOAT16.strong, BFLOAT16.strong_on_dark),
    "line5": (UPDATE, "#ee7aa4"),
    "line6": (BOOL.strong, BOOL.strong_on_dark),
    **{f"strong-{each.name}": (each.strong, each.strong_on_dark) for each in DTYPE_COLOURS},
    **{f"pale-{each.name}": (each.pale, each.pale_on_dark) for each in DTYPE_COLOURS},
}
LIGHT: Mapping[str, str] = {name: light for name, (light, _) in _THEMES.items()}
DARK: Mapping[str, str] = {name: dark for name, (_, dark) in _THEMES.items()}

CATEGORICAL = tuple(LIGHT[f"line{place}"] for place in range(7))
"""Of lines and bars that are told apart; dark enough for text."""
BETTER, WORSE, UNCLEAR = CATEGORICAL[2], CATEGORICAL[1], CATEGORICAL[6]
"""Of a comparison's outcomes."""

# The first name of a colour counts; those of several names are alike in the dark as well.
_NAMES: dict[str, str] = {}
for _name, _colour in LIGHT.items():
    _NAMES.setdefault(_colour, _name)
_HEX = re.compile(r"#[0-9a-f]{6}\b")


def dtype_colour(dtype: DType) -> DtypeColour:
    """The colour of a precision."""
    return _OF_DTYPE.get(dtype, INTEGER)


def named(picture: str) -> str:
    """A picture whose colours are names that the page knows.

    >>> named('<rect fill="#ffffff" stroke="#123456"/>')
    '<rect fill="var(--card)" stroke="#123456"/>'
    """
    return _HEX.sub(
        lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], picture
    )
