"""The one writer of SVG: elements, safe text, how wide a text will be, whole pictures and files.

No font is at hand when a picture is written, so widths are estimates on the safe side: the wide
DejaVu and Verdana still fit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from os import PathLike
from pathlib import Path

from caldera.base.file_cache import write_file
from caldera.errors import ConfigError

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
"""Control characters and surrogates, which XML has no way to write."""


def number(value: float) -> str:
    """A coordinate without needless digits."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, *children: str, **attributes: object) -> str:
    """An element; in attribute names `_` stands for `-`, and a trailing one is dropped."""
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
    """A line of text whose baseline is at `y`."""
    return element(
        "text", safe(content), class_=class_, x=x, y=y, font_size=size, text_anchor=anchor
    )


def safe(content: str) -> str:
    """Text that can stand between two tags."""
    return escape(_printable(content), quote=False)


def _printable(content: str) -> str:
    return _NOT_IN_XML.sub("\ufffd", content)


def path(points: Sequence[Point]) -> str:
    """The outline of a route: lines where points stand one above the other, else curves."""
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
    """The text of an SVG file of this size."""
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
    """A picture for a notebook; with a path, that of the file it was written to."""
    return Picture(svg, where) if path is None else write_svg(path, svg, where)


def write_svg(path: str | PathLike[str], text: str, where: str) -> Path:
    """Write the text of an SVG file for `where`, which a mistake in the path is blamed on."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigError.build(
            where,
            expected="a file name that ends in .svg",
            got=repr(str(path)),
            hint=f"write to {str(target.with_suffix('.svg'))!r}, which every browser opens"
            if target.name
            else "",
        )
    if not target.parent.is_dir():
        raise ConfigError.build(
            where,
            expected="a folder that exists",
            got=repr(str(target.parent)),
            hint="make it first, for example with Path.mkdir(parents=True)",
        )
    write_file(target, text)
    return target
