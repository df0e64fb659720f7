"""Colours by name, in a light and a dark set, and pictures that use the names.

Charts and graphs are drawn in the light colours; here each of those becomes the name of a colour,
which the page knows in both sets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from caldera.draw.line_chart import CATEGORICAL
from caldera.draw.palette import CARD, DTYPE_COLOURS, LINE, PAPER, QUIET, TEXT, UPDATE

_LIGHT: dict[str, str] = {
    "paper": PAPER,
    "card": CARD,
    "line": LINE,
    "text": TEXT,
    "quiet": QUIET,
    "soft": "#eef0f3",
    "update": UPDATE,
    "target": "#e0186c",
    "good": "#1d7a4c",
    "on-strong": "#ffffff",
}
_DARK: dict[str, str] = {
    "paper": "#0f141a",
    "card": "#171d26",
    "line": "#2d3643",
    "text": "#e7ebf0",
    "quiet": "#9aa7b6",
    "soft": "#252d38",
    "update": "#ee7aa4",
    "target": "#ff6fa8",
    "good": "#5cc08f",
    "on-strong": "#10161d",
}
_LINES_ON_DARK = ("#6ea8ee", "#f0904f", "#5cc08f", "#bb8fd8", "#d3ab3a", "#ee7aa4", "#98a4b3")
_STRONG_ON_DARK = {
    "float64": "#bb8fd8", "float32": "#6ea8ee", "float16": "#f0904f", "bfloat16": "#d3ab3a",
    "integers": "#5cc08f", "bool": "#98a4b3",
}  # fmt: skip
_PALE_ON_DARK = {
    "float64": "#30233c", "float32": "#182a42", "float16": "#3b2414", "bfloat16": "#332a10",
    "integers": "#143023", "bool": "#282f39",
}  # fmt: skip

LIGHT: Mapping[str, str] = {
    **_LIGHT,
    **{f"line{i}": colour for i, colour in enumerate(CATEGORICAL)},
    **{f"strong-{ink.name}": ink.strong for ink in DTYPE_COLOURS},
    **{f"pale-{ink.name}": ink.pale for ink in DTYPE_COLOURS},
}
DARK: Mapping[str, str] = {
    **_DARK,
    **{f"line{i}": colour for i, colour in enumerate(_LINES_ON_DARK)},
    **{f"strong-{name}": colour for name, colour in _STRONG_ON_DARK.items()},
    **{f"pale-{name}": colour for name, colour in _PALE_ON_DARK.items()},
}

# The first name of a colour counts; those of several names are alike in the dark as well.
_NAMES: dict[str, str] = {}
for _name, _colour in LIGHT.items():
    _NAMES.setdefault(_colour, _name)
_HEX = re.compile(r"#[0-9a-f]{6}\b")


def named(picture: str) -> str:
    """A picture whose colours are names that the page knows.

    >>> named('<rect fill="#ffffff" stroke="#123456"/>')
    '<rect fill="var(--card)" stroke="#123456"/>'
    """
    return _HEX.sub(
        lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], picture
    )


def variables(colours: Mapping[str, str]) -> str:
    """The colours as variables of a style sheet."""
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
