"""What messages and products take here, measured once and remembered on this machine.

Ranks measure together, and the slowest of them counts. Rank 0 keeps what was found beside what
`comm` has measured of its algorithms, and says what all of them use, so they never disagree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial

import numpy as np

from caldera.comm import Communicator
from caldera.comm.autotune import machine_key
from caldera.config import settings
from caldera.file_cache import FileCache
from caldera.sharding.algorithms.lapack import has_scipy
from caldera.sharding.algorithms.matrix import factorisation_grid
from caldera.sharding.algorithms.process_grid import gather_rows
from caldera.sharding.algorithms.registry import ALGORITHMS
from caldera.sharding.algorithms.variant import cyclic_layout
from caldera.sharding.distributions import Columns, Rows
from caldera.sharding.transfer import redistributed
from caldera.sharding.volume import Links, volume

SWEEPS, ROUNDS = 3, 2
"""How often everything is measured, and how often each thing in a row: who else computes here, does
so for a while."""
LONG_BYTES = 4 << 20
"""What each rank has of a matrix that is moved: more than its caches keep for it."""
PRODUCT = 768
"""The size of matrices whose product is near to a core's full speed, and soon done."""
PANELS, NARROW = 16, 8
"""Of a small matrix: panels, and the columns of each."""
SIGNALS = 512
"""As many transforms of that length, along both axes of a matrix."""
_SECONDS = ("latency", "cholesky_panel", "qr_panel", "solve_panel")
"""What is the better the less it is; the others are speeds."""
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
    """The same without a look at what was measured before: half a second.

    >>> from caldera.comm import run_virtual_ranks
    >>> first, second = run_virtual_ranks(2, measure)
    >>> first == second, first.bandwidth > 0
    (True, True)
    """
    sweeps = [asdict(_sweep(comm)) for _ in range(SWEEPS)]
    return Links(**{
        name: (min if name in _SECONDS else max)(each[name] for each in sweeps)
        for name in sweeps[0]
    })  # fmt: skip


def _sweep(comm: Communicator) -> Links:
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
    links = Links(
        latency=short / messages,
        bandwidth=nbytes / max(long - short, long / 2),
        collective=part.nbytes * (ranks - 1) / gathered,
        flops=2 * PRODUCT**3 / product,
        copying=2 * part.nbytes / copy,
        transforms=_transforms(comm),
    )
    if not has_scipy():
        return links
    return replace(
        links, cholesky_panel=_panel("cholesky", comm), qr_panel=_panel("qr", comm),
        solve_panel=_panel("solve", comm),
    )  # fmt: skip


def _transforms(comm: Communicator) -> float:
    """Operations a second in Fourier transforms along the one and the other axis."""
    signals = np.ones((SIGNALS, SIGNALS), np.complex128)
    made = np.empty_like(signals)

    def work() -> None:
        np.fft.fft(signals, axis=1, out=made)
        np.fft.fft(signals, axis=0, out=made)

    flops = 2 * 5 * SIGNALS**2 * (SIGNALS - 1).bit_length()
    return flops / _seconds(comm, work)


def _panel(name: str, comm: Communicator) -> float:
    """Seconds for a panel that is too small for anything but messages and calls."""
    n, algorithm = PANELS * NARROW, ALGORITHMS[name]
    layout = cyclic_layout((n, n), NARROW, factorisation_grid(comm.size))
    rows, columns = (layout.axis_indices(comm.rank, axis) for axis in (0, 1))
    part = np.ones(layout.local_shape(comm.rank)) + n * (rows[:, None] == columns)
    parts, layouts = [part, part], [layout, layout]
    work = partial(algorithm.run, parts, layouts, layouts, (NARROW,), comm)
    return _seconds(comm, work) / PANELS


def _moving(comm: Communicator, n: int) -> tuple[float, int, int]:
    """Seconds from rows to columns, and the messages and bytes that a rank sends for that."""
    everybody = range(comm.size)
    rows, columns = Rows().of((n, n), everybody), Columns().of((n, n), everybody)
    part, moved = np.ones(rows.local_shape(comm.rank)), volume(rows, columns)
    seconds = _seconds(comm, lambda: redistributed(part, rows, columns, comm, rank=comm.rank))
    return seconds, moved.messages, moved.most * part.itemsize


def _seconds(comm: Communicator, work: Callable[[], object]) -> float:
    """The best of some rounds after a first one, on the slowest rank: others who compute here make
    it longer now and then, and never shorter."""
    times = []
    for _ in range(ROUNDS + 1):
        comm.Barrier()
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(max(comm.gather_objects(min(times[1:]))))


def _read(key: str) -> dict[str, float] | None:
    """What was measured before; whatever cannot be read counts as not there."""
    found = _LINKS.read_json(key)
    names = [field.name for field in fields(Links)]
    try:
        known = {name: float(found[name]) for name in names}
    except (KeyError, TypeError, ValueError):
        return None
    return known if all(0 < value < float("inf") for value in known.values()) else None
