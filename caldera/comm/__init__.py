"""Communicators: how ranks exchange data."""

from __future__ import annotations

from caldera.comm.interface import Communicator
from caldera.comm.single import SingleProcess
from caldera.comm.virtual import VirtualRank, run_virtual_ranks

__all__ = ["Communicator", "SingleProcess", "VirtualRank", "run_virtual_ranks"]
