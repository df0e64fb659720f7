"""Matrix products on our own threads: BLAS computes with one, and large products are split.

A BLAS that spreads a small product over its own threads waits for them at every call; on a busy
machine that wait is a hundred times the product. Ours sleep until there is enough to do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from importlib import import_module
from types import TracebackType

import numpy as np

from caldera.config import settings
from caldera.threads import parallel_for

WORTH_SPLITTING = 4_000_000
"""Operations from which on a second thread saves more than waking it up costs."""

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
)


def _find(names: tuple[str, ...]) -> Callable[..., int] | None:
    # The extension module is linked to the BLAS, so its symbols are found through it.
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    found: Callable[..., int] | None = None
    for name in names:
        found = found or getattr(library, name, None)
    return found


_set_threads = _find(_SETTERS)
_get_threads = _find(
    tuple(name.replace("_set_", "_get_").replace("_Set_Num_", "_Get_Max_") for name in _SETTERS)
)


class OneThread:
    """While any plan is inside, BLAS computes with one thread; afterwards as it did before.

    Where the BLAS is one we do not know, nothing changes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 1

    def __enter__(self) -> None:
        if _set_threads is None or _get_threads is None:
            return
        with self._lock:
            if self._inside == 0:
                self._before = _get_threads()
                _set_threads(1)
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _set_threads is None or _get_threads is None:
            return
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _set_threads(self._before)


one_thread = OneThread()


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a @ b for (batches of) matrices, on as many threads as pay."""
    work = 2 * out.size * a.shape[-1]
    workers = min(settings.threads, max(1, work // (WORTH_SPLITTING // 2)))
    if work < WORTH_SPLITTING or workers < 2:
        np.matmul(a, b, out)
        return
    if out.ndim > 2 and a.ndim == b.ndim == out.ndim and a.shape[0] == b.shape[0] >= workers:
        part = _part_of_batch(a, b, out)
    elif out.shape[-1] >= out.shape[-2]:
        part = _part_of_columns(a, b, out)
    else:
        part = _part_of_rows(a, b, out)
    parallel_for(_quiet(part), workers)


Part = Callable[[int, int], None]


def _quiet(part: Part) -> Part:
    """NumPy's way with overflow is set for each thread, and the plan set only its own."""

    def run(worker: int, workers: int) -> None:
        with np.errstate(all="ignore"):
            part(worker, workers)

    return run


def _bounds(length: int, worker: int, workers: int) -> slice:
    return slice(length * worker // workers, length * (worker + 1) // workers)


def _part_of_batch(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Part:
    def part(worker: int, workers: int) -> None:
        rows = _bounds(len(out), worker, workers)
        np.matmul(a[rows], b[rows], out[rows])

    return part


def _part_of_columns(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Part:
    def part(worker: int, workers: int) -> None:
        columns = _bounds(out.shape[-1], worker, workers)
        np.matmul(a, b[..., columns], out[..., columns])

    return part


def _part_of_rows(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Part:
    def part(worker: int, workers: int) -> None:
        rows = _bounds(out.shape[-2], worker, workers)
        np.matmul(a[..., rows, :], b, out[..., rows, :])

    return part
