"""Marks of nodes: shape, text and size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from caldera.base.formatting import shortened
from caldera.core.graph import ITEM, Node, Symbol, describe
from caldera.draw.svg import BOOL, DtypeColour, Point, dtype_colour, text_width

Role = Literal[
    "operation",
    "product",
    "movement",
    "group",
    "variable",
    "input",
    "array",
    "constant",
    "again",
    "output",
    "update",
    "port",
]

LABEL_SIZE = 12.0
DETAIL_SIZE = 10.0
SMALL_SIZE = 10.0
HEADER = 20.0
"""Height of the strip on top of a group, which has its name."""
_LONGEST = {"label": 30, "detail": 28}
_KIND_ROLES: dict[str, Role] = {"product": "product", "movement": "movement"}
_LEAF_ROLES: dict[str, Role] = {"variable": "variable", "input": "input"}


@dataclass(eq=False)
class Mark:
    """A shape in the picture, with at most two lines of text."""

    role: Role
    label: str
    colour: DtypeColour
    detail: str = ""
    tip: str = ""
    small: bool = False
    width: float = 0.0
    height: float = 0.0
    inner: Scene | None = None
    badge: str = ""
    centre: Point = (0.0, 0.0)
    meant: Mark | None = None
    """Original mark that an "again" mark repeats."""

    def __post_init__(self) -> None:
        self.label = shortened(self.label, _LONGEST["label"])
        self.detail = shortened(self.detail, _LONGEST["detail"])
        self.measure()

    @property
    def bold(self) -> bool:
        """True if the label is in bold type."""
        return self.role in ("product", "variable", "group", "output", "update")

    @property
    def label_size(self) -> float:
        """The font size of the label."""
        quiet = self.role in ("constant", "again", "output", "update")
        return SMALL_SIZE if self.small or quiet else LABEL_SIZE

    def measure(self) -> None:
        """Set width and height from the text, the badge and the inner scene."""
        if self.role == "port":
            self.width, self.height = 6.0, 0.0
            return
        first = text_width(self.label, self.label_size, bold=self.bold)
        if self.badge:
            first += 6 + text_width(self.badge, DETAIL_SIZE)
        second = text_width(self.detail, DETAIL_SIZE, mono=True)
        if self.inner is not None:
            between = 10 if self.detail else 0
            self.width = max(first + between + second + 16, self.inner.width + 16)
            self.height = HEADER + self.inner.height
            return
        self.width = max(first, second) + (12 if self.small else 18)
        if self.role in ("variable", "input", "array", "output", "update"):
            # Round or slanted ends take room from the words.
            self.width += 10
        lines = 2 if self.detail else 1
        self.height = {1: 18.0 if self.label_size == SMALL_SIZE else 24.0, 2: 36.0}[lines]

    @property
    def entries(self) -> list[float] | None:
        """Offset of each input of a group from its middle; None if it is not fixed."""
        return None if self.inner is None else self.inner.offsets(self.inner.arguments)

    @property
    def exits(self) -> list[float] | None:
        """Offset of each output of a group from its middle."""
        return None if self.inner is None else self.inner.offsets(self.inner.results)


@dataclass(eq=False)
class Arrow:
    """A line from one mark to another, in the colour of the value that flows."""

    source: Mark
    target: Mark
    colour: DtypeColour
    output: int = 0
    input: int | None = None
    """Number of the group's input."""
    points: list[Point] = field(default_factory=list)


@dataclass(eq=False)
class Scene:
    """Marks and arrows with their places, from (0, 0) on."""

    marks: list[Mark] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0
    arguments: list[Mark] = field(default_factory=list)
    results: list[Mark] = field(default_factory=list)

    def offsets(self, ports: list[Mark]) -> list[float] | None:
        """Return the offset of each port from the middle; None if there are no ports."""
        return [port.centre[0] - self.width / 2 for port in ports] or None

    def move(self, dx: float, dy: float) -> None:
        """Shift all marks and arrows; inner scenes of groups have relative coordinates."""
        for mark in self.marks:
            mark.centre = (mark.centre[0] + dx, mark.centre[1] + dy)
        for arrow in self.arrows:
            arrow.points = [(x + dx, y + dy) for x, y in arrow.points]


# --- what a node is called


def constant_text(node: Node) -> str | None:
    """The number a node is, if it is one everywhere; None if it is not."""
    while node.op.name in ("broadcast_to", "reshape"):
        node = node.inputs[0]
    if node.op.name != "constant":
        return None
    value = node.attrs["value"]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def produced_by(node: Node) -> tuple[Node, int]:
    """Return the node that computes a value, and which of its outputs that is."""
    return (node.inputs[0], node.attrs["index"]) if node.op is ITEM else (node, 0)


def drawn_inputs(node: Node) -> Iterator[tuple[int, Node]]:
    """The inputs that get a line, with their positions: each value once, but all of a group."""
    seen: set[Node] = set()
    for position, given in enumerate(node.inputs):
        if given not in seen or "body" in node.attrs:
            seen.add(given)
            yield position, given


def is_drawn(node: Node) -> bool:
    """Return True if the node has a separate mark; constants are drawn next to their readers."""
    return node.op is not ITEM and constant_text(node) is None


def is_leaf(node: Node) -> bool:
    """Return True if the node is read, not computed."""
    return isinstance(node.attrs.get("symbol"), Symbol)


def node_mark(node: Node, *, small: bool = False, label: str = "") -> Mark:
    """Return the mark of a node without a body."""
    detail = "" if small else _shapes(node)
    if is_leaf(node):
        symbol: Symbol = node.attrs["symbol"]
        role = _LEAF_ROLES.get(symbol.role, "array")
        return Mark(
            role, symbol.name or symbol.role, dtype_colour(node.dtype), detail, tip_of(node)
        )
    role = _KIND_ROLES.get(node.op.kind, "operation")
    colour = dtype_colour(node.outputs[0].dtype)
    return Mark(role, label or label_of(node), colour, detail, tip_of(node), small)


def group_mark(node: Node, inner: Scene, parts: int) -> Mark:
    """Return the mark of a node with a body."""
    if node.op.name == "scan":
        turn = ", reverse" if node.attrs["reverse"] else ""
        label = f"scan, {node.attrs['length']} steps{turn}"
    else:
        label = f"{node.op.name}, {parts} ops"
    colour = dtype_colour(max(node.outputs, key=lambda spec: spec.nbytes).dtype)
    return Mark("group", label, colour, _shapes(node), tip_of(node), inner=inner, small=True)


def constant_mark(node: Node, shown: str, *, small: bool = False) -> Mark:
    """Return the mark of a number."""
    return Mark("constant", shown, dtype_colour(node.dtype), tip=tip_of(node), small=small)


def result_mark(outputs: list[int], updated: list[Symbol]) -> Mark:
    """Return the mark below a value that leaves the program."""
    update = "update " + ", ".join(symbol.name or "variable" for symbol in updated)
    output = f"output{'s' * (len(outputs) > 1)} {', '.join(map(str, outputs))}"
    words = [update] * bool(updated) + [output] * bool(outputs)
    label, detail = (*words, "")[:2]
    return Mark("update" if updated else "output", label, BOOL, detail, " and ".join(words))


def label_of(node: Node) -> str:
    """Return the op's name with its most important attributes."""
    name = node.op.name
    words = [name.removesuffix("_epilogue")]
    if node.attrs.get("ta") or node.attrs.get("tb"):
        words.append(("Aᵀ" if node.attrs["ta"] else "A") + ("Bᵀ" if node.attrs["tb"] else "B"))
    if name.endswith("_epilogue"):
        words += ["+ bias"] * (len(node.inputs) > 2)
        words += [f"+ {node.attrs['activation']}"] * bool(node.attrs["activation"])
    if name == "cast":
        words.append(node.attrs["dtype"].name)
    axis = node.attrs.get("axis")
    if (
        node.op.kind == "reduction"
        and isinstance(axis, tuple)
        and len(axis) < len(node.inputs[0].shape)
    ):
        words.append(f"axis {', '.join(map(str, axis))}")
    return " ".join(words)


def tip_of(node: Node) -> str:
    """Return the tooltip of a mark."""
    hidden = ("symbol", "body", "shape", "dtype", "value")
    lines = [shortened(describe(node, 1), 300)]
    lines += [f"{key} = {value}" for key, value in node.attrs.items() if key not in hidden]
    flops = node.op.count_flops(node)
    return "\n".join([*lines, f"{flops:,} FLOP"] if flops else lines)


def _shapes(node: Node) -> str:
    shapes = [spec.shape for spec in node.outputs]
    if len(shapes) > 1 and len(set(shapes)) == 1:
        return f"{len(shapes)} x {shapes[0]}"
    return " ".join(map(str, shapes)) if len(shapes) < 3 else f"{len(shapes)} outputs"
