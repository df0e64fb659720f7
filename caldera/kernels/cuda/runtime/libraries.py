"""NVIDIA's libraries where they are installed, and what about a card decides which kernel is
fastest. Nothing is imported before there is a card to use it on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.base.optional import optional_import
from caldera.core.memory.device_array import address_of
from caldera.core.memory.gpus import PACKAGE, card_count, cupy


@cache
def cublas_lt() -> Any:
    """The module nvmath.bindings.cublasLt, or None where it or a card is missing."""
    return _usable("nvmath", "nvmath.bindings.cublasLt", "get_version")


@cache
def cudnn() -> Any:
    """The module cudnn (NVIDIA's cudnn-frontend), or None where it or a card is missing."""
    return _usable("cudnn", "cudnn", "backend_version")


def _usable(package: str, module: str, version: str) -> Any:
    """The module, if the library that it calls is there as well: it can tell its version."""
    if card_count() == 0 or find_spec(package) is None:
        return None
    try:
        found = optional_import(module, PACKAGE, f"kernels by {package}")
        getattr(found, version)()
    except Exception:
        # Each package has errors of its own for a library that it cannot load; our kernels serve.
        return None
    return found


def current_card() -> int:
    """The number of the card that is in use; 0 where there is none."""
    return int(cupy().cuda.Device().id) if card_count() else 0


def may_measure() -> bool:
    """Whether kernels may be timed against each other: only then are second choices worth having.

    >>> import caldera as cd
    >>> with cd.settings.override(deterministic=True):
    ...     may_measure()
    False
    """
    return not settings.deterministic and settings.tune_budget_s > 0


def facts(card: int | None = None) -> dict[str, str]:
    """The model of a card, the one in use if none is said, and the versions of what runs on it."""
    if not card_count():
        return {"card": f"none, on {platform.machine()}"}
    runtime = cupy().cuda.runtime
    found = {
        "card": runtime.getDeviceProperties(current_card() if card is None else card)[
            "name"
        ].decode(),
        "driver": str(runtime.driverGetVersion()),
    }
    if cublas_lt() is not None:
        found["cublas"] = str(cublas_lt().get_version())
    if cudnn() is not None:
        found["cudnn"] = str(cudnn().backend_version())
    return found


def cupy_array(array: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """A cupy.ndarray over the same memory, with the same strides; it keeps the array alive."""
    # How far views reach is the caller's business: CuPy only wants to know whose memory it is.
    memory = cupy().cuda.UnownedMemory(address_of(array), max(array.nbytes, 1), array)
    pointer = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(array.shape, array.dtype, pointer, array.strides)
