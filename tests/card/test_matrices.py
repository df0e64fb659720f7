"""Distributed matrices whose parts are on cards: blocks are packed and moved by their kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.compiler.sharding import card_transfer
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.dmath import rank
from caldera.dmath.protocol import SERVICES
from tests.card.emulated import EmulatedCard, emulated_card

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=shape).astype("float32") for shape in ((9, 7), (7, 8)))
NUMBERS = np.arange(63, dtype="int32").reshape(9, 7)


@pytest.fixture
def exchanges(card: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of ranks in a session on cards, one entry for each exchange that was bound."""
    if isinstance(card, EmulatedCard):
        numbers = itertools.count()

        def found(name: str) -> Device:
            return emulated_card(next(numbers)) if name.startswith("cuda") else find_device(name)

        monkeypatch.setattr(rank, "find_device", found)
    bound: list[int] = []
    calls = card_transfer.transfer_calls

    def counted(made: np.ndarray, *given: object) -> object:
        bound.append(made.ndim)
        return calls(made, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(card_transfer, "transfer_calls", counted)
    yield bound
    dm.disconnect()


@pytest.mark.parametrize("ranks", [2, 3])
def test_blocks_move_between_cards(
    ranks: int, exchanges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        SERVICES,
        "kernels",
        lambda rank: tuple(each.device.kernels for each in rank.arrays.values()),
    )
    with dm.connect(threads=ranks, device="cuda") as session:
        x, y = dm.array(A, layout=dm.Rows()), dm.array(B, layout=dm.Columns())
        product = (x @ y).eval()
        cases = [
            (product, A @ B),
            (x.to(layout=dm.Columns()), A),
            (x.to(layout=dm.Axis(0, cuts=(0, 1, *[4] * (ranks - 2), 9))), A),
            (x.to(layout=dm.Replicated()), A),
            ((x.T + 1).to(layout=dm.Rows()), A.T + 1),
            (x.to(layout=dm.Columns()) @ y.to(layout=dm.Rows()), A @ B),
            (dm.array(NUMBERS, layout=dm.Rows())[1:8:2].to(layout=dm.Columns()), NUMBERS[1:8:2]),
            (x.to(layout=dm.Grid(1, ranks)).replicate(dm.Rows()), A),
        ]
        for made, right in cases:
            np.testing.assert_allclose(made.numpy(), right, rtol=2e-5, atol=1e-5)
        assert {each for one in session.call("kernels") for each in one} == {"cuda"}
        # The reduced axis is split: terms are exchanged and added on the cards.
        assert 3 in exchanges
        x.replicate(dm.Columns())
        before = len(exchanges)
        np.testing.assert_allclose((x.to(layout=dm.Columns()) * 3).numpy(), 3 * A)
        assert len(exchanges) == before


def test_other_layouts_still_pass_through_the_host(exchanges: list[int]) -> None:
    with dm.connect(threads=2, device="cuda"):
        x = dm.array(A, layout=dm.Rows())
        cyclic = x.to(layout=dm.BlockCyclic(2, grid=(2,)))
        np.testing.assert_array_equal(cyclic.numpy(), A)
        assert not exchanges
        route = (x @ x.T).explain().route
        assert route.startswith("threads, through the host (rank 0 has no GPU)") or "share" in route
