"""Explanation of data movement and chosen algorithms, and pictures of layouts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

from caldera.base.arguments import require
from caldera.base.formatting import bytes_text
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.propagation import ShardingStrategy, distribute
from caldera.compiler.sharding.volume import Move, moves_table, shortened, summary
from caldera.core.graph import Node, topological
from caldera.dmath.session import Handle, Session
from caldera.draw.svg import CARD, CATEGORICAL, SANS, TEXT, Picture, element, picture, text

CALL_S = 1.5e-4
"""Overhead in seconds of starting a transfer or a computation."""
SHOWN = 4
"""Ways that were beaten, the nearest first; of others there is only the number."""


@dataclass(frozen=True)
class ArrayExplanation:
    """Explanation of a computation; printed, it is a table.

    - `moves`: the transfers, in order.
    - `choices`: the selected algorithms.
    - `layout`: the layout of the result.
    - `route`: how values travel between ranks: "sockets", or from GPUs "NCCL", "MPI, from GPU
      memory" or "MPI, through the host", with the reason against NCCL.
    """

    moves: tuple[Move, ...]
    choices: tuple[ShardingStrategy, ...]
    layout: ShardLayout
    route: str

    @property
    def nbytes(self) -> int:
        """All bytes that move between ranks, those inside of algorithms too."""
        return sum(move.nbytes for move in self.moves) + sum(c.nbytes for c in self.choices)

    @property
    def seconds(self) -> float:
        """Predicted time of transfers and computations, including call overhead."""
        steps: list[Move | ShardingStrategy] = [*self.moves, *self.choices]
        return sum(step.seconds + CALL_S for step in steps if step.seconds)

    def __str__(self) -> str:
        lines = moves_table(self.moves)
        lines += ["", f"{'what is computed':44}  {'how':46}  {'bytes':>10}  seconds"]
        for choice in self.choices:
            lines.append(
                f"{shortened(choice.what, 44):44}  {shortened(choice.chosen.name, 46):46}  "
                f"{bytes_text(choice.nbytes):>10}  {choice.seconds:.1e}"
            )
            lines += _beaten(choice)
        lines += ["", f"in all {bytes_text(self.nbytes)}, {self.seconds:.1e} s"]
        lines.append(f"result: {summary(self.layout)}; messages: {self.route}")
        return "\n".join(lines)

    __repr__ = __str__


def explained(node: Node, session: Session, *, again: bool = False) -> ArrayExplanation:
    """Explain the computation of a node of whole values in a session.

    With `again` the ranks are queried for newer measurements, if the script can query them.
    """
    leaves = {}
    for each in topological([node]):
        symbol = each.attrs.get("symbol")
        if symbol is not None and isinstance(symbol.value, Handle):
            leaves[symbol] = symbol.value.layout
    # Where all ranks run the script, a rank must not query separately.
    again = again and session.one_script
    links = session.links([symbol.spec for symbol in leaves], again=again)
    found = distribute(
        [node], leaves, ranks=session.ranks, rank=0, links=links, family=session.family
    )
    return ArrayExplanation(found.moves, found.choices, found.layouts[0], session.route)


def _beaten(choice: ShardingStrategy) -> list[str]:
    """The way that was taken and those it was chosen among, each with all that moves for it."""
    if not choice.others:
        return []
    ranked = sorted(choice.others, key=lambda each: each.seconds)
    found = [
        f"{word:>14} {shortened(each.name, 30):30}  {bytes_text(each.nbytes):>10}  "
        f"{each.seconds:.1e}"
        for word, each in zip(
            ("with its moves", *["before"] * SHOWN), (choice.chosen, *ranked[:SHOWN]), strict=False
        )
    ]
    rest = len(ranked) - SHOWN
    return found if rest <= 0 else [*found, f"{'':14} and {rest} more"]


WIDTH, LEAST, MOST = 360.0, 48.0, 480.0
"""Of the array in pixels: its width, and how low and how high it may be."""
MOST_BLOCKS = 4096
"""Maximum number of blocks in a picture."""
_LABELLED = 26.0
"""A block at least so wide and high has the numbers of its ranks in it."""


def layout_picture(layout: ShardLayout) -> Picture:
    """Draw blocks in the colours of their ranks, to scale.

    Of more than two axes, the two with the most blocks are shown, at the origin of the rest.
    """
    down, across = _shown(layout)
    rows, columns = _cuts(layout, down), _cuts(layout, across)
    require(
        (len(rows) - 1) * (len(columns) - 1) <= MOST_BLOCKS,
        "dm.Array.draw",
        f"at most {MOST_BLOCKS} blocks",
        f"{len(rows) - 1} x {len(columns) - 1}",
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
    words = f"{layout.shape} on {len(layout.ranks)} ranks"
    if len(layout.shape) > 2:
        words += f", axes {down} and {across}"
    content.append(_text(words, 10 + WIDTH / 2, height + 30, TEXT))
    return Picture(picture(WIDTH + 20, height + 44, *content, font_family=SANS), "dm.Array.draw")


def _shown(layout: ShardLayout) -> tuple[int | None, int | None]:
    axes = sorted(range(len(layout.shape)), key=lambda axis: -len(layout.cuts[axis]))[:2]
    if len(axes) < 2:
        return None, axes[0] if axes else None
    return min(axes), max(axes)


def _cuts(layout: ShardLayout, axis: int | None) -> tuple[int, ...]:
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
