"""SVG writer and colour palette: elements, safe text, text widths, pictures and files.

Fonts are unavailable when a picture is written, so text widths are upper estimates: the wide
DejaVu and Verdana still fit. Pictures use the light colours. A page names each colour in a light
and a dark set; `named` replaces the colours of a picture by these names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path

from caldera.base.file_access import output_file
from caldera.base.file_cache import write_file
from caldera.core.tensor.dtype import DType, bfloat16, bool_, float16, float32, float64


@dataclass(frozen=True)
class DtypeColour:
    """The colour of a precision: a strong and a pale shade, on a light and on a dark page."""

    name: str
    strong: str
    pale: str
    strong_on_dark: str
    pale_on_dark: str


# Distinguishable with colour blindness; white text is readable on each strong shade.
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
"""Colours of distinguishable lines and bars, dark enough for text."""
BETTER, WORSE, UNCLEAR = CATEGORICAL[2], CATEGORICAL[1], CATEGORICAL[6]
"""Colours of the outcomes of a comparison."""

# The first name of a colour is used; colours with several names are also equal in the dark.
_NAMES = {colour: name for name, colour in reversed(list(LIGHT.items()))}
_HEX = re.compile(r"#[0-9a-f]{6}\b")


def dtype_colour(dtype: DType) -> DtypeColour:
    """Return the colour of a precision."""
    return _OF_DTYPE.get(dtype, INTEGER)


def named(picture: str) -> str:
    """Replace the colours of a picture by the page's names.

    >>> named('<rect fill="#ffffff" stroke="#123456"/>')
    '<rect fill="var(--card)" stroke="#123456"/>'
    """
    return _HEX.sub(
        lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], picture
    )


Point = tuple[float, float]

SANS = "'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

_SIZE = re.compile(r'\b(?:width|height)="([\d.]+)"')
_NARROW = frozenset("iljtfrI.,:;'|!()[]{}/ -·")
_WIDE = frozenset("mwMW@%#<>=+&")


def text_width(text: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """About how wide a text is, in the units of its font size."""
    if mono:
        return 0.61 * size * len(text)
    em = sum(
        0.40 if c in _NARROW else 0.94 if c in _WIDE else 0.72 if c.isupper() else 0.63
        for c in text
    )
    # Letters of other scripts may take a whole square.
    em += sum(0.4 for c in text if ord(c) > 0x2FFF)
    return size * em * (1.1 if bold else 1.0)


_NOT_IN_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")
"""Control characters and surrogates, which XML cannot represent."""


def number(value: float) -> str:
    """Return a coordinate without needless digits."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, *children: str, **attributes: object) -> str:
    """Return an element; `_` in attribute names becomes `-`, and a trailing `_` is dropped."""
    parts = [name]
    for key, value in attributes.items():
        text = number(value) if isinstance(value, float) else str(value)
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(_printable(text))}"')
    opening = " ".join(parts)
    if not children:
        return f"<{opening}/>"
    return f"<{opening}>{''.join(children)}</{name}>"


def text(
    content: str, x: float, y: float, size: float, *, class_: str, anchor: str = "middle"
) -> str:
    """Return a line of text whose baseline is at `y`."""
    return element(
        "text", safe(content), class_=class_, x=x, y=y, font_size=size, text_anchor=anchor
    )


def safe(content: str) -> str:
    """Return text that can stand between two tags."""
    return escape(_printable(content), quote=False)


def _printable(content: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", content)


def path(points: Sequence[Point]) -> str:
    """Return the path of a route: lines between vertically aligned points, else curves."""
    (x, y), *rest = points
    parts = [f"M{number(x)} {number(y)}"]
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.5:
            if next_y - y > 0.05:
                parts.append(f"L{number(x)} {number(next_y)}")
                y = next_y
            continue
        middle = number((y + next_y) / 2)
        parts.append(
            f"C{number(x)} {middle} {number(next_x)} {middle} {number(next_x)} {number(next_y)}"
        )
        x, y = next_x, next_y
    return "".join(parts)


def picture(width: float, height: float, *children: str, **attributes: object) -> str:
    """Return the text of an SVG file of this size."""
    return element(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {number(width)} {number(height)}",
        **attributes,
    )


class Picture:
    """An SVG, which a notebook shows and `save` writes to a file.

    >>> import caldera as cd
    >>> history = cd.History()
    >>> history.add(0, {"loss": 0.5})
    >>> history.plot()
    Picture(552 x 372: show it in a notebook, or write it with save("picture.svg"))
    """

    def __init__(self, svg: str, where: str = "Picture.save") -> None:
        self.svg = svg
        self._where = where

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        size = " x ".join(_SIZE.findall(self.svg)[:2])
        return f'Picture({size}: show it in a notebook, or write it with save("picture.svg"))'

    def save(self, path: str | PathLike[str]) -> Path:
        """Write it to an .svg file, which every browser opens; its path."""
        return write_svg(path, self.svg, self._where)


def picture_or_file(svg: str, path: str | PathLike[str] | None, where: str) -> Picture | Path:
    """Return a picture for a notebook; with a path write it to a file and return its path."""
    return Picture(svg, where) if path is None else write_svg(path, svg, where)


def write_svg(path: str | PathLike[str], text: str, where: str) -> Path:
    """Write the text of an SVG file for `where`, which a mistake in the path is blamed on."""
    name = str(Path(path).with_suffix(".svg")) if Path(path).name else ""
    hint = f"write to {name!r}, which every browser opens" if name else ""
    target = output_file(path, ".svg", where, hint)
    write_file(target, text)
    return target
