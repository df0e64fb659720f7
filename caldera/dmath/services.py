"""What ranks do beside running programs, by name: a worker is asked for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera.dmath.rank import Rank

SERVICES: dict[str, Callable[..., Any]] = {}
"""Functions of a rank and of plain data, which give plain data."""


def service(function: Callable[..., Any]) -> Callable[..., Any]:
    """Offer a function to the master, under its name."""
    SERVICES[function.__name__] = function
    return function


@service
def nbytes(rank: Rank) -> int:
    """Bytes of all parts on a rank."""
    return rank.nbytes


@service
def moved(rank: Rank) -> tuple[int, int, int]:
    """Messages and bytes that a rank has sent to others, and bytes it has received."""
    count = rank.communicator.traffic.total
    return count.messages, count.bytes_sent, count.bytes_received
