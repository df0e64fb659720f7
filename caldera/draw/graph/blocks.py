"""A network folded by layer: a box for each layer, and what flows from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.draw.graph.clusters import place
from caldera.draw.graph.marks import Arrow, Mark, Scene
from caldera.draw.graph.render import MARGIN, scene_elements
from caldera.draw.page import Safe, inline_svg
from caldera.draw.svg import FLOAT32

_PRODUCTS = ("Dense", "Conv", "Attention", "LSTM", "GRU", "RNN")


@dataclass(frozen=True)
class LayerBlock:
    """A layer: what it is, what it gives, and the numbers of the blocks it reads; -1 is the input.

    >>> LayerBlock("Dense", "10", (0,)).label
    'Dense'
    """

    label: str
    detail: str
    reads: Sequence[int] = ()


def block_picture(blocks: Sequence[LayerBlock], source: str) -> Safe:
    """The blocks from top to bottom, as a picture of a page; `source` is what the input is.

    >>> "Dense" in block_picture([LayerBlock("Dense", "10", (-1,))], "64")
    True
    """
    scene = Scene()
    given = Mark("input", "input", FLOAT32, source)
    marks = [
        Mark(
            "product" if each.label.startswith(_PRODUCTS) else "operation",
            each.label,
            FLOAT32,
            each.detail,
        )
        for each in blocks
    ]
    scene.marks = [given, *marks]
    for mark, each in zip(marks, blocks, strict=True):
        for number in sorted(set(each.reads)):
            scene.arrows.append(Arrow(given if number < 0 else marks[number], mark, FLOAT32))
    place(scene)
    scene.move(MARGIN, MARGIN / 2)
    width, height = scene.width + 2 * MARGIN, scene.height + MARGIN
    return inline_svg(
        width,
        height,
        *scene_elements(scene),
        class_="blocks graph-words",
        label=f"the network, layer by layer: {', '.join(each.label for each in blocks)}",
        style=f"width:{width:.0f}px",
    )
