"""Charts: panels side by side, written to an SVG file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from caldera.draw.graph.save import write_svg
from caldera.draw.line_chart import HEIGHT, WIDTH, LineChart, draw
from caldera.draw.palette import PAPER, TEXT
from caldera.draw.svg import SANS, element, number, safe

_GAP = 16.0


def write_figure(path: str | PathLike[str], panels: Sequence[LineChart], title: str) -> Path:
    """Write the panels, two in a row, to an .svg file; its path."""
    return write_svg(path, chart(panels, title), "plot")


def chart(panels: Sequence[LineChart], title: str) -> str:
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
