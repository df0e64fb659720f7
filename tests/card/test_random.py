"""Random numbers on a card: the same bits as everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.ops.random import random_normal, random_uniform
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call
from tests.card.candidates import check, fetched, nodes_of_cases, placed, same_bits, stand_ins
from tests.unit.kernels.checking import DTYPES

DRAWS = {"uniform": random_uniform, "normal": random_normal}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("first", [0, 1, 6, 2**33 + 3])
def test_the_bits_are_those_of_the_cpu(card: Device, draw: str, dtype: str, first: int) -> None:
    state, offset = np.array([-5, 7]), np.array(first)
    for shape in ((1,), (0, 3), (5, 7), (1200,)):
        node = DRAWS[draw](
            *stand_ins(state, offset), shape=shape, dtype=BY_NAME[dtype], stream=2**32 - 1
        )
        assert check(card, node, (state, offset), by=same_bits, layouts=["dense", "with gaps"])


def test_many_normal_numbers_agree_to_the_last_bit(card: Device) -> None:
    state, offset = np.array([3, 0]), np.array(0)
    for dtype in ("float32", "float64"):
        node = random_normal(
            *stand_ins(state, offset), shape=(40_000,), dtype=BY_NAME[dtype], stream=0
        )
        assert check(card, node, (state, offset), by=same_bits, layouts=["dense"])


def test_the_cases_of_every_op(card: Device) -> None:
    found = set()
    for node, inputs in nodes_of_cases({"random_uniform", "random_normal"}, "float32"):
        assert check(card, node, inputs, by=same_bits)
        found.add(node.op.name)
    assert found == {"random_uniform", "random_normal"}


def test_elements_are_numbered_row_by_row_however_they_lie(card: Device) -> None:
    state, offset = np.array([3, 0]), np.array(5)
    node = random_uniform(
        *stand_ins(state, offset), shape=(6, 10), dtype=BY_NAME["float32"], stream=0
    )
    (kernel,) = TABLE.candidates(node, "cuda")
    lying = np.empty((10, 6), "float32").T
    there = placed(card, lying)
    given = (placed(card, state), placed(card, offset))
    card.stream.launch(lambda: kernel.bind(Call(node, (there,), given))())
    card.stream.synchronize()
    np.testing.assert_array_equal(fetched(card, there, lying), evaluate(node, (state, offset))[0])
