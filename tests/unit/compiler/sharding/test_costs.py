"""What algorithms are expected to send, beside what they have sent."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.compiler.sharding.algorithms.product_variants import STATIONARY_C, product_cost
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.algorithms.variant import AlgorithmCost, computing
from caldera.compiler.sharding.distributions import Rows
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter

COUNTED = {
    "cholesky": {1024: 28.31, 2048: 113.25},
    "solve": {1024: 140.02, 2048: 545.88},
    "qr": {1024: 83.61, 2048: 318.21},
}
"""Megabytes of all ranks for square matrices of float64 on 16 of them."""


@pytest.mark.parametrize("name", COUNTED)
def test_factorisations_send_what_is_expected(name: str) -> None:
    for n, counted in COUNTED[name].items():
        leaves = [parameter(i, Spec((n, n), np.dtype(float))) for i in range(1 + (name == "solve"))]
        given = [Rows().of((n, n), range(16)) for _ in leaves]
        variants = ALGORITHMS[name].variants(OPS[name].node(*leaves), given, 16)
        (cost,) = [each.cost for each in variants if each.options == (64,)]
        assert cost.bytes * 16 / 1e6 == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize("name", ["cholesky", "solve", "inverse", "slogdet", "qr"])
def test_nothing_costs_nothing_to_send(name: str) -> None:
    leaves = [parameter(i, Spec((0, 0), np.dtype(float))) for i in range(1 + (name == "solve"))]
    made = OPS[name].node(*leaves)
    given = [Rows().of((0, 0), range(4)) for _ in leaves]
    for variant in ALGORITHMS[name].variants(made, given, 4):
        assert variant.cost.bytes == variant.cost.awaited == 0


def _transform(name: str, shape: tuple[int, ...], axis: int) -> Node:
    attrs = {"inverse": False} if name == "fft" else {}
    return OPS[name].node(parameter(0, Spec(shape, np.dtype(float))), axis=axis, **attrs)


def test_transforms_of_columns_are_slower_than_those_of_rows() -> None:
    links = Links(transforms=4e9, columns_near=3e9, columns_far=1e9)
    rows, columns = (computing(_transform("fft", (2048, 2048, 2), axis)) for axis in (1, 0))
    assert columns.seconds(links) == pytest.approx(4 * rows.seconds(links))
    # Of the part of one of many ranks more is in its caches.
    part = computing(_transform("fft", (2048, 2048, 2), 0), 128)
    assert 128 * part.seconds(links) == pytest.approx(columns.seconds(links) / 3)
    real = computing(_transform("rfft", (2048, 2048), 1))
    assert real.transforms
    assert not real.columns


def test_lengths_with_large_factors_take_longer_to_transform() -> None:
    easy, hard = (computing(_transform("rfft", (64, n), 1)).transforms for n in (1024, 1021))
    assert 4 < hard / easy < 5


def test_a_product_in_shared_memory_counts_what_is_copied_and_meetings() -> None:
    cuts = (0, 512, 1024)
    cost = product_cost(STATIONARY_C, (1, 2, 2), [cuts] * 4, 8)
    links = Links(meeting=1e-3, shared=1e9)
    work = cost.flops / links.flops + 4 * 512 * 512 * 8 / links.copying
    assert cost.seconds(links) == pytest.approx(work + cost.meetings * 1e-3)
    assert cost.meetings == 1
    sent = cost.bytes / links.collective + cost.messages * links.latency
    assert cost.seconds(Links()) == pytest.approx(work + sent)


def test_who_waits_for_bytes_takes_as_long_as_who_sends_them() -> None:
    links = Links()
    waiting, sending = AlgorithmCost(awaited=1000), AlgorithmCost(bytes=1000)
    assert waiting.seconds(links) == sending.seconds(links) == 1000 / links.collective
    assert (waiting + waiting).awaited == 2000
