"""One rank is late: the others say so, and all go on when it comes; or give up if it does not."""

from __future__ import annotations

import sys
import time

import numpy as np

import caldera as cd
from caldera.comm import world


def read_the_data() -> None:
    time.sleep(600.0 if "forever" in sys.argv else 3.0)


if __name__ == "__main__":
    comm = world()
    # Not before all have started, which takes as long as the machine is busy.
    cd.settings.update(stall_s=0.2 if "forever" in sys.argv else 0.5)
    comm.algorithm = "ring"
    if comm.rank == 1:
        read_the_data()
    total = np.empty(10)
    comm.Allreduce(np.ones(10), total)
    print(f"rank {comm.rank} has {total[0]:g}", flush=True)
