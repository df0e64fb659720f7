"""Heat maps as SVG: the larger a number, the darker its cell."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.draw.html import Safe, inline_svg
from caldera.draw.palette import LINE, QUIET, WORSE
from caldera.draw.svg import element, safe

_CELL, _EDGE, _FOOT = 22.0, 8.0, 26.0


def heat_map(cells: Sequence[Sequence[float]], label: str) -> Safe:
    """The cells as a picture of a page; the darkest is the largest number.

    >>> "differences" in heat_map([[0.0, 1.0]], "differences")
    True
    """
    rows, columns = len(cells), max((len(row) for row in cells), default=0)
    most = max((each for row in cells for each in row), default=0.0)
    parts = []
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            share = value / most if most else 0.0
            parts.append(
                element(
                    "rect",
                    element("title", safe(f"{value:.3g}")),
                    x=_EDGE + _CELL * j,
                    y=_EDGE + _CELL * i,
                    width=_CELL,
                    height=_CELL,
                    fill=WORSE,
                    fill_opacity=round(share, 3),
                    stroke=LINE,
                )
            )
    note = element(
        "text",
        safe(f"at most {most:.3g}"),
        x=_EDGE,
        y=_EDGE + _CELL * rows + 18,
        font_size=12,
        fill=QUIET,
    )
    width = max(2 * _EDGE + _CELL * columns, 160.0)
    height = _EDGE + _CELL * rows + _FOOT
    return inline_svg(width, height, *parts, note, class_="heat", label=label)
