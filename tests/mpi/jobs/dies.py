"""One rank is killed the first time; with `survive` the others go on without it."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from caldera.comm import MpiCommunicator, RankLostError, restarted, world


def summed(comm: MpiCommunicator) -> float:
    total = np.empty(100_000)
    comm.Allreduce(np.ones(100_000), total)
    return float(total[-1])


if __name__ == "__main__":
    comm = world()
    assert isinstance(comm, MpiCommunicator)
    comm.algorithm = "ring"
    summed(comm)
    if comm.rank == 1 and not restarted():
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        # One that has sent all it had to may notice a little later.
        found = [summed(comm) for _ in range(3)]
    except RankLostError:
        if "survive" not in sys.argv:
            raise
        comm = comm.Shrink()
        comm.algorithm = "ring"
        found = [summed(comm)]
    print(f"rank {comm.rank} of {comm.size}: {found[-1]:g}, restarted {restarted()}", flush=True)
