"""One rank raises while the others wait for it."""

from __future__ import annotations

import sys

import numpy as np

from caldera.comm import world

if __name__ == "__main__":
    comm = world()
    comm.Barrier()
    if comm.rank == 1:
        if "leave" in sys.argv:
            sys.exit(3)
        raise ValueError("the data of this rank are broken")
    comm.Allreduce(np.ones(10), np.ones(10))
