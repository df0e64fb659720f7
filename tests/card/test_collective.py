"""Sums over ranks on a card."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.comm import Communicator, SingleProcess, VirtualRank, run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.collective import (
    Message,
    all_gather_flat,
    all_reduce,
    all_sum,
    next_number,
    reduce_scatter_flat,
)
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.errors import DeviceError
from caldera.kernels.table import TABLE
from tests.card.candidates import run_kernel, same_bits, stand_ins
from tests.card.emulated import EmulatedCard, emulated_card
from tests.unit.kernels.checking import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_communicator_it_is_a_copy(card: Device, dtype: str) -> None:
    x = np.arange(6.0).reshape(2, 3).astype(BY_NAME[dtype])
    node = all_sum(*stand_ins(x), axis="data", number=(0,))
    (kernel,) = TABLE.candidates(node, "cuda")
    for given in (x, x.T.copy().T):
        same_bits(run_kernel(card, kernel, node, (given,))[0], x)


def test_one_rank(card: Device) -> None:
    x = op.var("x", (2, 3), fill=np.arange(6.0).reshape(2, 3), device=card)
    plan = cd.compile([op.all_sum(op.transpose(x))], device=card, communicator=SingleProcess())
    for _ in range(2):
        assert plan.run()[0].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_several_ranks(card: Device) -> None:
    def work(comm: Communicator) -> list[float]:
        # Ranks of one process share a real card, which only waits for its own work.
        mine = emulated_card(comm.rank) if isinstance(card, EmulatedCard) else card
        x = op.var(f"x{comm.rank}", (3,), fill=np.full(3, comm.rank + 1.0), device=mine)
        total: Expr = op.all_sum(x * 2.0)
        plan = cd.compile([total], device=mine, communicator=comm)
        plan.run()
        result: list[float] = plan.run()[0].tolist()
        return result

    assert run_virtual_ranks(3, work) == [[12.0] * 3] * 3


@pytest.mark.parametrize("direct", [False, True])
def test_messages_of_several_ranks(
    card: Device, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums, and parts that are spread and gathered again; sizes that ranks do not divide."""
    if direct:
        # Between real cards NCCL does this, one rank a card.
        if not isinstance(card, EmulatedCard):
            pytest.skip("NCCL takes one rank a card, and the ranks of one process share one")
        monkeypatch.setattr(VirtualRank, "gpu_aware", True)
    numbers = np.random.default_rng(0).normal(size=(3, 7, 3)).astype("float32")

    def work(comm: Communicator) -> list[np.ndarray]:
        mine = emulated_card(comm.rank) if isinstance(card, EmulatedCard) else card
        x = op.var(f"x{comm.rank}", (7, 3), fill=numbers[comm.rank], device=mine)
        values = [(x * 2.0).node, op.transpose(x).node, op.sum(x, axis=0).node]
        sums = all_reduce(values, Message("sum", "data", next_number()))
        how = Message("scatter", "data", next_number(), ranks=comm.size)
        parts = reduce_scatter_flat(values[1:], how)
        how = Message("gather", "data", next_number(), ranks=comm.size)
        wholes = all_gather_flat(parts, [(3, 7), (3,)], how)
        plan = cd.compile([Expr(n) for n in (*sums, *wholes)], device=mine, communicator=comm)
        plan.run()
        return [tensor.numpy().copy() for tensor in plan.run()]

    whole = numbers.sum(0)
    expected = [2 * whole, whole.T, whole.sum(0), whole.T, whole.sum(0)]
    for found in run_virtual_ranks(3, work):
        for mine, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)


def test_it_waits_and_so_cannot_be_captured(card: Device) -> None:
    x = op.var("x", (3,), fill=np.ones(3), device=card)
    plan = cd.compile([op.all_sum(x)], device=card)
    assert not plan.can_capture
    with pytest.raises(DeviceError, match=r"capture of op\.all_sum: .*'through the host'"):
        plan.capture()
    assert plan.run()[0].tolist() == [1.0] * 3
