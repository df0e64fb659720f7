"""Rendering of graphs as SVG: panels with legend and title, and networks folded by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from caldera.base.formatting import bytes_text, flops_text
from caldera.core.graph import Node, Program
from caldera.draw.graph.clusters import place
from caldera.draw.graph.marks import DETAIL_SIZE, HEADER, Arrow, Mark, Role, Scene
from caldera.draw.graph.scene_builder import ProgramScene, build_scene
from caldera.draw.page import Safe, inline_svg
from caldera.draw.svg import (
    CARD,
    DTYPE_COLOURS,
    FLOAT32,
    LINE,
    MONO,
    PAPER,
    QUIET,
    SANS,
    SOFT,
    TARGET,
    TEXT,
    UPDATE,
    Picture,
    element,
    number,
    path,
    picture,
    picture_or_file,
    safe,
    text,
    text_width,
)

MARGIN = 24.0
PADDING = 22.0
PANEL_HEAD = 64.0
NARROWEST = 340.0
_TITLE_SIZE = 18.0
_HEAD_SIZE = 15.0
_FACT_SIZE = 11.5

# Views of existing memory, which require no reads or writes.
_FREE = frozenset({"reshape", "transpose", "slice", "flip", "broadcast_to", "item"})

_STYLE = (
    f"text{{font-family:{SANS};fill:{TEXT}}}"
    f".detail{{font-family:{MONO};fill:{QUIET}}}"
    ".bold{font-weight:700}"
    f".quiet{{fill:{QUIET}}}"
    ".light{fill:#ffffff}"
    ".arrow{fill:none;stroke-width:1.3;stroke-opacity:.72}"
    f".mark:target .shape{{stroke:{TARGET};stroke-width:4}}"
    "a:hover .shape{stroke-width:2.4}"
)


def draw_graph(path: str | PathLike[str] | None, panels: Mapping[str, Program]) -> Picture | Path:
    """Return the picture of these programs, side by side; with a path, written to an .svg file."""
    return picture_or_file(graph_svg(panels), path, "draw")


def graph_svg(panels: Mapping[str, Program]) -> str:
    """Return an SVG that shows programs side by side, each under its title.

    >>> from caldera.core.graph.node import Spec, Symbol
    >>> from caldera.core.graph.ops.elementwise import exp
    >>> from caldera.core.graph.ops.base import variable
    >>> from caldera.core.graph.program import Program
    >>> from caldera.core.tensor.dtype import float32
    >>> x = variable(symbol=Symbol("x", Spec((3,), float32), "variable"))
    >>> text = graph_svg({"as written": Program((exp(x),))})
    >>> text.startswith("<svg"), "as written" in text
    (True, True)
    """
    cards = [_Card(title, program, build_scene(program)) for title, program in panels.items()]
    width = max(sum(card.width for card in cards) + MARGIN * (len(cards) + 1), 560.0)
    heading, top = _heading(next(iter(panels.values())), width)
    height = max(card.height for card in cards)
    body: list[str] = []
    x = MARGIN
    for index, card in enumerate(cards):
        body += card.draw(x, top, height, f"panel{index}")
        x += card.width + MARGIN
    total = top + height + MARGIN
    return picture(
        width,
        total,
        element("style", _STYLE),
        element("defs", *[_arrowhead(each.name, each.strong) for each in DTYPE_COLOURS]),
        element("rect", width=width, height=total, fill=PAPER),
        *heading,
        *body,
    )


@dataclass(frozen=True)
class ProgramFacts:
    """Size and cost of a program."""

    nodes: int
    leaves: int
    products: int
    nbytes: int
    flops: int


def facts(program: Program) -> ProgramFacts:
    """Count nodes, and estimate bytes moved and operations."""
    order = [node for node in program.order() if node.op.name != "item"]
    leaves = [node for node in order if node.op.kind == "leaf"]
    return ProgramFacts(
        len(order),
        len(leaves),
        sum(1 for node in order if node.op.kind == "product"),
        sum(_moved(node) for node in order),
        sum(node.op.count_flops(node) for node in order),
    )


def _moved(node: Node) -> int:
    """Return bytes read and written, if every node reads and writes its values once."""
    if node.op.kind == "leaf" or node.op.name in _FREE:
        return 0
    read = {}
    for given in node.inputs:
        while given.op.name == "broadcast_to":
            given = given.inputs[0]
        read[given] = given.spec.nbytes
    return sum(read.values()) + sum(spec.nbytes for spec in node.outputs)


# --- a panel


class _Card:
    """A panel that shows a program."""

    def __init__(self, title: str, program: Program, drawn: ProgramScene) -> None:
        self.title = title
        self.drawn = drawn
        self.lines = list(_fact_lines(facts(program), drawn))
        widest = max(text_width(line, _FACT_SIZE) for line in self.lines)
        head = max(widest, text_width(title, _HEAD_SIZE, bold=True))
        self.width = max(drawn.scene.width, head, NARROWEST) + 2 * PADDING
        self.head = PANEL_HEAD + (len(self.lines) - 1) * (_FACT_SIZE + 4)
        self.height = drawn.scene.height + self.head + PADDING

    def draw(self, x: float, y: float, height: float, name: str) -> list[str]:
        """Draw the panel with its upper left corner at (x, y)."""
        scene = self.drawn.scene
        scene.move(x + (self.width - scene.width) / 2, y + self.head)
        parts = [
            element(
                "rect",
                x=x,
                y=y,
                width=self.width,
                height=height,
                rx=10.0,
                fill=CARD,
                stroke=LINE,
                class_="card",
            ),
            text(self.title, x + PADDING, y + 27, _HEAD_SIZE, class_="bold", anchor="start"),
        ]
        for index, line in enumerate(self.lines):
            below = y + 45 + index * (_FACT_SIZE + 4)
            parts.append(text(line, x + PADDING, below, _FACT_SIZE, class_="quiet", anchor="start"))
        names = {mark: f"{name}-{i}" for i, mark in enumerate(scene.marks)}
        parts += scene_elements(scene, names)
        return [element("g", *parts, class_="panel", id=name)]


def _fact_lines(found: ProgramFacts, drawn: ProgramScene) -> Iterator[str]:
    if drawn.shown < drawn.total:
        yield f"the first {drawn.shown} of {drawn.total} nodes are drawn"
    parts = [
        _counted(found.leaves, "leaf", "leaves"),
        _counted(found.nodes - found.leaves, "op"),
        _counted(found.products, "product"),
    ]
    yield f"{_counted(found.nodes, 'node')}: {', '.join(part for part in parts if part)}"
    yield f"about {bytes_text(found.nbytes)} moved, {flops_text(found.flops)}"


def scene_elements(
    scene: Scene, names: Mapping[Mark, str] | None = None, dx: float = 0.0, dy: float = 0.0
) -> list[str]:
    """Draw marks and arrows; marks with an entry in `names` can be link targets."""
    parts = [_arrow(arrow, dx, dy) for arrow in scene.arrows]
    return parts + [_mark(mark, names or {}, dx, dy) for mark in scene.marks]


def _arrow(arrow: Arrow, dx: float, dy: float) -> str:
    points = [(x + dx, y + dy) for x, y in arrow.points]
    attributes: dict[str, object] = {"class_": "arrow", "stroke": arrow.colour.strong}
    if arrow.target.role != "port":
        attributes["marker_end"] = f"url(#to-{arrow.colour.name})"
    return element("path", d=path(points), **attributes)


def _arrowhead(name: str, colour: str) -> str:
    shape = element("path", d="M0 0L7 3.5L0 7z", fill=colour)
    return element(
        "marker",
        shape,
        id=f"to-{name}",
        viewBox="0 0 7 7",
        refX="6.4",
        refY="3.5",
        markerWidth="6",
        markerHeight="6",
        orient="auto",
    )


# --- a mark


def _mark(mark: Mark, names: Mapping[Mark, str], dx: float, dy: float) -> str:
    x, y = mark.centre[0] + dx, mark.centre[1] + dy
    if mark.role == "port":
        return element("circle", class_="port", cx=x, cy=y, r=2.2, fill=mark.colour.strong)
    parts = [element("title", safe(mark.tip))] if mark.tip else []
    parts.append(_shape(mark, x, y))
    parts += _words(mark, x, y) if mark.inner is None else _inside(mark, x, y)
    attributes = {"class_": f"mark {mark.role}"}
    if mark in names:
        attributes["id"] = names[mark]
    drawn = element("g", *parts, **attributes)
    if mark.meant is not None:
        return element("a", drawn, href=f"#{names[mark.meant]}")
    return drawn


def _shape(mark: Mark, x: float, y: float) -> str:
    width, height = mark.width, mark.height
    left, top = x - width / 2, y - height / 2
    box: dict[str, object] = {
        "class_": "shape",
        "x": left,
        "y": top,
        "width": width,
        "height": height,
    }
    strong, pale = mark.colour.strong, mark.colour.pale
    if mark.role == "input":
        return _slanted(left, top, width, height, strong)
    outline = {"rx": height / 2, "fill": CARD, "stroke": strong}
    styles: dict[str, dict[str, object]] = {
        "product": {"rx": 5.0, "fill": strong, "stroke": strong, "stroke_width": 2.0},
        "movement": {"rx": 5.0, "fill": CARD, "stroke": strong, "stroke_opacity": 0.45},
        "group": {"rx": 7.0, "fill": CARD, "stroke": strong, "stroke_width": 1.6},
        "variable": {**outline, "stroke_width": 1.6},
        "array": {**outline, "stroke_width": 1.6, "stroke_dasharray": "1.5 2"},
        "constant": {"rx": height / 2, "fill": SOFT},
        "again": {**outline, "stroke_dasharray": "4 3"},
        "output": {"rx": 3.0, "fill": TEXT},
        "update": {"rx": 3.0, "fill": UPDATE},
    }
    plain = {"rx": 5.0, "fill": pale, "stroke": strong, "stroke_opacity": 0.75}
    return element("rect", **styles.get(mark.role, plain), **box)


def _slanted(left: float, top: float, width: float, height: float, colour: str) -> str:
    lean = 7.0
    corners = [
        (left + lean, top),
        (left + width, top),
        (left + width - lean, top + height),
        (left, top + height),
    ]
    points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
    return element(
        "polygon", class_="shape", points=points, fill=CARD, stroke=colour, stroke_width=1.6
    )


def _words(mark: Mark, x: float, y: float) -> Iterator[str]:
    size = mark.label_size
    light = " light" if mark.role in ("product", "output", "update") else ""
    bold = " bold" if mark.bold else ""
    quiet = " quiet" if mark.role in ("constant", "again") else ""
    baseline = y - 3 if mark.detail else y + 0.35 * size
    middle = x
    if mark.badge:
        room = 6 + text_width(mark.badge, DETAIL_SIZE)
        middle = x - room / 2
        end = middle + text_width(mark.label, size, bold=mark.bold) / 2
        yield text(
            mark.badge, end + 4, baseline, DETAIL_SIZE, class_="quiet" + light, anchor="start"
        )
    yield text(mark.label, middle, baseline, size, class_=f"label{bold}{light}{quiet}")
    if mark.detail:
        yield text(mark.detail, x, y + 11, DETAIL_SIZE, class_="detail" + light)


def _inside(mark: Mark, x: float, y: float) -> Iterator[str]:
    """Yield the strip with the group's name, and its body below."""
    assert mark.inner is not None
    left, top = x - mark.width / 2, y - mark.height / 2
    right = left + mark.width
    yield _strip(left, right, top, HEADER, mark.colour.pale)
    label = f"{mark.label}  {mark.badge}" if mark.badge else mark.label
    yield text(label, left + 8, top + 14, mark.label_size, class_="label bold", anchor="start")
    if mark.detail:
        yield text(mark.detail, right - 8, top + 14, DETAIL_SIZE, class_="detail", anchor="end")
    yield from scene_elements(mark.inner, {}, x - mark.inner.width / 2, top + HEADER)


def _strip(left: float, right: float, top: float, height: float, colour: str) -> str:
    """Return a band with round upper corners, just inside the border of a group."""
    a, b, y = left + 0.8, right - 0.8, top + 0.8
    turns = [
        f"M{number(a)} {number(top + height)}V{number(y + 6)}",
        f"Q{number(a)} {number(y)} {number(a + 6)} {number(y)}H{number(b - 6)}",
        f"Q{number(b)} {number(y)} {number(b)} {number(y + 6)}V{number(top + height)}z",
    ]
    return element("path", class_="strip", fill=colour, d="".join(turns))


# --- above the panels


def _heading(program: Program, width: float) -> tuple[list[str], float]:
    """Return title and legend, and their height."""
    counts = [_counted(len(program.outputs), "output"), _counted(len(program.updates), "update")]
    title = "Graph with " + (" and ".join(count for count in counts if count) or "no result")
    parts = [text(title, MARGIN, 36, _TITLE_SIZE, class_="bold", anchor="start")]
    x, y = MARGIN, 62.0
    for sample, words in _legend():
        needed = sample.width + 6 + text_width(words, 11) + 16
        if x + needed > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 24
        sample.centre = (x + sample.width / 2, y)
        shapes = [_shape(sample, *sample.centre)]
        if sample.role == "group":
            shapes.append(_strip(x, x + sample.width, y - 7, 7.0, sample.colour.pale))
        label = text(words, x + sample.width + 6, y + 4, 11, class_="quiet", anchor="start")
        parts.append(element("g", *shapes, label, class_="legend"))
        x += needed
    return parts, y + 22


def _counted(count: int, noun: str, several: str = "") -> str:
    return f"{count} {noun if count == 1 else several or noun + 's'}" if count else ""


_MEANINGS: dict[Role, str] = {
    "product": "matrix product or convolution",
    "movement": "moves elements",
    "group": "group that runs as one",
    "variable": "variable",
    "input": "input",
    "array": "data",
    "constant": "number",
    "again": "drawn above, used here",
    "output": "output",
    "update": "new value of a variable",
}


def _legend() -> Iterator[tuple[Mark, str]]:
    for each in DTYPE_COLOURS:
        yield _sample(Mark("operation", "", each)), each.name
    for role, meaning in _MEANINGS.items():
        yield _sample(Mark(role, "", FLOAT32)), meaning


def _sample(mark: Mark) -> Mark:
    mark.width, mark.height = 22.0, 14.0
    return mark


_PRODUCTS = ("Dense", "Conv", "Attention", "LSTM", "GRU", "RNN")


@dataclass(frozen=True)
class LayerBlock:
    """A layer: its kind, its output, and the indices of its input blocks; -1 is the input.

    >>> LayerBlock("Dense", "10", (0,)).label
    'Dense'
    """

    label: str
    detail: str
    reads: Sequence[int] = ()


def block_picture(blocks: Sequence[LayerBlock], source: str) -> Safe:
    """Draw the blocks from top to bottom for a page; `source` describes the input.

    >>> "Dense" in block_picture([LayerBlock("Dense", "10", (-1,))], "64")
    True
    """
    marks = [Mark("input", "input", FLOAT32, source)]
    for each in blocks:
        role: Role = "product" if each.label.startswith(_PRODUCTS) else "operation"
        marks.append(Mark(role, each.label, FLOAT32, each.detail))
    # The input has the number -1, and is the first mark.
    pairs = [
        (i, j) for i, each in enumerate(blocks) for j in sorted({max(j, -1) for j in each.reads})
    ]
    scene = Scene(marks, [Arrow(marks[j + 1], marks[i + 1], FLOAT32) for i, j in pairs])
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
