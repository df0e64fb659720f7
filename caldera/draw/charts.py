"""Bar charts and heat maps as SVG, and image samples as thumbnails.

A bar chart has one row per value, with its interval and caption. A heat map has darker cells for
larger numbers.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.base.registry import optional_import
from caldera.draw.axis import ChartAxis, axis_of
from caldera.draw.page import Safe, inline_svg
from caldera.draw.svg import BETTER, CARD, LINE, QUIET, TEXT, UNCLEAR, WORSE, element, number, safe

_ROW, _LEFT, _WIDTH, _RIGHT = 24.0, 300.0, 940.0, 170.0
_TICKS = 8


@dataclass(frozen=True)
class Bar:
    """A value with the ends of its interval, and what it is about."""

    label: str
    value: float
    low: float
    high: float


def bar_chart(bars: Sequence[Bar], label: str, reference: float = 1.0) -> Safe:
    """The bars as a picture of a page; an upright line stands at `reference`.

    A bar whose whole interval is beyond that is better, one whose interval is below it is worse.

    >>> "a : b" in bar_chart([Bar("a : b", 1.5, 1.4, 1.6)], "ratios")
    True
    """
    axis = axis_of([0.0, reference, *(bar.high for bar in bars)], log=False, count=_TICKS)
    height = _ROW * len(bars) + 34
    parts = [_upright(axis, tick, height, LINE, "2 3") for tick in axis.ticks]
    parts.append(_upright(axis, reference, height, TEXT))
    for tick, written in zip(axis.ticks, axis.labels(), strict=True):
        parts.append(_text(written, _x(axis, tick), height - 8, "middle", QUIET))
    for place, bar in enumerate(bars):
        parts.append(_bar(bar, axis, 10 + _ROW * place, reference))
    return inline_svg(_WIDTH, height, *parts, class_="bars", label=label)


def _x(axis: ChartAxis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _upright(
    axis: ChartAxis, value: float, height: float, colour: str, dashes: str = "none"
) -> str:
    route = f"M{number(_x(axis, value))} 6V{number(height - 24)}"
    return element("path", d=route, stroke=colour, stroke_dasharray=dashes)


def _bar(bar: Bar, axis: ChartAxis, top: float, reference: float) -> str:
    colour = BETTER if bar.low > reference else WORSE if bar.high < reference else UNCLEAR
    middle = top + 6
    interval = f"M{number(_x(axis, bar.low))} {number(middle)}H{number(_x(axis, bar.high))}"
    end = _x(axis, max(bar.value, bar.high))
    shown = f"{bar.value:.2f}  [{bar.low:.2f}, {bar.high:.2f}]"
    return "".join(
        [
            _text(bar.label, _LEFT - 10, middle + 4, "end", TEXT),
            element(
                "rect",
                x=_LEFT,
                y=top,
                width=_x(axis, bar.value) - _LEFT,
                height=12.0,
                fill=colour,
                rx=2,
                opacity=0.85,
            ),
            element("path", d=interval, stroke=TEXT, stroke_width=1.5),
            _text(shown, end + 8, middle + 4, "start", TEXT),
        ]
    )


def _text(content: str, x: float, y: float, anchor: str, fill: str) -> str:
    # The rim keeps it readable where it crosses a line.
    return element(
        "text",
        safe(content),
        x=x,
        y=y,
        font_size=12,
        text_anchor=anchor,
        fill=fill,
        stroke=CARD,
        stroke_width=4,
        paint_order="stroke",
    )


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


SIZE = 96


def thumbnail(sample: np.ndarray) -> str:
    """An image of one or three channels as the base64 text of a PNG file; empty for all else.

    >>> thumbnail(np.zeros((1, 8, 8), "float32"))[:11], thumbnail(np.zeros(5))
    ('iVBORw0KGgo', '')
    """
    if sample.ndim != 3 or sample.shape[0] not in (1, 3) or min(sample.shape[1:]) < 2:
        return ""
    values = np.nan_to_num(sample.astype(np.float64))
    low, high = min(values.min(), 0.0), max(values.max(), 1.0)
    # Bytes, and what has been normalised, fill the range that they have.
    grey = np.round(255 * (values - low) / (high - low)).astype(np.uint8)
    pillow = optional_import("PIL.Image", "pillow", "thumbnail")
    image = pillow.fromarray(grey[0] if len(grey) == 1 else grey.transpose(1, 2, 0))
    image.thumbnail((SIZE, SIZE))
    written = io.BytesIO()
    image.save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()
