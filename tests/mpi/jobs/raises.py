"""One rank raises, or comes to its end, while the others wait for it."""

from __future__ import annotations

import sys
import time

import numpy as np

from caldera.comm import watchdog, world

if __name__ == "__main__":
    # Until then ranks that wait compute nothing, but on all cores.
    watchdog.GRACE_S = 0.3
    comm = world()
    comm.Barrier()
    if comm.rank == 1:
        if len(sys.argv) > 1:
            sys.exit(3)
        print(time.time(), flush=True)
        raise ValueError("the data of this rank are broken")
    if "message" in sys.argv:
        comm.Recv(np.empty(10), 1)
    comm.Allreduce(np.ones(10), np.ones(10))
