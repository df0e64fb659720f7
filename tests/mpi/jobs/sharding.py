"""Random programs over arrays in random layouts, on ranks that are processes."""

from __future__ import annotations

from caldera.comm import world
from tests.unit.compiler.sharding import fuzz

CASES = 30

comm = world()
for seed in range(CASES):
    fuzz.run(seed, comm)
comm.Barrier()
if comm.rank == 0:
    print(f"{CASES} cases on {comm.size} ranks")
