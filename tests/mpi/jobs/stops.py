"""One rank is stopped, as by a debugger or a machine that hangs: the others do not wait for it."""

from __future__ import annotations

import os
import signal

import numpy as np

import caldera as cd
from caldera.comm import watchdog, world

if __name__ == "__main__":
    cd.settings.update(stall_s=0.2)
    watchdog.ANSWERS_WITHIN_S = watchdog.SILENT_AFTER_S = 0.5
    comm = world()
    comm.algorithm = "ring"
    total = np.empty(10)
    comm.Allreduce(np.ones(10), total)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.Allreduce(np.ones(10), total)
