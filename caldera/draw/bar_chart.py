"""Bar charts as SVG: a row for each value, with its interval and what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.draw.axis import Axis, axis_of
from caldera.draw.html import Safe, inline_svg
from caldera.draw.palette import BETTER, CARD, LINE, QUIET, TEXT, UNCLEAR, WORSE
from caldera.draw.svg import element, number, safe

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


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _upright(axis: Axis, value: float, height: float, colour: str, dashes: str = "none") -> str:
    route = f"M{number(_x(axis, value))} 6V{number(height - 24)}"
    return element("path", d=route, stroke=colour, stroke_dasharray=dashes)


def _bar(bar: Bar, axis: Axis, top: float, reference: float) -> str:
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
