"""What messages and products take here, measured once and remembered on this machine.

Ranks measure together, and the slowest of them counts. Rank 0 keeps what was found beside what
`comm` has measured of its algorithms, and says what all of them use, so they never disagree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields

import numpy as np

from caldera.comm import Communicator
from caldera.comm.autotune import machine_key
from caldera.config import settings
from caldera.file_cache import FileCache
from caldera.sharding.algorithms.lapack import has_scipy
from caldera.sharding.algorithms.matrix import grid_of
from caldera.sharding.algorithms.process_grid import gather_rows
from caldera.sharding.algorithms.qr import qr
from caldera.sharding.algorithms.variant import cyclic_layout
from caldera.sharding.distributions import Columns, Rows
from caldera.sharding.transfer import redistributed
from caldera.sharding.volume import Links, volume

ROUNDS = 5
LONG_BYTES = 4 << 20
"""What each rank has of a matrix that is moved: more than its caches keep for it."""
PRODUCT = 512
"""The size of matrices whose product is near to a core's full speed, and soon done."""
PANELS, NARROW = 16, 8
"""Of a small matrix: panels, and the columns of each."""
_LINKS = FileCache("links")


def measured_links(comm: Communicator) -> Links:
    """What messages and products take between the ranks of a communicator; all of them have to ask.

    Threads of one process share what they compute with: for them, and where choices have to be the
    same in each run (`settings.deterministic`), it is what `Links` says by itself.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, measured_links)[0] == Links()
    True
    """
    if comm.size == 1 or comm.name == "threads" or settings.deterministic:
        return Links()
    key = machine_key(comm) if comm.rank == 0 else None
    known = comm.bcast_object(None if key is None else _read(key))
    if known is None:
        with comm.traffic.apart("tuning"):
            found = measure(comm)
        known = asdict(found)
        if key is not None:
            with suppress(OSError):
                _LINKS.write_json(key, known)
    return Links(**known)


def measure(comm: Communicator) -> Links:
    """The same without a look at what was measured before: a fifth of a second.

    >>> from caldera.comm import run_virtual_ranks
    >>> first, second = run_virtual_ranks(2, measure)
    >>> first == second, first.bandwidth > 0
    (True, True)
    """
    ranks = comm.size
    short, messages, _ = _moving(comm, 8 * ranks)
    n = int((LONG_BYTES * ranks / 8) ** 0.5) // ranks * ranks
    long, _, nbytes = _moving(comm, n)
    part = np.ones((n // ranks, n))
    gathered = _seconds(comm, lambda: gather_rows(part, [len(part)] * ranks, comm))
    a = np.ones((PRODUCT, PRODUCT))
    made = np.empty_like(a)
    product = _seconds(comm, lambda: np.matmul(a, a, out=made))
    copy = _seconds(comm, lambda: np.copyto(np.empty_like(part), part))
    return Links(
        latency=short / messages,
        bandwidth=nbytes / max(long - short, long / 2),
        collective=part.nbytes * (ranks - 1) / gathered,
        flops=2 * PRODUCT**3 / product,
        copying=2 * part.nbytes / copy,
        panel=_panel(comm),
    )


def _panel(comm: Communicator) -> float:
    """Seconds for a panel of QR that is too small for anything but messages and calls."""
    if not has_scipy():
        return Links.panel
    n, grid = PANELS * NARROW, grid_of(comm)
    layout = cyclic_layout((n, n), NARROW, (grid.rows, grid.columns))
    part = np.ones(layout.local_shape(comm.rank))
    return _seconds(comm, lambda: qr(part, (n, n), NARROW, grid)) / PANELS


def _moving(comm: Communicator, n: int) -> tuple[float, int, int]:
    """Seconds from rows to columns, and the messages and bytes that a rank sends for that."""
    everybody = range(comm.size)
    rows, columns = Rows().of((n, n), everybody), Columns().of((n, n), everybody)
    part, moved = np.ones(rows.local_shape(comm.rank)), volume(rows, columns)
    seconds = _seconds(comm, lambda: redistributed(part, rows, columns, comm, rank=comm.rank))
    return seconds, moved.messages, moved.most * part.itemsize


def _seconds(comm: Communicator, work: Callable[[], object]) -> float:
    """The median of some rounds after a first one, on the slowest rank."""
    times = []
    for _ in range(ROUNDS + 1):
        comm.Barrier()
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(max(comm.gather_objects(sorted(times[1:])[ROUNDS // 2])))


def _read(key: str) -> dict[str, float] | None:
    """What was measured before; whatever cannot be read counts as not there."""
    found = _LINKS.read_json(key)
    names = [field.name for field in fields(Links)]
    try:
        known = {name: float(found[name]) for name in names}
    except (KeyError, TypeError, ValueError):
        return None
    return known if all(0 < value < float("inf") for value in known.values()) else None
