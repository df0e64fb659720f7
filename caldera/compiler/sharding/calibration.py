"""Measured cost of messages and products, repeated occasionally and stored on this machine.

Ranks measure together, and the slowest rank counts. Rank 0 stores the results next to the
measurements of algorithms in `comm`, and sends all ranks the numbers to use, so they never
disagree.

The aim is the typical time, not the shortest: cores share their power and their memory. So all
ranks compute simultaneously, on data outside the caches, since large arrays pass through them from
step to step, and the median of the stored measurements counts. Other processes on this machine slow
down all measurements for a while. So the measurement is repeated after a pause, which gets longer
with the number of stored measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from math import log2

import numpy as np

from caldera.comm import Communicator
from caldera.comm.autotune import MeasuredTable, choices_may_vary, measured_link, slowest
from caldera.compiler.sharding.algorithms.lapack import accumulate_product, has_scipy
from caldera.compiler.sharding.algorithms.panels import factorisation_grid
from caldera.compiler.sharding.algorithms.process_grid import gather_rows
from caldera.compiler.sharding.algorithms.qr import DEALT, Bidiagonalisation
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.algorithms.variant import cyclic_layout
from caldera.compiler.sharding.distributions import Columns, Rows
from caldera.compiler.sharding.transfer import redistributed
from caldera.compiler.sharding.volume import Links, volume

CLEARLY = 1.1
"""Minimum improvement, as a factor, for which variants are chosen again."""
LONG_BYTES, GATHERED_BYTES, COPIED_BYTES = 8 << 20, 16 << 20, 4 << 20
"""Sizes for measurements, larger than the caches.

Each rank's part of a moved matrix, the result of an allgather, and each rank's copied array.
"""
SHARED_BYTES = 4 << 20
"""Size of each rank's part of a matrix moved through shared memory."""
EVICTED_BYTES = 32 << 20
"""Size of the array each rank writes before a measurement, to evict its data from caches."""
PRODUCT, SLICE = 768, 256
"""Rows and columns of a block to which the product of two slices is added, and their width."""
PANELS, NARROW = 16, 8
"""Number of panels of a small matrix, and columns of each panel."""
SIGNALS, LENGTH = 128, 2048
"""Number of contiguous signals to transform, and their length."""
NEAR, FAR = (1024, 32), (4096, 128)
"""Length and number of interleaved signals with NEAR_BYTES and with FAR_BYTES in total."""
_TABLE = MeasuredTable("links", Links, may_be_zero=("meeting", "shared", "starting"))


def measured_links(comm: Communicator) -> Links:
    """Return the measured cost of messages and products between ranks; a collective call.

    Threads of one process share their cores. For threads, and if choices must be the same in each
    run (`settings.deterministic`), the defaults of `Links` are returned.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, measured_links)[0] == Links()
    True
    """
    if not choices_may_vary(comm):
        return Links()
    link = measured_link(comm)
    return replace(_TABLE.typical(comm, _sweep), latency=link.latency, bandwidth=link.bandwidth)


def is_clearly_other(links: Links, before: Links) -> bool:
    """Return True if any number differs by more than two measurements usually do.

    >>> is_clearly_other(Links(flops=31e9), Links(flops=30e9))
    False
    """
    pairs = zip(astuple(links), astuple(before), strict=True)
    return any(max(pair) > CLEARLY * min(pair) for pair in pairs)


def _sweep(comm: Communicator) -> Links:
    ranks = comm.size
    evict = partial(np.empty(EVICTED_BYTES // 8).fill, 1.0)
    link = measured_link(comm)
    short, messages, _ = _moving(comm, 8 * ranks)
    long, _, nbytes = _moving(comm, _size(LONG_BYTES, ranks))
    packing = max(long - short - nbytes / link.bandwidth, long / 20)
    meeting = shared = 0.0
    if comm.shares_memory:
        meeting = _moving(comm, 8 * ranks, in_memory=True)[0]
        taken, _, left = _moving(comm, _size(SHARED_BYTES, ranks), evict, in_memory=True)
        shared = left / max(taken - meeting, taken / 2)
    n = max(_size(GATHERED_BYTES // ranks, ranks), ranks)
    part = np.ones((n // ranks, n))
    gathered = _seconds(comm, lambda: gather_rows(part, [len(part)] * ranks, comm))
    copied = np.ones(COPIED_BYTES // 8)
    copying = _seconds(comm, lambda: np.copyto(np.empty_like(copied), copied), evict)
    links = Links(
        latency=link.latency,
        bandwidth=link.bandwidth,
        starting=max(short - messages * link.latency, 0.0),
        packing=nbytes / packing,
        collective=part.nbytes * (ranks - 1) / gathered,
        flops=_products(comm, evict),
        copying=2 * copied.nbytes / copying,
        transforms=_transforms((SIGNALS, LENGTH), 1, comm, evict),
        columns_near=_transforms(NEAR, 0, comm),
        columns_far=_transforms(FAR, 0, comm, evict),
        meeting=meeting,
        shared=shared,
    )
    if not has_scipy():
        return links
    return replace(
        links,
        cholesky_panel=_panel("cholesky", comm),
        qr_panel=_panel("qr", comm),
        solve_panel=_panel("solve", comm),
        reflection=_reflection(comm),
    )


def _size(nbytes: int, ranks: int) -> int:
    """Return the order of a square matrix of which each rank has `nbytes` bytes."""
    return int((nbytes * ranks / 8) ** 0.5) // ranks * ranks


def _products(comm: Communicator, before: Callable[[], object]) -> float:
    """Return operations a second. Numbers that are all alike take less power than others, and a
    core that saves power is faster."""
    draw = np.random.default_rng(0).standard_normal
    a, b, c = draw((PRODUCT, SLICE)), draw((SLICE, PRODUCT)), np.zeros((PRODUCT, PRODUCT))
    return 2 * PRODUCT**2 * SLICE / _seconds(comm, lambda: accumulate_product(c, a, b), before)


def _transforms(
    shape: tuple[int, int], axis: int, comm: Communicator, before: Callable[[], object] = int
) -> float:
    """Return operations per second in Fourier transforms along an axis.

    Transforms of real numbers are included if signals are contiguous.
    """
    draw = np.random.default_rng(0).standard_normal
    real = draw(shape)
    signals, n = real.astype(np.complex128), shape[axis]
    made, half = np.empty_like(signals), np.empty((shape[0], shape[1] // 2 + 1), np.complex128)

    def work() -> None:
        np.fft.fft(signals, axis=axis, out=made)
        if axis == 1:
            np.fft.rfft(real, axis=1, out=half)

    flops = 5 * signals.size * log2(n) * (1.5 if axis == 1 else 1)
    return flops / _seconds(comm, work, before)


def _panel(name: str, comm: Communicator) -> float:
    """Return seconds for a panel that is too small for anything but messages and calls."""
    n, algorithm = PANELS * NARROW, ALGORITHMS[name]
    layout = cyclic_layout((n, n), NARROW, factorisation_grid(comm.size))
    rows, columns = (layout.axis_indices(comm.rank, axis) for axis in (0, 1))
    part = np.ones(layout.local_shape(comm.rank)) + n * (rows[:, None] == columns)
    parts, layouts = [part, part], [layout, layout]
    work = partial(algorithm.run, parts, layouts, layouts, (NARROW,), comm)
    return _seconds(comm, work) / PANELS


def _reflection(comm: Communicator) -> float:
    """Return seconds for a column that is too short for anything but messages and calls."""
    n = DEALT * comm.size
    part = np.ones((n, DEALT)) + n * (np.arange(n)[:, None] == comm.rank * DEALT + np.arange(DEALT))
    return _seconds(comm, lambda: Bidiagonalisation(part, n, comm).run()) / n


def _moving(
    comm: Communicator, n: int, before: Callable[[], object] = int, *, in_memory: bool = False
) -> tuple[float, int, int]:
    """Seconds from rows to columns, and the messages and bytes that a rank sends for that."""
    everybody = range(comm.size)
    rows, columns = Rows().of((n, n), everybody), Columns().of((n, n), everybody)
    part, moved = np.ones(rows.local_shape(comm.rank)), volume(rows, columns)
    made = np.empty(columns.local_shape(comm.rank))
    move = partial(
        redistributed, part, rows, columns, comm, rank=comm.rank, out=made, in_memory=in_memory
    )
    seconds = _seconds(comm, move, before)
    return seconds, moved.messages, moved.most * part.itemsize


def _seconds(
    comm: Communicator, work: Callable[[], object], before: Callable[[], object] = int
) -> float:
    """Return the time of the slowest rank, on the second run, with `before` called before each."""
    taken = 0.0
    for _ in range(2):
        before()
        comm.Barrier()
        began = time.perf_counter()
        work()
        taken = time.perf_counter() - began
    return slowest(comm, taken)
