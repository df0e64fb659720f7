"""A master and its workers under mpiexec: the script is the master's."""

from __future__ import annotations

import numpy as np

import caldera as cd
from caldera import dmath as dm
from caldera.core.graph.opdef import op
from tests.unit.dmath.programs import computed, everywhere, leaf


@op("only_here", kind="elementwise")
def only_here(x: object) -> object:
    return x


if __name__ == "__main__":
    session = dm.connect()
    print(f"master of {session.ranks}", flush=True)
    x = everywhere(session, np.arange(5.0))
    print("sum", computed(session, leaf(x) * 2.0).sum())
    # Here all workers know the op, and none has a kernel for it.
    try:
        computed(session, cd.Expr(only_here(leaf(x).node)))
    except cd.CalderaError as error:
        # Both fail, and either may be the first to say so.
        print("failed", str(error)[:6])
    print("sum", computed(session, leaf(x) * 3.0).sum())
