"""One rank is late: the others say so, and all go on when it comes; or give up if it does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import caldera as cd
from caldera.comm import watchdog, world

SAID = Path("said")
"""Written when a rank has said who is late: on a busy machine nobody knows how long that takes."""


def read_the_data() -> None:
    until = time.monotonic() + 60.0
    while time.monotonic() < until and ("forever" in sys.argv or not SAID.exists()):
        time.sleep(0.02)


def say(text: str, aloud: Callable[[str], None] = watchdog._say) -> None:
    aloud(text)
    SAID.touch()


if __name__ == "__main__":
    watchdog._say = say
    comm = world()
    # Not before all have started, which takes as long as the machine is busy.
    cd.settings.update(stall_s=0.1 if "forever" in sys.argv else 0.5)
    comm.algorithm = "ring"
    if comm.rank == 1:
        read_the_data()
    total = np.empty(10)
    comm.Allreduce(np.ones(10), total)
    print(f"rank {comm.rank} has {total[0]:g}", flush=True)
