"""Print the rank, the size of the world and the index among the ranks of this machine."""

from __future__ import annotations

from caldera.comm import world
from caldera.comm.ranks import rank_on_machine

if __name__ == "__main__":
    everyone = world()
    found = everyone.gather_objects((everyone.rank, everyone.size, rank_on_machine()))
    if everyone.rank == 0:
        print(found)
