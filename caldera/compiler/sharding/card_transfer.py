"""Redistribution of arrays on GPUs: kernels pack and unpack, and one exchange moves the bytes.

Each rank packs what other ranks need into one buffer on its GPU, in the order of the ranks. The
communicator exchanges the buffers: with NCCL or a GPU-aware MPI from GPU memory, otherwise through
the host, which receives only the packed elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import STACK
from caldera.compiler.sharding.transfer import (
    Index,
    Message,
    RankTransfer,
    exchange,
    is_in_blocks,
)
from caldera.core.graph import Node
from caldera.kernels.cuda.codegen import CudaRunner
from caldera.kernels.cuda.movement import copying
from caldera.kernels.table import TABLE, Call, Kernel, Runner

ALIGNMENT = 256
"""Bytes to which the received half of the workspace is aligned."""


def _plan(source: ShardLayout, target: ShardLayout, rank: int, terms: int = 1) -> RankTransfer:
    # Lengths of messages do not matter: they become one.
    return exchange(source, target, rank, 1, terms)


def _elements(messages: Mapping[int, Sequence[Message]], ranks: int) -> list[int]:
    """Return the number of elements in the messages for each rank."""
    lists = (messages.get(rank, ()) for rank in range(ranks))
    return [sum(piece.size for message in each for piece in message) for each in lists]


def _halves(plan: RankTransfer, itemsize: int) -> tuple[int, int]:
    """Return the offset of received elements in the workspace, and the size of the workspace."""
    sent, received = (
        itemsize * sum(piece.size for each in peers.values() for m in each for piece in m)
        for peers in (plan.sends, plan.receives)
    )
    begin = -(-max(sent, 1) // ALIGNMENT) * ALIGNMENT
    return begin, begin + max(received, itemsize)


def _packing(
    messages: Mapping[int, Sequence[Message]], buffer: np.ndarray, part: Callable[[int], np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of a stretch of the buffer and of the elements of a part that it has."""
    pairs, filled = [], 0
    for peer in sorted(messages):
        for piece in (piece for message in messages[peer] for piece in message):
            stretch = buffer[filled : filled + piece.size].reshape(piece.box)
            pairs.append((stretch, _block(part(piece.term), piece.index)))
            filled += piece.size
    return pairs


def _block(array: np.ndarray, index: Index) -> np.ndarray:
    return array[index] if index else array


def transfer_calls(
    made: np.ndarray,
    given: np.ndarray,
    room: np.ndarray,
    plan: RankTransfer,
    comm: Communicator | None,
    terms: int = 1,
) -> list[Callable[[], object]]:
    """Return the calls that redistribute a part on a GPU; `made` has an axis of terms if several.

    `room` are the bytes of the workspace.
    """

    def own(_: int) -> np.ndarray:
        return given

    def of_term(term: int) -> np.ndarray:
        return made if terms == 1 else made[term, ...]

    stays = [
        (_block(of_term(new.term), new.index), _block(given, old.index)) for old, new in plan.stays
    ]
    if comm is None or not plan.moved.elements:
        return [*copying(stays)]
    begin, end = _halves(plan, given.itemsize)
    to_each, from_each = (_elements(peers, comm.size) for peers in (plan.sends, plan.receives))
    send = room[:begin].view(given.dtype)[: sum(to_each)]
    receive = room[begin:end].view(given.dtype)[: sum(from_each)]
    unpacking = [(to, stretch) for stretch, to in _packing(plan.receives, receive, of_term)]
    return [
        *copying([*stays, *_packing(plan.sends, send, own)]),
        partial(comm.Alltoall, send, receive, to_each, from_each),
        *copying(unpacking),
    ]


# --- kernel


def _plan_of(node: Node) -> RankTransfer:
    attrs = node.attrs
    return _plan(attrs["source"], attrs["target"], attrs["rank"], attrs["terms"])


def _bind(call: Call) -> Runner:
    attrs, comm = call.node.attrs, call.communicator
    along: Any = None if comm is None else comm.along(attrs["axis"])
    arrays = call.outputs[0], call.inputs[0], call.workspace
    return CudaRunner(transfer_calls(*arrays, _plan_of(call.node), along, attrs["terms"]))


def _supports(node: Node) -> bool:
    attrs = node.attrs
    return (
        is_in_blocks(attrs["source"], attrs["target"])
        and attrs["dtype"] == node.inputs[0].dtype
        and (attrs["terms"] == 1 or attrs["reduce"] == STACK)
    )


TABLE.add(
    Kernel(
        "redistribute",
        "cuda",
        "one exchange",
        _bind,
        supports=_supports,
        workspace=lambda node: _halves(_plan_of(node), node.inputs[0].dtype.itemsize)[1],
        capturable=False,
        measured=False,
    )
)
