"""One rank comes to its end before MPI has started; the others wait for it there."""

from __future__ import annotations

import os
import time

import caldera as cd
from caldera.base.launchers import rank_on_machine
from caldera.comm import world

if __name__ == "__main__" and rank_on_machine(os.environ) != 1:
    # Else mpiexec may see it first.
    time.sleep(1.0)
    cd.settings.update(stall_s=0.1)
    world()
