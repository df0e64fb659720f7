"""Random networks of `tests/fuzz/ranks.py` on ranks that are processes, beside one process."""

from __future__ import annotations

import sys

from caldera.comm import world
from caldera.train.strategy import SingleProcessStrategy
from tests.fuzz.ranks import case_of, difference, results

comm = world()
for seed in map(int, sys.argv[1:]):
    case = case_of(seed, comm.size)
    expected = results(case.model(), case, SingleProcessStrategy())
    apart = difference(expected, results(case.model(), case, case.way(comm)))
    everyone = [each for each in comm.gather_objects(apart) if each]
    if comm.rank == 0:
        print(f"equal: network {seed}" if not everyone else f"network {seed}: {everyone}")
