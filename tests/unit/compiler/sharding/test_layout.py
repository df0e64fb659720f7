"""Laws of layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera.compiler.sharding.axis_split import AxisSplit, cyclic_split, even_split, positions
from caldera.compiler.sharding.distributions import (
    Axis,
    BlockCyclic,
    Blocks,
    Columns,
    Grid,
    Replicated,
    Rows,
    as_layout,
)
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.table_layout import TableLayout, joined, reshaped
from caldera.errors import ConfigError, ShapeError
from tests.unit.compiler.sharding.layouts import MOST_RANKS, axis_splits, cartesian, layouts, shapes

RANKS = range(MOST_RANKS)
few = settings(max_examples=60, deadline=None)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    """An array whose elements are all different."""
    return np.arange(int(np.prod(shape, dtype=int))).reshape(shape)


def parts(layout: ShardLayout, whole: np.ndarray) -> list[np.ndarray]:
    return [layout.part_of(whole, rank) for rank in RANKS]


def some_layout(draw: Any, cartesian_only: bool = False) -> ShardLayout:
    shape = draw(shapes())
    return draw(cartesian(shape) if cartesian_only else layouts(shape))


@few
@given(st.data())
def test_parts_are_what_the_owners_say_and_give_the_whole_back(data: Any) -> None:
    layout = some_layout(data.draw)
    whole = numbered(layout.shape)
    held = parts(layout, whole)
    for rank, part in enumerate(held):
        assert part.shape == layout.local_shape(rank)
        own = [whole[i] for i in np.ndindex(layout.shape) if rank in layout.owners(i)]
        assert layout.elements(rank) == len(own)
        assert layout.nbytes(rank, np.dtype(np.float32)) == 4 * len(own)
        if own:
            assert sorted(part.reshape(-1).tolist()) == sorted(own)
    assert np.array_equal(layout.whole_of(held), whole)
    # Of nothing, parts may still have other shapes than the whole.
    assert not whole.size or layout.is_replicated == all(
        set(layout.owners(i)) == set(layout.ranks) for i in np.ndindex(layout.shape)
    )


@few
@given(st.data())
def test_own_numbers_and_those_of_the_whole(data: Any) -> None:
    layout = data.draw(cartesian(data.draw(shapes())))
    whole = numbered(layout.shape)
    for rank in layout.ranks:
        axes = [layout.axis_indices(rank, axis) for axis in range(whole.ndim)]
        assert np.array_equal(layout.part_of(whole, rank), whole[np.ix_(*axes)])


@few
@given(st.data())
def test_transposing_parts_transposes_the_whole(data: Any) -> None:
    layout = some_layout(data.draw)
    whole = numbered(layout.shape)
    axes = data.draw(st.permutations(range(whole.ndim)))
    back = [axes.index(axis) for axis in range(whole.ndim)]
    assert layout.transposed(axes).transposed(back) == layout
    again = data.draw(st.permutations(range(whole.ndim)))
    both = [axes[axis] for axis in again]
    assert layout.transposed(axes).transposed(again) == layout.transposed(both)
    if isinstance(layout, CartesianLayout):
        for rank in RANKS:
            part = layout.part_of(whole, rank).transpose(axes)
            assert np.array_equal(
                layout.transposed(axes).part_of(whole.transpose(axes), rank), part
            )


def some_bounds(draw: Any, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    found = []
    for n in shape:
        start = draw(st.integers(0, n))
        found.append((start, draw(st.integers(start, n)), draw(st.integers(1, 3))))
    return found


@few
@given(st.data())
def test_a_slice_is_what_each_rank_has_of_it(data: Any) -> None:
    layout = data.draw(cartesian(data.draw(shapes())))
    whole = numbered(layout.shape)
    bounds = some_bounds(data.draw, layout.shape)
    cut = layout.sliced(bounds)
    taken = whole[tuple(slice(*bound) for bound in bounds)]
    for rank in RANKS:
        part = layout.part_of(whole, rank)
        for axis, stretches in enumerate(layout.local_slices(bounds, rank)):
            kept = [np.arange(part.shape[axis])[each] for each in stretches]
            part = part.take(np.concatenate([np.empty(0, int), *kept]), axis)
        assert np.array_equal(cut.part_of(taken, rank), part)
    # A slice of a slice is a slice.
    inner = some_bounds(data.draw, cut.shape)
    both = [
        (a + b * step, max(a + b * step, min(a + step * (e - 1) + 1, n) if e > b else 0), step * s)
        for (a, _, step), (b, e, s), n in zip(bounds, inner, layout.shape, strict=True)
    ]
    assert cut.sliced(inner) == layout.sliced(both)


@few
@given(st.data())
def test_reshaping_parts_reshapes_the_whole(data: Any) -> None:
    layout = data.draw(cartesian(data.draw(shapes())))
    whole = numbered(layout.shape)
    new = data.draw(st.sampled_from([(-1,), (2, -1), (-1, 2), (3, -1), (-1, 1, 2), (1, -1)]))
    try:
        want = whole.reshape(new)
    except ValueError:
        return
    found = reshaped(layout, want.shape)
    if found is None:
        return
    for rank in layout.ranks:
        part = layout.part_of(whole, rank)
        assert np.array_equal(part.reshape(-1), found.part_of(want, rank).reshape(-1))


def test_what_reshapes_without_moving_anything() -> None:
    inner = CartesianLayout((4, 6), (None, even_split(6, 2)), (0, 1))
    flat = reshaped(inner, (24,))
    assert flat is not None
    assert len(flat.cuts[0]) == 9
    assert reshaped(flat, (4, 6)) == inner
    assert reshaped(flat, (2, 2, 6)) is not None
    assert reshaped(inner, (8, 3)) is not None
    assert reshaped(inner, (3, 8)) is None
    grid = Grid(2, 2).of((4, 6), range(4))
    assert isinstance(grid, CartesianLayout)
    assert reshaped(grid, (2, 2, 1, 2, 3)) is not None
    assert reshaped(grid, (24,)) is None


@few
@given(st.data())
def test_joining_parts_joins_the_wholes(data: Any) -> None:
    layout = data.draw(cartesian(data.draw(shapes().filter(len))))
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    split = layout.splits[axis]
    longer = list(layout.shape)
    longer[axis] = data.draw(st.integers(0, 4))
    other = data.draw(axis_splits(longer[axis], split.parts)) if split is not None else None
    splits = (*layout.splits[:axis], other, *layout.splits[axis + 1 :])
    second = CartesianLayout(tuple(longer), splits, layout.ranks)
    both = joined([layout, second], axis)
    assert both is not None
    a, b = numbered(layout.shape), 1000 + numbered(second.shape)
    for rank in layout.ranks:
        mine = [layout.part_of(a, rank), second.part_of(b, rank)]
        joint = np.concatenate(mine, axis)
        assert np.array_equal(both.part_of(np.concatenate([a, b], axis), rank), joint)
    elsewhere = replicated(tuple(longer), (MOST_RANKS,))
    assert joined([layout, elsewhere], axis) is None


@few
@given(st.data())
def test_axes_that_go_come_and_turn(data: Any) -> None:
    layout = data.draw(cartesian(data.draw(shapes())))
    whole = numbered(layout.shape)
    axes = data.draw(st.sets(st.sampled_from(range(whole.ndim)))) if whole.ndim else set()
    less = layout.unsplit(sorted(axes))
    assert not set(less.split_axes) & axes
    for rank in layout.ranks:
        for axis in range(whole.ndim):
            same = layout.axis_intervals(rank, axis)
            all_of_it = ((0, whole.shape[axis]),) if whole.shape[axis] else ()
            assert less.axis_intervals(rank, axis) == (all_of_it if axis in axes else same)
        part = np.flip(layout.part_of(whole, rank), tuple(axes))
        turned = layout.flipped(sorted(axes))
        assert np.array_equal(turned.part_of(np.flip(whole, tuple(axes)), rank), part)
    assert layout.expanded(0, 3).without([0]) == layout


def test_splits_that_give_the_same_are_equal() -> None:
    assert AxisSplit(3, (0, 2, 2, 5), (1, 0, 1)) == AxisSplit(3, (0, 5), (1,))
    assert even_split(0, 3) == cyclic_split(0, 3, 2)
    assert positions(((3, 5),), ()) == slice(0, 0)
    one = CartesianLayout((4,), (even_split(4, 1),), (0,))
    assert one == replicated((4,), (0,))
    assert hash(one) == hash(replicated((4,), (0,)))


def test_what_users_write() -> None:
    shape = (5, 8)
    assert Rows().of(shape, range(2)).local_shape(0) == (3, 8)
    assert Rows(cuts=[0, 5, 5]).of(shape, range(2)).local_shape(1) == (0, 8)
    assert Columns(unit=4).of(shape, range(3)).cuts[1] == (0, 4, 8)
    assert Axis(0).of((), range(2)).is_replicated
    assert Grid(2, 2).of(shape, range(5)).ranks == (0, 1, 2, 3)
    twice = Grid(2).of(shape, range(4))
    assert twice.owners((0, 0)) == (0, 2)
    assert BlockCyclic((1, 2), grid=(2, 2)).of(shape, range(4)).local_shape(0) == (3, 4)
    assert Replicated().of(shape, range(3)).is_replicated
    table = Blocks(rows=2, columns=[0, 8], owners=lambda row, column: [row % 2, 3]).of(
        shape, range(4)
    )
    assert table.owners((3, 3)) == (1, 3)
    assert Blocks(4).of((10,), range(2)).local_shape(0) == (6,)
    assert as_layout(table, shape, range(4)) is table


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: AxisSplit(2, (1, 3), (0,)),
        lambda: AxisSplit(2, (0, 3), (2,)),
        lambda: CartesianLayout((3,), (even_split(4, 2),), (0, 1)),
        lambda: CartesianLayout((4,), (even_split(4, 2),), (0, 1, 2)),
        lambda: replicated((4,), (0, 0)),
        lambda: TableLayout((4,), ((0, 3),), ((0,),)),
        lambda: TableLayout((4,), ((0, 4),), ()),
        lambda: Axis(2).of((4,), range(2)),
        lambda: Grid(2, 2).of((4, 4), range(3)),
        lambda: Grid(0),
        lambda: Blocks(rows=2, owners=[0]).of((4,), range(2)),
        lambda: as_layout(replicated((4,), (0,)), (5,), range(2)),
        lambda: Rows().of((4,), range(2)).part_of(np.zeros(5), 0),
    ],
)
def test_what_is_refused(wrong: Any) -> None:
    with pytest.raises((ConfigError, ShapeError), match="expected"):
        wrong()
