"""Allreduce over slow links: ours beside Open MPI's default and its ring.

One network namespace a rank, TCP alone, 100 Mbit/s and 1 Gbit/s. The bound is what no algorithm can
beat: 2 (n - 1) / n of the buffer through each link, counted in bytes of data (headers of TCP, IP
and Ethernet take 4.4% of a link). Ours and Open MPI's take turns in one job; Open MPI reads which
algorithm to use when it starts, so jobs with its default and with its ring take turns as well. The
time is that of the slowest rank.

    python benchmarks/distributed/allreduce_links.py            # 4 MB at 4 and 8 ranks, as root
    python benchmarks/distributed/allreduce_links.py --all      # every algorithm of ours as well
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile

import numpy as np

from benchmarks.distributed.links import Links, missing
from caldera.bench.timing import Stopwatch
from caldera.comm import MpiCommunicator, world
from caldera.comm.algorithms import ALLREDUCE
from caldera.comm.mpi_library import mpi

BYTES = 4 << 20
BITS_PER_SECOND = {"100mbit": 100e6, "1gbit": 1e9}
ROUNDS = {"100mbit": 5, "1gbit": 20}
JOBS = 3
OPEN_MPI = {
    "Open MPI, default": {},
    "Open MPI, ring": {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
    },
}


def job(rounds: int, names: list[str]) -> None:
    """What each rank runs: algorithms take turns; rank 0 prints their seconds."""
    comm = world()
    assert isinstance(comm, MpiCommunicator)
    numbers = np.ones(BYTES // 4, np.float32)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            comm.algorithm = name
            mpi().COMM_WORLD.Barrier()
            began = Stopwatch()
            comm.Allreduce(numbers, numbers, "mean")
            slowest = max(comm.gather_objects(began.wall))
            assert numbers.min() == numbers.max() == 1.0
            if turn:
                # In the first turn connections are made and the choice of "auto" is measured.
                seconds[name].append(slowest)
    if comm.rank == 0:
        print(json.dumps({"seconds": seconds, "chosen": comm.tuner.chosen.get(BYTES)}))


def measure(ranks: int, rate: str, everything: bool) -> None:
    """One line for each way to do it."""
    bound = 2 * (ranks - 1) / ranks * BYTES * 8 / BITS_PER_SECOND[rate]
    seen: dict[str, list[float]] = {}
    ours = "auto"
    with Links(ranks, rate) as links, tempfile.TemporaryDirectory() as cache:
        for _ in range(JOBS):
            for label, variables in OPEN_MPI.items():
                words = [__file__, "--job", str(ROUNDS[rate]), "library,auto"]
                said = json.loads(links.run(words, CALDERA_CACHE=cache, **variables))
                seen.setdefault(label, []).extend(said["seconds"]["library"])
                seen.setdefault("Caldera", []).extend(said["seconds"]["auto"])
                ours = said["chosen"]
        if everything:
            words = [__file__, "--job", str(ROUNDS[rate]), ",".join(ALLREDUCE)]
            said = json.loads(links.run(words, CALDERA_CACHE=cache))
            seen.update({f"Caldera, {name}": found for name, found in said["seconds"].items()})
    print(
        f"\n{ranks} ranks, {rate}/s, {BYTES >> 20} MiB: bound {bound * 1e3:.1f} ms "
        f"(Caldera chose {ours})\n"
    )
    print("| | median ms | of the bound | best | worst | runs |\n|---|---|---|---|---|---|")
    for label, times in seen.items():
        middle, best, worst = statistics.median(times), min(times), max(times)
        print(
            f"| {label} | {middle * 1e3:.1f} | **{bound / middle:.1%}** | {bound / best:.1%} "
            f"| {bound / worst:.1%} | {len(times)} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every algorithm of ours as well")
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job(int(given.job[0]), given.job[1].split(","))
        return
    if missing():
        sys.exit(f"no slow links here: {missing()}")
    print(
        f"# Allreduce over slow links\n\n{platform.machine()}, {len(os.sched_getaffinity(0))} "
        f"cores, load {os.getloadavg()[0]:.1f} at the start; "
        f"{mpi().Get_library_version().splitlines()[0].split(',')[0]}"
    )
    for rate in given.rates.split(","):
        for ranks in given.ranks.split(","):
            measure(int(ranks), rate, given.all)


if __name__ == "__main__":
    main()
