"""A layout as a picture: which rank has which elements."""

from __future__ import annotations

from itertools import pairwise, product

from caldera.compiler.sharding.layout import Layout
from caldera.draw.palette import CARD, CATEGORICAL, TEXT
from caldera.draw.svg import SANS, Picture, element, picture, text
from caldera.errors import ConfigError

WIDTH, LEAST, MOST = 360.0, 48.0, 480.0
"""Of the array in pixels: its width, and how low and how high it may be."""
MOST_BLOCKS = 4096
"""Blocks that can still be told apart."""
_LABELLED = 26.0
"""A block at least so wide and high has the numbers of its ranks in it."""


def layout_picture(layout: Layout) -> Picture:
    """Blocks in the colours of their ranks, drawn to scale.

    Of more than two axes those with the most blocks are shown, where the others begin.
    """
    down, across = _shown(layout)
    rows, columns = _cuts(layout, down), _cuts(layout, across)
    if (len(rows) - 1) * (len(columns) - 1) > MOST_BLOCKS:
        raise ConfigError.build(
            "dm.Array.draw",
            expected=f"at most {MOST_BLOCKS} blocks",
            got=f"{len(rows) - 1} x {len(columns) - 1}",
            hint="draw a slice, as in A[:64, :64]",
        )
    height = min(MOST, max(LEAST, WIDTH * max(rows[-1], 1) / max(columns[-1], 1)))
    content = [element("rect", x=0.0, y=0.0, width=WIDTH + 20, height=height + 44, fill=CARD)]
    for (top, bottom), (left, right) in product(pairwise(rows), pairwise(columns)):
        if top == bottom or left == right:
            continue
        index = [0] * len(layout.shape)
        for axis, place in ((down, top), (across, left)):
            if axis is not None:
                index[axis] = place
        x, y = 10 + WIDTH * left / columns[-1], 10 + height * top / rows[-1]
        wide, high = WIDTH * (right - left) / columns[-1], height * (bottom - top) / rows[-1]
        content += _block(layout.owners(index), x, y, wide, high)
    words = f"{layout.shape} on {len(layout.ranks)} ranks" + _left_out(layout, (down, across))
    content.append(_text(words, 10 + WIDTH / 2, height + 30, TEXT))
    return Picture(picture(WIDTH + 20, height + 44, *content, font_family=SANS), "dm.Array.draw")


def _shown(layout: Layout) -> tuple[int | None, int | None]:
    axes = sorted(range(len(layout.shape)), key=lambda axis: -len(layout.cuts[axis]))[:2]
    if len(axes) < 2:
        return None, axes[0] if axes else None
    return min(axes), max(axes)


def _cuts(layout: Layout, axis: int | None) -> tuple[int, ...]:
    return (0, 1) if axis is None else layout.cuts[axis]


def _block(owners: tuple[int, ...], x: float, y: float, wide: float, high: float) -> list[str]:
    names = ", ".join(map(str, owners))
    found = [
        element(
            "rect",
            element("title", f"rank {names}"),
            x=x,
            y=y,
            width=wide,
            height=high,
            fill=CATEGORICAL[owners[0] % len(CATEGORICAL)],
            stroke=CARD,
            fill_opacity=1.0 if len(owners) == 1 else 0.6,
        )
    ]
    if wide >= _LABELLED and high >= _LABELLED and len(names) * 7 < wide:
        found.append(_text(names, x + wide / 2, y + high / 2 + 5, CARD))
    return found


def _text(content: str, x: float, y: float, fill: str) -> str:
    return element("g", text(content, x, y, 13, class_="label"), fill=fill)


def _left_out(layout: Layout, axes: tuple[int | None, int | None]) -> str:
    others = [axis for axis in range(len(layout.shape)) if axis not in axes]
    return f", axes {axes[0]} and {axes[1]}" if others else ""
