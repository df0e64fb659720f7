"""Several of these jobs in the same ranks, one after the other: a rank takes a second to start.

`several.py training FOLDER data / servers` runs two, and says when each one is done.
"""

from __future__ import annotations

import runpy
import sys
from itertools import groupby

from caldera.comm import world

if __name__ == "__main__":
    everyone = world()
    given = [list(words) for is_end, words in groupby(sys.argv[1:], "/".__eq__) if not is_end]
    for name, *arguments in given:
        sys.argv = [name, *arguments]
        runpy.run_module(f"tests.mpi.jobs.{name}", run_name="__main__")
        everyone.Barrier()
        if everyone.rank == 0:
            print(f"done: {' '.join([name, *arguments])}", flush=True)
        everyone.Barrier()
