"""What this machine and this process are: for `caldera info`, and for the record of a run."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path

import llvmlite
import numpy as np

import caldera
from caldera.amounts import bytes_text
from caldera.config import settings
from caldera.data.datasets.dataset_cache import ENVIRONMENT, cache_folder
from caldera.kernels.native.codegen.blas import blas
from caldera.kernels.native.codegen.target import machine as target_of_kernels
from caldera.kernels.tuning_cache import all_here, machine
from caldera.optional import optional_import


def facts() -> dict[str, dict[str, int | str]]:
    """The machine, the software and Caldera itself, as what JSON can hold."""
    total, available = _memory()
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    target = target_of_kernels()
    return {
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "cpu": str(machine()["cpu"]),
            "vectors": f"{target.registers} registers of {8 * target.width} bits ({target.cpu})",
            "cores": cores,
            "cores this process may use": usable,
            "memory": bytes_text(total) if total else "unknown",
            "memory available": bytes_text(available) if available else "unknown",
        },
        "software": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "llvmlite": llvmlite.__version__,
            "blas": _blas(),
            "blas threads": _blas_threads(),
        },
        "caldera": {
            "version": caldera.__version__,
            "threads": settings.threads,
            "cache folder": str(settings.cache_dir),
            "kernel choices remembered": sum(1 for _ in all_here()),
            "data folder": os.environ.get(ENVIRONMENT) or str(cache_folder()),
        },
    }


def _blas() -> str:
    """The BLAS that products call; one that only NumPy can call is named by NumPy."""
    known = blas()
    if known is not None:
        return known.name
    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{built.get('name', 'unknown')} {built.get('version', '')}, through NumPy".strip()


def _blas_threads() -> int | str:
    if find_spec("threadpoolctl") is None:
        return os.environ.get("OMP_NUM_THREADS", "unknown")
    pools = optional_import("threadpoolctl", "threadpoolctl", "info").threadpool_info()
    return max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)


def _memory() -> tuple[int, int]:
    """Bytes in all, and those that are free or can be freed; 0 where that is not known."""
    try:
        text = Path("/proc/meminfo").read_text()
        table = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return tuple(int(table[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
    except (AttributeError, ValueError, OSError):
        return 0, 0
