"""What is brought near while tiles are summed up: the lines of cache that are read after them.

A tile asks for a line with every second term. More of them would take the place of those that it
waits for itself: a core has about a dozen on the way at once. So what comes next is divided among
the tiles before it: the first ones of a panel ask for the next panel, the others for rows of the
left matrix, if there are some to be packed next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caldera.kernels.native.codegen.emitter import I64, Emitter, Pointer, Value, line_lanes

TERMS = 2
"""Of a sum, for each line that is asked for meanwhile."""


@dataclass(frozen=True)
class Lines:
    """Lines of cache in groups: those of a group begin `step` elements apart, and groups `jump`."""

    first: Pointer
    step: Value
    jump: Value


def group_of(pointer: Pointer) -> int:
    """How many lines are a group: those that a tile asks for while it reads a line of terms."""
    return line_lanes(pointer.type) // TERMS


@dataclass(frozen=True)
class Unpacked:
    """Columns of a matrix that are packed next, if that `is_next`: `corner` is the first element.
    `flipped` says that the columns are dense, not the rows."""

    corner: Pointer
    leading: Value
    flipped: bool
    is_next: Value

    def lines(self, k: Emitter, share: Value, terms: Value) -> Lines:
        """The share with this number, of `terms` rows."""
        line, group = line_lanes(self.corner.type), group_of(self.corner)
        if self.flipped:
            first = self.corner.at(share * group * self.leading)
            return Lines(first, self.leading, k.constant(line, I64))
        half, column = (share & 1) * (terms // TERMS), (share >> 1) * line
        return Lines(
            self.corner.at(half * self.leading + column), self.leading, self.leading * group
        )


def ask_ahead(
    k: Emitter,
    ask: Callable[[Lines], None],
    number: Value,
    tiles: Value,
    terms: Value,
    width: int,
    packed: Pointer,
    panel: Unpacked | None,
    rows: Unpacked,
    panels: Value,
    band: Value,
) -> None:
    """Have tile number `number` ask for its lines, of so many `tiles` of a panel.

    The next panel is `packed`, or else the `width` columns at `panel`. The next `band` rows to be
    packed are asked for late, by the tiles of the last panels (there are `panels` more), as they
    take the place of what is near. These are branches, not choices: short sums leave no time to
    compute addresses that are not asked for.
    """
    line, group = line_lanes(packed.type), group_of(packed)
    most = TERMS * -(-width // line)

    def ask_packed() -> None:
        first = packed.at(number * (terms // TERMS) * line)
        ask(Lines(first, k.constant(line, I64), k.constant(line * group, I64)))

    with k.if_else(number < most) as (early, late):
        with early:
            if panel is None:
                ask_packed()
            else:
                with k.if_else(panel.is_next) as (is_unpacked, is_packed):
                    with is_unpacked:
                        ask(panel.lines(k, number, terms))
                    with is_packed:
                        ask_packed()
        with late:
            share = number - most + panels * (tiles - most)
            with k.if_else(rows.is_next & (share * group < band)) as (some, nothing):
                with some:
                    ask(rows.lines(k, share, terms))
                with nothing:
                    zero = k.constant(0, I64)
                    ask(Lines(packed, zero, zero))
