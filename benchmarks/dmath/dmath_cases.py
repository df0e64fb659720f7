"""What every library's case of distributed algebra is made of: a run, and a look at its result."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np

from caldera.comm import Communicator

Runner = Callable[[], Any]
Case = tuple[Runner, Callable[[], float]]
"""What is timed, and how far its result is from right."""


def residual(operation: str, a: np.ndarray, found: Sequence[np.ndarray]) -> float:
    """How far some rows of a result are from right, relative to the matrix."""
    if operation == "fft":
        return relative(found[0], np.fft.fft2(a), len(a))
    rows = slice(0, None, max(len(a) // 64, 1))
    if operation == "solve":
        made = a[rows] @ found[0]
    elif operation == "cholesky":
        lower = np.tril(found[0])
        made = lower[rows] @ lower.T
    elif operation == "qr":
        made = found[0][rows] @ found[1]
    elif operation == "svd":
        made = (found[0][rows] * found[1]) @ found[2]
    else:
        return relative(found[0][rows], a[rows] @ a, len(a))
    return float(np.linalg.norm(made - a[rows]) / np.linalg.norm(a[rows]))


def part_of_product_error(
    part: np.ndarray, rows: np.ndarray, columns: np.ndarray, a: np.ndarray, comm: Communicator
) -> float:
    """Of some rows of every rank's part of a product; nothing has to be brought together."""
    some = slice(0, None, max(len(rows) // 4, 1))
    wrong = np.array([relative(part[some], a[rows[some]] @ a[:, columns], len(a))])
    comm.Allreduce(wrong, wrong, "max")
    return float(wrong[0])


def relative(found: np.ndarray, right: np.ndarray, n: int) -> float:
    """The largest difference, over how large sums of n terms are."""
    return float(np.max(np.abs(found - right), initial=0) / n)


@contextmanager
def first_alone(comm: Communicator) -> Iterator[bool]:
    """The first rank on all cores, wherever it is bound; the others sleep until it is done, since
    ranks that wait for a message keep their cores busy."""
    path = Path(comm.bcast_object(tempfile.mktemp() if comm.rank == 0 else None))
    bound = os.sched_getaffinity(0)
    if comm.rank == 0:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield comm.rank == 0
    finally:
        if comm.rank == 0:
            os.sched_setaffinity(0, bound)
            path.touch()
    while not path.exists():
        sleep(0.001)
