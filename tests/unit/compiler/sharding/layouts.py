"""Layouts of all kinds, for tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.table_layout import TableLayout

MOST_RANKS = 6


@st.composite
def axis_splits(draw: Any, length: int, parts: int) -> AxisSplit:
    """Blocks of any sizes, empty ones too, that belong to any parts."""
    inner = sorted(draw(st.lists(st.integers(0, length), max_size=5)))
    cuts = (0, *inner, length)
    owner = st.integers(0, parts - 1)
    owners = draw(st.lists(owner, min_size=len(cuts) - 1, max_size=len(cuts) - 1))
    return AxisSplit(parts, cuts, tuple(owners))


@st.composite
def shapes(draw: Any, most_axes: int = 3, longest: int = 6) -> tuple[int, ...]:
    """Small shapes, some of them empty."""
    return tuple(draw(st.lists(st.integers(0, longest), max_size=most_axes)))


@st.composite
def cartesian(draw: Any, shape: tuple[int, ...], ranks: int = MOST_RANKS) -> CartesianLayout:
    """Any mesh, with replicas, on any of the ranks in any order."""
    splits: list[AxisSplit | None] = []
    left = ranks
    for length in shape:
        parts = draw(st.integers(1, min(3, left)))
        left //= parts
        splits.append(draw(axis_splits(length, parts)) if parts > 1 else None)
    replicas = draw(st.integers(1, left))
    needed = replicas
    for split in splits:
        needed *= 1 if split is None else split.parts
    order = draw(st.permutations(range(ranks)))
    return CartesianLayout(shape, tuple(splits), tuple(order[:needed]))


@st.composite
def tables(draw: Any, shape: tuple[int, ...], ranks: int = MOST_RANKS) -> TableLayout:
    """Any blocks on any ranks, some on several."""
    blocks, count = [], 1
    for length in shape:
        cuts = (0, *sorted(draw(st.lists(st.integers(0, length), max_size=2))), length)
        blocks.append(cuts)
        count *= len(cuts) - 1
    owner = st.lists(st.integers(0, ranks - 1), min_size=1, max_size=2, unique=True).map(tuple)
    table = draw(st.lists(owner, min_size=count, max_size=count))
    return TableLayout(shape, tuple(blocks), tuple(table))


def layouts(shape: tuple[int, ...], ranks: int = MOST_RANKS) -> st.SearchStrategy[ShardLayout]:
    """Of both kinds."""
    return st.one_of(cartesian(shape, ranks), tables(shape, ranks))
