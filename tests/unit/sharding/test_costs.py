"""What algorithms are expected to send, beside what they have sent."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.graph.node import Spec
from caldera.graph.opdef import OPS, parameter
from caldera.sharding.algorithms.cost import Cost
from caldera.sharding.algorithms.registry import ALGORITHMS
from caldera.sharding.distributions import Rows
from caldera.sharding.volume import Links

COUNTED = {
    "cholesky": {1024: 28.31, 2048: 113.25}, "solve": {1024: 140.02, 2048: 545.88},
    "qr": {1024: 83.61, 2048: 318.21},
}  # fmt: skip
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


def test_who_waits_for_bytes_takes_as_long_as_who_sends_them() -> None:
    links = Links()
    waiting, sending = Cost(awaited=1000), Cost(bytes=1000)
    assert waiting.seconds(links) == sending.seconds(links) == 1000 / links.collective
    assert (waiting + waiting).awaited == 2000
