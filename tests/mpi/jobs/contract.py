"""The whole contract over MPI at 1 to 5 ranks, as groups of one job of five."""

from __future__ import annotations

import sys

import numpy as np

import caldera as cd
from caldera.comm import Communicator, MpiCommunicator, mpi, world
from caldera.core.memory.software import DeviceArray
from caldera.testing.communicators import CONTRACT

# Which group each of the five ranks belongs to, pass by pass.
PASSES = ([0] * 5, [0, 0, 0, 0, 1], [0, 0, 1, 1, 1])


def keep_the_contract(everybody: Communicator, groups: list[int], only: list[str]) -> None:
    group = everybody.Split(groups[everybody.rank])
    assert isinstance(group, MpiCommunicator)
    # Measuring which allreduce is the fastest is worth its time once, and takes many ranks on a
    # few cores the longest.
    cd.settings.deterministic = groups is not PASSES[-1]
    for check in CONTRACT:
        if not only or check.__name__ in only:
            check(group)
    everybody.Barrier()
    if group.rank == 0:
        print(f"kept by {group.size} ranks", flush=True)


def give_buffers_as_they_are(comm: Communicator) -> None:
    """An MPI that takes cards is given their memory; here it is the host's, under another name."""
    reason = "rank 0 has no GPU"
    comm.staging_reason = reason
    assert comm.route("cuda:0").startswith(f"MPI, through the host ({reason}); ")
    comm.gpu_aware = True
    assert comm.route("cuda:0") == f"MPI, from GPU memory ({reason})"
    mpi.wait_for_kernels = lambda buffer: None
    n, me = comm.size, comm.rank

    def on_card(values: np.ndarray) -> DeviceArray:
        return values.astype(np.float32).view(DeviceArray)

    whole, part = on_card(np.zeros(2 * n)), on_card(np.zeros(2))
    comm.Allreduce(on_card(np.arange(2 * n) * (me + 1)), whole)
    np.testing.assert_array_equal(whole.view(np.ndarray), np.arange(2 * n) * n * (n + 1) / 2)
    comm.ReduceScatter(on_card(np.arange(2 * n)), part)
    np.testing.assert_array_equal(part.view(np.ndarray), n * np.array([2 * me, 2 * me + 1]))
    comm.Allgather(part, whole)
    np.testing.assert_array_equal(whole.view(np.ndarray), n * np.arange(2 * n))
    comm.Alltoall(on_card(np.full(2 * n, me)), whole)
    np.testing.assert_array_equal(whole.view(np.ndarray), np.repeat(np.arange(n), 2))
    comm.Reduce(on_card(np.ones(2)), part if me == 0 else None)
    comm.Bcast(part)
    np.testing.assert_array_equal(part.view(np.ndarray), [n, n])
    comm.Sendrecv(on_card(np.full(2, me)), (me + 1) % n, part, (me - 1) % n)
    np.testing.assert_array_equal(part.view(np.ndarray), [(me - 1) % n] * 2)
    if me == 0:
        print("given as they are", flush=True)


if __name__ == "__main__":
    everybody = world()
    for groups in PASSES if everybody.size == 5 else [[0] * everybody.size]:
        keep_the_contract(everybody, groups, sys.argv[1:])
    give_buffers_as_they_are(everybody)
