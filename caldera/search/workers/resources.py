"""What a worker may take of its machine, so that all together take no more than there is."""

from __future__ import annotations

import os

from caldera.base.config import settings
from caldera.base.launchers import WORKER
from caldera.core.memory import device
from caldera.core.memory.gpus import card_count
from caldera.kernels.common.blas_threads import single_threaded_blas

FOR_TRIALS = 0.9
"""The part of a card's memory that its workers share; the rest is for the driver and libraries."""

_HIDDEN = ("", "-1")
"""What `CUDA_VISIBLE_DEVICES` is where nobody shall use a card."""


def share_machine(place: int, workers: int) -> None:
    """In the process of a worker: take the share of one of so many, and the card of its place.

    Threads are divided, the BLAS gets one (plans split its work over ours anyway), and of a card
    that several share each may fill its part; `settings.memory_limit` stays what the user said.
    """
    settings.threads = max(1, settings.threads // workers)
    single_threaded_blas.__enter__()
    os.environ[WORKER] = str(place)
    share_card(workers)


def share_card(workers: int) -> None:
    """Limit this process to its part of a card that several workers of the machine use."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN:
        # To count them would load CuPy, which takes longer than a worker takes to start.
        return
    cards = card_count()
    if not cards or settings.memory_limit is not None:
        return
    memory, sharing = device().memory_bytes, -(-workers // cards)
    if memory is not None and sharing > 1:
        settings.memory_limit = int(FOR_TRIALS * memory / sharing)
