"""A master that works until it is ended: prints the processes of its workers first."""

from __future__ import annotations

import sys

import numpy as np

from caldera import dmath as dm
from tests.unit.dmath.programs import computed, everywhere, leaf

if __name__ == "__main__":
    session = dm.connect(int(sys.argv[1]))
    print(*session.processes, flush=True)
    array = np.ones(1000)
    value = everywhere(session, array)
    try:
        while True:
            computed(session, leaf(value) * 2.0)
            print("step", flush=True)
    except KeyboardInterrupt:
        # Workers were not interrupted: they are still there.
        print("sum", computed(session, leaf(value) * 3.0).sum(), flush=True)
