"""Axes of charts: from values to places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caldera.draw.axis import axis_of, whole_axis


@given(
    st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=5),
    st.booleans(),
)
def test_an_axis_holds_its_values(values: list[float], log: bool) -> None:
    if log:
        values = [abs(value) + 1e-12 for value in values]
    axis = axis_of(values, log=log)
    for value in values:
        assert -1e-9 <= axis.place(value) <= 1 + 1e-9
    assert len(axis.ticks) >= 2
    assert len(set(axis.labels())) == len(axis.ticks)
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_an_axis_of_epochs_has_whole_ticks(first: int, more: int) -> None:
    axis = whole_axis(list(range(first, first + more + 1)))
    assert 1 <= len(axis.ticks) <= 12
    assert all(isinstance(tick, int) and first <= tick <= first + more for tick in axis.ticks)


def test_a_loss_over_many_decades_is_drawn_by_its_logarithm() -> None:
    assert not axis_of([0.01, 0.9]).log
    assert axis_of([0.001, 0.9]).log
    assert not axis_of([-1.0, 1000.0]).log
