"""Loops of a plan that are alike run in one launch, wherever in the plan they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import caldera as cd
from caldera import op
from caldera.core.memory import Device
from caldera.kernels.cuda.elementwise.fused import Touched, in_groups, needed_before
from caldera.kernels.cuda.runtime.driver import driver
from tests.card.emulated import EmulatedDriver

CELLS = 12
part = st.tuples(st.integers(0, CELLS - 1), st.integers(1, 3))
_call = st.tuples(
    st.lists(part, max_size=2),
    st.lists(part, min_size=1, max_size=2),
    st.sampled_from([None, "a", "b"]),
)


def run_touching(memory: np.ndarray, touched: Touched, number: int) -> None:
    """Something whose result tells in which order it ran with others that touch the same."""
    total = sum((int(array.sum()) for array in touched[0]), number)
    for array in touched[1]:
        array *= 3
        array += total
    memory %= 1009


@settings(max_examples=150, deadline=None)
@given(st.lists(_call, max_size=14))
def test_groups_give_what_the_calls_give_in_their_order(calls: list[Any]) -> None:
    def memory() -> tuple[np.ndarray, list[Touched]]:
        cells = np.arange(CELLS, dtype=np.int64)
        return cells, [
            ([cells[a : a + n] for a, n in reads], [cells[a : a + n] for a, n in writes])
            for reads, writes, _ in calls
        ]

    kinds = [kind for *_, kind in calls]
    one, touched = memory()
    for number, each in enumerate(touched):
        run_touching(one, each, number)
    other, touched = memory()
    groups = in_groups(needed_before(touched), kinds)
    for group in groups:
        # Within a group any order has to do.
        for number in reversed(group):
            run_touching(other, touched[number], number)
    np.testing.assert_array_equal(other, one)
    assert sorted(number for group in groups for number in group) == list(range(len(calls)))
    assert all(len({kinds[number] for number in group}) == 1 for group in groups)
    alone = [number for group in groups for number in group if kinds[number] is None]
    assert alone == sorted(alone)
    assert all(len(group) == 1 for group in groups if kinds[group[0]] is None)


SIZES = [(5, 3), (1000,), (), (17,), (40, 33), (4,)]


def _after_updates(place: Any) -> list[np.ndarray]:
    """Variables that were cast, multiplied and updated three times."""
    draw = np.random.default_rng(0)
    rate = op.var("rate", (), fill=cd.constant(0.1), device=place)
    kept = [
        op.var(f"w{i}", shape, fill=draw.standard_normal(shape).astype("float32"), device=place)
        for i, shape in enumerate(SIZES)
    ]
    narrow = [op.cast(each, "bfloat16") for each in kept]
    # A product stands between the casts and the updates.
    square = op.matmul(narrow[4], op.transpose(narrow[4], (1, 0)))
    updates = [
        op.assign(each, each - rate * (op.cast(half, "float32") + 1.0))
        for each, half in zip(kept, narrow, strict=True)
    ]
    plan = cd.compile([square, *narrow, *updates])
    for _ in range(3):
        plan.run()
    return [each.numpy() for each in kept]


def test_many_variables_are_updated_in_one_launch(card: Device) -> None:
    for there, here in zip(_after_updates(card), _after_updates("cpu"), strict=True):
        np.testing.assert_array_equal(there, here)
    using = driver()
    if isinstance(using, EmulatedDriver):
        # In each run one for all but the single number, which is read in another way.
        assert using.launches.count("loops") == 3
        assert using.launches.count("loop") == 3
