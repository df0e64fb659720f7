"""One thread for the BLAS while a plan runs: its work is split over our own.

A BLAS that spreads a small product over its own threads waits for them at every call; on a busy
machine that wait is a hundred times the product. And threads of two pools that wait for work by
looking for it take the cores from each other.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from importlib import import_module
from types import TracebackType

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


_set_threads = _find(_SETTERS) or (lambda count: 0)
_get_threads = _find(
    tuple(name.replace("_set_", "_get_").replace("_Set_Num_", "_Get_Max_") for name in _SETTERS)
) or (lambda: 1)


class SingleThreadedBlas:
    """Context manager with single-threaded BLAS, which may be entered by several plans.

    The number of threads is restored when the last plan leaves. An unknown BLAS is left unchanged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 1

    def __enter__(self) -> None:
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
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _set_threads(self._before)


single_threaded_blas = SingleThreadedBlas()
