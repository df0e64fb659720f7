"""The whole contract over MPI at 1, 2, 3, 4 and 8 ranks, as groups of one job of eight."""

from __future__ import annotations

import sys

import caldera as cd
from caldera.comm import MpiCommunicator, world
from caldera.testing.communicators import CONTRACT

# Which group each of the eight ranks belongs to, pass by pass.
PASSES = ([0] * 8, [0, 0, 0, 0, 1, 1, 1, 2], [0, 0, 1, 1, 2, 2, 3, 3])

if __name__ == "__main__":
    everybody = world()
    only = sys.argv[1:]
    for groups in PASSES if everybody.size == 8 else [[0] * everybody.size]:
        group = everybody.Split(groups[everybody.rank])
        # Measuring which allreduce is the fastest is worth its time once.
        cd.settings.deterministic = groups is not PASSES[0]
        assert isinstance(group, MpiCommunicator)
        for check in CONTRACT:
            if not only or check.__name__ in only:
                check(group)
        everybody.Barrier()
        if group.rank == 0:
            print(f"kept by {group.size} ranks", flush=True)
