"""Run by every rank of one `mpiexec`: the whole contract, check by check."""

from __future__ import annotations

import sys
import time

from caldera.comm.mpi import MpiCommunicator, mpi
from caldera.testing.communicators import CONTRACT

if __name__ == "__main__":
    comm = MpiCommunicator(mpi().COMM_WORLD.Dup())
    for check in CONTRACT:
        t = time.perf_counter()
        check(comm)
        comm.Barrier()
        if comm.rank == 0:
            print(f"{check.__name__} {time.perf_counter()-t:.3f}", flush=True)
