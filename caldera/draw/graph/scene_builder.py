"""From a program to marks and arrows in their places.

Some liberties make large programs readable. A number is drawn at each of its uses. A variable, and
a value that is used far below, is drawn again (dashed) near that use instead of being reached by a
line across everything. A tall graph is folded into columns, as text is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from caldera.core.graph import Node, Program, Symbol
from caldera.draw.graph.clusters import BETWEEN_COLUMNS, mark_of, packed, side_by_side
from caldera.draw.graph.layered_layout import SMALLEST_GAP, GraphEdge, levels_of
from caldera.draw.graph.marks import (
    Arrow,
    Mark,
    Scene,
    constant_mark,
    constant_text,
    drawn_inputs,
    is_drawn,
    is_leaf,
    produced_by,
    result_mark,
    tip_of,
)
from caldera.draw.svg import dtype_colour

MOST_NODES = 400
"""Maximum number of nodes drawn of a program; the rest are only counted."""
FAR = 420.0
"""Maximum length of a line downwards; beyond it the value is drawn again."""
MOST_LINES = 6
"""Lines that leave one value; further readers get a mark drawn again."""
SHORTEST_COLUMN = 1000.0


@dataclass(frozen=True)
class ProgramScene:
    """A scene, and the numbers of drawn nodes and of all nodes."""

    scene: Scene
    shown: int
    total: int


def build_scene(program: Program) -> ProgramScene:
    """Draw a program."""
    return _SceneBuilder(program).run()


@dataclass(eq=False)
class _Use:
    """A value read by a mark: by a node, or by the end of the program."""

    producer: Node
    output: int
    value: Node
    reader: Mark
    slot: int | None
    level: int
    column: int
    direct: bool = False
    """True if a line leads here from the producer's mark."""


class _SceneBuilder:
    def __init__(self, program: Program) -> None:
        self.program = program
        every = [node for node in program.order() if is_drawn(node)]
        self.total = len(every)
        self.nodes = every[:MOST_NODES]
        self.marks = {node: mark_of(node) for node in self.nodes}
        self.level = self._levels()
        self.heights = self._heights()
        self.cuts: list[int] = []
        self.column: dict[Node, int] = {}
        self.numbers: dict[Node, int] = {}
        self.scenes: list[Scene] = []

    def run(self) -> ProgramScene:
        columns = self._draw()
        if len(columns) > 1:
            # Now it is known how high each level really gets: fold again for equal columns.
            bounds = [0, *self.cuts, len(self.heights)]
            for scene, start, stop in zip(columns, bounds, bounds[1:], strict=False):
                factor = scene.height / sum(self.heights[start:stop])
                self.heights[start:stop] = [factor * h for h in self.heights[start:stop]]
            columns = self._draw()
        return ProgramScene(side_by_side(columns), len(self.nodes), self.total)

    def _draw(self) -> list[Scene]:
        self.cuts = self._fold()
        self.column = self._columns()
        self.scenes = [Scene() for _ in range(len(self.cuts) + 1)]
        uses = self._uses()
        self._number(uses)
        self._connect(uses)
        return [packed(scene) for scene in self.scenes]

    # --- levels and columns

    def _levels(self) -> dict[Node, int]:
        index = {node: i for i, node in enumerate(self.nodes)}
        links = [
            GraphEdge(index[produced_by(given)[0]], index[node])
            for node in self.nodes
            for _, given in drawn_inputs(node)
            if produced_by(given)[0] in index
        ]
        widths = [self.marks[node].width for node in self.nodes]
        return dict(zip(self.nodes, levels_of(widths, links), strict=True))

    def _heights(self) -> list[float]:
        """Estimate the height of each level."""
        heights = [0.0] * (max(self.level.values(), default=0) + 1)
        for node, level in self.level.items():
            heights[level] = max(heights[level], self.marks[node].height)
        return [height + 1.5 * SMALLEST_GAP for height in heights]

    def _fold(self) -> list[int]:
        """The levels at which a new column starts: few values pass there, heights are equal."""
        area = sum(
            (self.marks[node].width + BETWEEN_COLUMNS) * self.heights[level]
            for node, level in self.level.items()
        )
        tallest = max(SHORTEST_COLUMN, math.sqrt(2.0 * area))
        starts = list(accumulate(self.heights, initial=0.0))
        columns = max(1, math.ceil(starts[-1] / tallest - 0.25))
        passing = self._passing()
        part = starts[-1] / columns
        cuts = set()
        for index in range(1, columns):
            near = [
                level
                for level in range(1, len(self.heights))
                if abs(starts[level] - index * part) <= max(0.15 * part, self.heights[level])
            ]
            cuts.add(min(near, key=lambda k: (passing[k], abs(starts[k] - index * part))))
        return sorted(cuts)

    def _passing(self) -> list[int]:
        """Return the number of computed values that enter each level from above."""
        passing = [0] * (len(self.heights) + 1)
        for node in self.nodes:
            for _, given in drawn_inputs(node):
                producer, _ = produced_by(given)
                if producer in self.level and not is_leaf(producer):
                    for level in range(self.level[producer] + 1, self.level[node] + 1):
                        passing[level] += 1
        return passing

    def _columns(self) -> dict[Node, int]:
        column = {
            node: sum(1 for cut in self.cuts if cut <= level) for node, level in self.level.items()
        }
        # A leaf is in the column of its first reader, even if a column starts between them.
        first: dict[Node, int] = {}
        for node in self.nodes:
            for _, given in drawn_inputs(node):
                if is_leaf(given) and given in column:
                    first[given] = min(first.get(given, len(self.cuts)), column[node])
        return column | first

    # --- who reads what

    def _uses(self) -> list[_Use]:
        uses: list[_Use] = []
        for node in self.nodes:
            for slot, given in drawn_inputs(node):
                producer, output = produced_by(given)
                spot = self.level[node], self.column[node]
                uses.append(_Use(producer, output, given, self.marks[node], slot, *spot))
        uses += self._results()
        uses.sort(key=lambda use: (use.column, use.level))
        starts = list(accumulate([*self.heights, 0.0], initial=0.0))
        lines: Counter[tuple[Node, int]] = Counter()
        for use in uses:
            value = use.producer, use.output
            use.direct = self._reaches(use, starts) and lines[value] < MOST_LINES
            lines[value] += use.direct
        return uses

    def _results(self) -> list[_Use]:
        found: dict[Node, tuple[list[int], list[Symbol]]] = {}
        for index, node in enumerate(self.program.outputs):
            found.setdefault(node, ([], []))[0].append(index)
        for symbol, node in self.program.updates:
            found.setdefault(node, ([], []))[1].append(symbol)
        results = []
        for node, (outputs, updated) in found.items():
            producer, output = produced_by(node)
            known = producer in self.level
            if known or constant_text(node) is not None:
                level = self.level[producer] + 1 if known else 0
                column = self.column[producer] if known else 0
                mark = result_mark(outputs, updated)
                results.append(_Use(producer, output, node, mark, None, level, column))
        return results

    def _reaches(self, use: _Use, starts: Sequence[float]) -> bool:
        """Return True if this use is close enough to the producer for a line."""
        producer = use.producer
        if producer not in self.level or self.column[producer] != use.column:
            return False
        following = self.level[producer] + 1
        if is_leaf(producer):
            return use.level == following
        return starts[use.level] - starts[following] <= FAR

    def _number(self, uses: list[_Use]) -> None:
        """Give a number to each node that is drawn again somewhere, from top to bottom."""
        far = {
            use.producer
            for use in uses
            if use.producer in self.level and not is_leaf(use.producer) and not use.direct
        }
        order = sorted(far, key=lambda node: (self.column[node], self.level[node], node.serial))
        self.numbers = {node: i for i, node in enumerate(order, start=1)}
        for node, mark in self.marks.items():
            mark.badge = f"#{self.numbers[node]}" if node in far else ""
            mark.measure()

    # --- marks and arrows

    def _connect(self, uses: list[_Use]) -> None:
        """Fill the scenes: first inputs, then nodes in their order, then results."""
        ends: list[tuple[int, Mark]] = []
        for use in uses:
            scene = self.scenes[use.column]
            if use.slot is None:
                ends.append((use.column, use.reader))
            number = constant_text(use.value)
            if number is not None:
                source = constant_mark(use.value, number)
                scene.marks.append(source)
            elif use.producer not in self.level:
                continue
            elif use.direct:
                source = self.marks[use.producer]
            else:
                source = self._again(use)
            colour = dtype_colour(use.value.dtype)
            scene.arrows.append(Arrow(source, use.reader, colour, use.output, use.slot))
        drawn = [(self.column[node], self.marks[node]) for node in self.nodes]
        for column, mark in drawn + ends:
            self.scenes[column].marks.append(mark)

    def _again(self, use: _Use) -> Mark:
        """Add a mark next to this use that repeats a value drawn elsewhere."""
        meant = self.marks[use.producer]
        name = meant.label
        if use.producer in self.numbers:
            name = f"#{self.numbers[use.producer]} {name}"
        if len(use.producer.outputs) > 1:
            name += f" [{use.output}]"
        colour = dtype_colour(use.value.dtype)
        mark = Mark("again", name, colour, tip=tip_of(use.producer), meant=meant)
        self.scenes[use.column].marks.append(mark)
        return mark
