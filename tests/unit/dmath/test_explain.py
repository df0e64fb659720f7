"""What `explain()` says, beside what ranks then do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.compiler.sharding.volume import Links
from caldera.dmath.explain import CALL_S
from caldera.dmath.protocol import SERVICES

RANKS = 4
SLOW = Links(latency=1e-9, bandwidth=1e3, collective=1e3, flops=1e15, copying=1e15)


@pytest.fixture
def session() -> Iterator[dm.Session]:
    with dm.connect(threads=RANKS) as made:
        yield made


def _sent(session: dm.Session) -> int:
    return sum(sent for _, sent, _ in session.call("moved"))


@pytest.mark.parametrize("layout", [dm.Grid(2, 2), dm.Rows(), dm.Columns()])
def test_bytes_of_a_product_are_those_that_are_sent(session: dm.Session, layout: Any) -> None:
    a = np.random.default_rng(0).normal(size=(192, 192))
    x, y = dm.array(a, layout=layout), dm.array(a, layout=dm.Grid(2, 2))
    product = x @ y
    explanation = product.explain()
    before = _sent(session)
    np.testing.assert_allclose(product.numpy(), a @ a, rtol=1e-12, atol=1e-12)
    assert _sent(session) - before == explanation.nbytes > 0
    (choice,) = explanation.choices
    assert choice.chosen.nbytes == explanation.nbytes
    calls = CALL_S * len([*explanation.moves, choice])
    assert choice.chosen.seconds + calls == pytest.approx(explanation.seconds)
    assert all(other.nbytes > 0 for other in choice.others if other.name != "local")


def test_what_was_measured_decides(session: dm.Session, monkeypatch: Any) -> None:
    asked: list[int] = []

    def links(rank: Any) -> tuple[float, ...]:
        asked.append(rank.communicator.rank)
        return astuple(SLOW)

    monkeypatch.setitem(SERVICES, "links", links)
    small = dm.array(np.ones((64, 64)), layout=dm.Rows())
    assert (small @ small).explain().seconds < 1e-2
    assert not asked, "nobody measures for what is small"
    large = dm.array(np.ones((384, 384)), layout=dm.Rows())
    product = large @ large
    explanation = product.explain()
    (choice,) = explanation.choices
    # Sending takes all the time: that of the rank that sends or receives the most.
    assert all(other.seconds >= choice.chosen.seconds for other in choice.others)
    assert explanation.seconds == pytest.approx(explanation.nbytes / RANKS / 1e3, rel=1e-3)
    assert sorted(asked) == list(range(RANKS))
    assert np.array_equal(product.numpy(), np.full((384, 384), 384.0))
    assert len(asked) == RANKS, "once is enough"


def test_the_table_has_bytes_and_seconds_of_ways(session: dm.Session) -> None:
    x = dm.array(np.ones((256, 256)), layout=dm.Grid(2, 2))
    text = str((x @ x).explain())
    assert "with its moves" in text
    assert "before" in text
    assert "more" in text
    assert "in all" in text


@pytest.mark.parametrize(
    ("computed", "itemsize"),
    # Of real numbers half of the frequencies, and one more.
    [(np.fft.fft2, 9), (lambda x: np.sort(x, axis=0), 8), (lambda x: x[np.arange(191, 0, -3)], 8)],
    ids=["fft2", "sort", "rows"],
)
def test_an_axis_that_must_be_whole_takes_one_transpose(
    session: dm.Session, computed: Any, itemsize: int
) -> None:
    a = np.random.default_rng(0).normal(size=(192, 192))
    found = computed(dm.array(a, layout=dm.Rows()))
    explanation, before = found.explain(), _sent(session)
    np.testing.assert_allclose(found.numpy(), computed(a), rtol=1e-10, atol=1e-10)
    assert _sent(session) - before == explanation.nbytes <= a.size * itemsize * 3 // 4
    assert not found.layout.is_replicated
