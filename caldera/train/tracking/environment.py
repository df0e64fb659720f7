"""What a run runs on: the machine, the software and Caldera itself; `caldera info` shows it."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import llvmlite

import caldera
from caldera.base.amounts import bytes_text
from caldera.base.config import settings
from caldera.base.machine import available_memory, this_machine, usable_cores
from caldera.base.optional import optional_import
from caldera.core.memory.gpus import card_count
from caldera.data.datasets.dataset_cache import ENVIRONMENT, cache_folder
from caldera.kernels.native.codegen.blas import blas
from caldera.kernels.native.codegen.target import host_target
from caldera.kernels.tuning_cache import all_records


def environment() -> dict[str, dict[str, int | str]]:
    """The machine, the software and Caldera itself, as what JSON can hold."""
    here, target, products = this_machine(), host_target(), blas()
    return {
        **_cards(),
        "machine": {
            "system": here.system,
            "cpu": here.cpu,
            "vectors": f"{target.registers} registers of {8 * target.width} bits ({target.cpu})",
            "cores": here.cores,
            "cores this process may use": usable_cores(),
            "memory": _bytes(here.memory),
            "memory available": _bytes(available_memory()),
        },
        "software": {
            "python": here.libraries["python"],
            "numpy": here.libraries["numpy"],
            "llvmlite": llvmlite.__version__,
            # One that only NumPy can call is named by NumPy.
            "blas": products.name if products else f"{here.libraries['blas']}, through NumPy",
            "blas threads": _blas_threads(),
        },
        "caldera": {
            "version": caldera.__version__,
            "threads": settings.threads,
            "cache folder": str(settings.cache_dir),
            "kernel choices remembered": sum(1 for _ in all_records()),
            "data folder": os.environ.get(ENVIRONMENT) or str(cache_folder()),
        },
    }


def _cards() -> dict[str, dict[str, int | str]]:
    """What each card can do. Only who has one pays for loading what knows of cards."""
    if not card_count():
        return {}
    facts = import_module("caldera.kernels.cuda.runtime.libraries").facts
    properties_of = import_module("caldera.kernels.cuda.runtime.driver").properties_of
    return {
        f"card {index}": {**facts(index), **properties_of(index).rows()}
        for index in range(card_count())
    }


def _bytes(amount: int) -> str:
    return bytes_text(amount) if amount else "unknown"


def _blas_threads() -> int | str:
    if find_spec("threadpoolctl") is None:
        return os.environ.get("OMP_NUM_THREADS", "unknown")
    pools = optional_import("threadpoolctl", "threadpoolctl", "info").threadpool_info()
    return max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)
