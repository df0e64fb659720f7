"""Collectives built from messages: functions over the `Isend` and `Irecv` of any communicator."""

from __future__ import annotations

from caldera.comm.algorithms.allreduce import ALLREDUCE, allreduce
from caldera.comm.algorithms.collectives import (
    allgather,
    alltoall,
    barrier,
    broadcast,
    exchange_messages,
    reduce,
    reduce_scatter,
)

__all__ = [
    "ALLREDUCE",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "exchange_messages",
    "reduce",
    "reduce_scatter",
]
