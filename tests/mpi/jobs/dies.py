"""One rank is killed the first time."""

from __future__ import annotations

import os
import signal

import numpy as np

from caldera.comm import Communicator, restarted, world


def summed(comm: Communicator) -> float:
    total = np.empty(100_000)
    comm.Allreduce(np.ones(100_000), total)
    return float(total[-1])


if __name__ == "__main__":
    comm = world()
    comm.algorithm = "ring"
    summed(comm)
    if comm.rank == 1 and not restarted():
        os.kill(os.getpid(), signal.SIGKILL)
    # One that has sent all it had to may notice a little later.
    found = [summed(comm) for _ in range(3)]
    print(f"rank {comm.rank} of {comm.size}: {found[-1]:g}, restarted {restarted()}", flush=True)
