"""Charts: panels side by side, written to an SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from caldera.errors import ConfigError
from caldera.graph.picture.palette import PAPER, TEXT
from caldera.graph.picture.svg import SANS, element, number, safe
from caldera.train.panel import HEIGHT, WIDTH, Panel, draw

_GAP = 16.0


def write_chart(path: str | PathLike[str], panels: Sequence[Panel], title: str) -> Path:
    """Write the panels, two in a row, to an .svg file; its path."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ConfigError.build(
            "plot", expected="a file name that ends in .svg", got=repr(str(path)),
            hint=f"write to {str(target.with_suffix('.svg'))!r}, which every browser opens"
            if target.name else "",
        )  # fmt: skip
    if not target.parent.is_dir():
        raise ConfigError.build(
            "plot", expected="a folder that exists", got=repr(str(target.parent)),
            hint="make it first, for example with Path.mkdir(parents=True)",
        )  # fmt: skip
    target.write_text(chart(panels, title), encoding="utf-8")
    return target


def chart(panels: Sequence[Panel], title: str) -> str:
    """The panels as the text of an SVG file."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / 2)
    head = 44.0 if title else _GAP
    width = columns * (WIDTH + _GAP) + _GAP
    height = head + rows * (HEIGHT + _GAP)
    parts = [element("rect", width=width, height=height, fill=PAPER)]
    if title:
        parts.append(
            element(
                "text", safe(title), x=_GAP + 4, y=29.0, font_size=16, font_weight=600, fill=TEXT
            )
        )
    for index, panel in enumerate(panels):
        x = _GAP + (index % 2) * (WIDTH + _GAP)
        y = head + (index // 2) * (HEIGHT + _GAP)
        parts.append(element("g", draw(panel), transform=f"translate({number(x)} {number(y)})"))
    return element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        viewBox=f"0 0 {number(width)} {number(height)}", font_family=SANS, role="img",
        aria_label=title or "chart",
    )  # fmt: skip
