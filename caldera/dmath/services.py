"""What ranks do beside running programs, by name: a worker is asked for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from caldera.compiler.sharding.algorithms.process_grid import grids_of
from caldera.compiler.sharding.calibration import measured_links
from caldera.dmath.rank import Rank
from caldera.dmath.replicas import View

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
    """Messages and bytes that a rank has sent to others, and bytes it has received; along the rows
    and columns of grids too."""
    every = {rank.communicator}
    for grid in grids_of(rank.communicator):
        every |= {grid.along_layers, grid.along_column, grid.along_row}
    counts = [each.traffic.total for each in every]
    return (
        sum(count.messages for count in counts),
        sum(count.bytes_sent for count in counts),
        sum(count.bytes_received for count in counts),
    )


@service
def cache(rank: Rank) -> tuple[int, int, int, int]:
    """Hits, misses, bytes that did not move and bytes that are kept; see `CacheCounts`."""
    counts = rank.cache.counted()
    return counts.hits, counts.misses, counts.saved_bytes, counts.nbytes


@service
def limit_cache(rank: Rank, nbytes: int) -> None:
    """Keep at most so many bytes of what is fetched."""
    rank.limit_cache(nbytes)


@service
def use_device(rank: Rank, name: str) -> None:
    """Keep arrays on a device, and compute there."""
    rank.use_device(name)


@service
def links(rank: Rank) -> tuple[float, ...]:
    """What messages and products take between ranks; see `Links`."""
    return astuple(measured_links(rank.communicator))


@service
def fetch(rank: Rank, number: int, view: View) -> None:
    """Begin to bring an array to another layout."""
    rank.fetch(number, view)
