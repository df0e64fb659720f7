"""Communicators: how ranks exchange data."""

from __future__ import annotations

from caldera.comm.interface import ANY_SOURCE, Communicator
from caldera.comm.request import Request
from caldera.comm.single import SingleProcess
from caldera.comm.traffic import Count, Counts, Traffic
from caldera.comm.virtual import VirtualRank, run_virtual_ranks

__all__ = [
    "ANY_SOURCE",
    "Communicator",
    "Count",
    "Counts",
    "Request",
    "SingleProcess",
    "Traffic",
    "VirtualRank",
    "run_virtual_ranks",
]
