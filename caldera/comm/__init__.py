"""Communicators: how ranks exchange data."""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.base.foreign_names import answer_foreign as _answer_foreign
from caldera.comm.communicator import Communicator
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.nccl import NcclCommunicator
from caldera.comm.point_to_point import ANY_SOURCE
from caldera.comm.ranks import Mesh, SingleProcess, restarted, world
from caldera.comm.requests import Request
from caldera.comm.traffic import Count, Counts, Traffic
from caldera.comm.virtual import VirtualRank, run_virtual_ranks
from caldera.errors import RankLostError

__all__ = [
    "ANY_SOURCE",
    "Communicator",
    "Count",
    "Counts",
    "Mesh",
    "MpiCommunicator",
    "NcclCommunicator",
    "RankLostError",
    "Request",
    "SingleProcess",
    "Traffic",
    "VirtualRank",
    "restarted",
    "run_virtual_ranks",
    "world",
]

_guard(
    globals(),
    "MpiCommunicator",
    "NcclCommunicator",
    "VirtualRank",
    own_words=False,
    methods={"Mesh": "axis together"},
)
_answer_foreign(globals())
