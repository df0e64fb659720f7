"""Measure training steps on 2, 4 and 8 ranks of this machine, for `plan_check.py`.

    python benchmarks/distributed/plan_runs.py FACTS.json [--places "shared memory" 1gbit] \\
        [--ranks 2 4 8]

Results are added to the file, so a long check can run in pieces. The time of encoding is measured
once, in seconds of a core, which `plan_check.py` divides by the share of a core that a rank had.
Then strategies train as `fit` does, in shared memory and, given root, `ip` and `tc`, in network
namespaces with a link for each rank. Before and after each strategy, the same ranks measure the
rest of the planner's calibration, because other programs change the speed of a machine within
seconds: the compute time of a step that ranks begin together (at most one rank per core), and the
link between the ranks (at most four over slow links). The time of a step is the slowest rank's;
bytes are counted on the busiest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from benchmarks.distributed.links import Links, missing
from benchmarks.distributed.ranks_cases import take_session
from caldera import nn, optim
from caldera.bench.timing import StepClock, Stopwatch
from caldera.comm import Communicator, world
from caldera.comm.mpi import MpiCommunicator
from caldera.comm.supervision import launch
from caldera.parallel.planner import Cluster, Compute, Setting, Wire, measured_wire, workload_of
from caldera.parallel.planner.compression_cost import default_codecs, timed
from caldera.parallel.planner.prediction import TrainingWay, measured
from caldera.parallel.planner.ranking import all_ways, build_strategy
from caldera.train.strategy import Strategy

BATCH, EVERY = 256, 4
SHARED = "shared memory"
STEPS = {SHARED: 24, "1gbit": 6, "100mbit": 2}
"""Steps of a run, several times as many for local SGD; one more before, which makes plans."""
RANKS = (2, 4, 8)
TOGETHER = 6
"""Strategies of one job."""
MOST_ON_LINKS = 4
"""Ranks that measure a slow link: more would take minutes."""


def names(ranks: int, place: str) -> list[str]:
    """Return the planner's names of the compared strategies."""
    servers = f"{ranks} servers"
    halves = {2: "model 2", 4: "data 2 x model 2", 8: "data 4 x model 2"}[ranks]
    stages = {2: "pipeline 2", 4: "pipeline 4", 8: "data 2 x pipeline 4"}[ranks]
    found = [
        "DataParallel, ring",
        "DataParallel, halving",
        "DataParallel, direct",
        "Sharded, stage 1",
        "Sharded, stage 3",
        "DataParallel, float16",
        "DataParallel, QSGD, 4 bits",
        "DataParallel, Top16_Q4",
        "DataParallel, PowerSGD, rank 4",
        f"ParameterServer, asynchronous, {servers}",
        f"LocalSGD, every {EVERY} steps",
        "Gossip, ring",
        f"TensorParallel, model {ranks}",
        f"Hybrid, {halves}",
        f"PipelineParallel, {stages}, 1F1B of 8",
    ]
    if place == SHARED:
        found += [f"PipelineParallel, {stages}, fill-drain of 8", "Hogwild"]
    if place != "100mbit":
        found.append(f"ParameterServer, synchronous, {servers}")
    return [name for name in found if ranks > 2 or not name.startswith("Hybrid")]


def model() -> cd.NeuralNetwork:
    """Return the MLP of the MagmaDNN paper."""
    layers = nn.models.mlp((784,), hidden=(528,) * 3, activation="sigmoid")
    return cd.NeuralNetwork(layers, optimizer=optim.SGD(0.05), batch_size=BATCH)


class SendingClock(StepClock):
    """Record the end of each step, and the bytes that this rank had sent until then."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []

    def batch_ends(self, run: cd.Run) -> None:
        super().batch_ends(run)
        counters = {id(each.traffic): each.traffic for each in MpiCommunicator.instances()}
        self.sent.append(sum(each.total.bytes_sent for each in counters.values()))


def trained(strategy: Strategy, turns: int, every: int) -> tuple[float, float]:
    """Return the seconds of a step, and the bytes that this rank sent in it.

    The time is the median over rounds of several steps, with one exchange each. The first round,
    in which plans are compiled and algorithms chosen, is not counted.
    """
    generator = np.random.default_rng(0)
    x = generator.normal(size=(BATCH * (turns + 1) * every, 784)).astype("float32")
    y = generator.integers(0, 10, len(x))
    clock = SendingClock()
    model().fit((x, y), batch_size=BATCH, verbose=0, callbacks=[clock], parallel=strategy)
    sent = clock.sent[every - 1 :: every]
    return float(np.median(clock.seconds(every, every))) / every, (sent[-1] - sent[0]) / (
        turns * every
    )


def the_ways(ranks: int, place: str, wire: Wire) -> Iterator[TrainingWay]:
    """Return the planner's strategies with these names."""
    per_node = ranks if place == SHARED else 1
    cluster = Cluster(ranks, wire, per_node=per_node)
    workload = workload_of(model())
    codes = default_codecs(wire)
    setting = Setting(workload, Compute(((1.0, 1.0),)), cluster, BATCH, codes, EVERY)
    known = {way.name: way for way in all_ways(setting)}
    return (known[name] for name in names(ranks, place))


# --- what is started as a job


def encoding() -> dict[str, Any]:
    """Measure the time of compressors on one rank."""
    known = default_codecs(Wire(1e-4, 12.5e6))
    codes = {name: timed(code) for name, code in known.items()}
    return {name: [asdict(code.few), asdict(code.many)] for name, code in codes.items()}


def among_first(count: int, work: Callable[[Communicator], Any]) -> Any:
    """Return the result of work of the first ranks, while the remaining ranks sleep."""
    everyone = world()
    some = everyone.Split(0 if everyone.rank < count else None)
    found = None if some is None else work(some)
    done = everyone.background(lambda own: own.Barrier())
    # A rank that waits busily would take a core from the ranks that measure.
    while not done.test():
        time.sleep(0.01)
    return everyone.bcast_object(found)


def compute(ranks: Communicator) -> dict[str, Any]:
    """Measure the compute time of the slowest of some ranks on one machine."""
    ranks.Barrier()
    clock = Stopwatch()
    found, _ = measured(model(), workload_of(model()), BATCH, communicator=ranks)
    # Above 1 while kernels are compiled by several threads.
    return {"times": asdict(found), "share": min(clock.cpu / clock.wall, 1.0)}


def calibration(place: str) -> dict[str, Any]:
    """Measure all that the planner receives, except for the time of encoding."""
    cores, count = len(os.sched_getaffinity(0)), world().size
    some = count if place == SHARED else min(count, MOST_ON_LINKS)

    def link(ranks: Communicator) -> dict[str, Any]:
        return asdict(measured_wire(ranks, max(ranks.size / cores, 1.0)))

    return {
        "compute": among_first(min(count, cores), compute),
        "link": among_first(some, link),
    }


def strategies(place: str, first: str) -> list[dict[str, Any]]:
    """Measure strategies: seconds of the slowest rank and bytes of the busiest rank in a step.

    Calibrations are measured before and after each strategy.
    """
    before = calibration(place)
    known = the_ways(world().size, place, Wire(**before["link"]))
    found = []
    for way in islice(known, int(first), int(first) + TOGETHER):
        every = EVERY if "every" in way.maker[1] else 1
        strategy = build_strategy(way, world().size, world())
        # The planner expects the fastest algorithm for PowerSGD's sums, which are short.
        short = "PowerSGD" in way.name
        for each in MpiCommunicator.instances() if place != SHARED else ():
            # To try all algorithms on long sums takes longer than to train over a slow link.
            each.algorithm = "ring" if each.algorithm == "auto" and not short else each.algorithm
        own = trained(strategy, STEPS[place], every)
        everyone = world().gather_objects(list(own))
        step = [max(each[0] for each in everyone), max(each[1] for each in everyone)]
        after = calibration(place)
        found.append({"name": way.name, "step": step, "calibrations": [before, after]})
        before = after
    return found


JOBS: dict[str, Callable[..., Any]] = {
    "encoding": encoding,
    "strategies": strategies,
}


# --- what starts jobs


def run(place: str, ranks: int, *words: str) -> Any:
    """Start a job, and return the results of rank 0."""
    program = [__file__, "--job", *words]
    if place != SHARED:
        # Links of a namespace that was deleted take a moment to go.
        time.sleep(2)
        with Links(ranks, place) as links:
            output = links.run(program, CALDERA_ACCELERATOR="cpu")
            return json.loads(output.strip().splitlines()[-1])
    environment = {
        **os.environ,
        "CALDERA_THREADS": "1",
        "CALDERA_ACCELERATOR": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm",
    }
    job = launch(ranks, program, environment=environment)
    done = subprocess.run(
        job.command, env=job.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(file: Path, places: list[str], counts: list[int]) -> None:
    """Measure the requested settings that the file lacks."""
    facts: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    facts["cores"] = len(os.sched_getaffinity(0))
    facts["machine"] = platform.machine()

    def measured_as(key: str, place: str, ranks: int, *words: str) -> Any:
        began = Stopwatch()
        found = run(place, ranks, *words)
        print(f"{key}: {words[0]}, {began.wall:.1f} s", flush=True)
        return found

    if "encoding" not in facts:
        facts["encoding"] = measured_as("encoding", SHARED, 1, "encoding")
    for place, count in product(places, counts):
        for first in range(0, len(names(count, place)), TOGETHER):
            key = f"{place}, {count}, {first}"
            if key not in facts:
                facts[key] = measured_as(key, place, count, "strategies", place, str(first))
                file.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--places", nargs="+", default=[SHARED] if missing() else list(STEPS))
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS))
    parser.add_argument("--job", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        take_session()
        kind, *words = given.job
        result = JOBS[kind](*words)
        if world().rank == 0:
            print(json.dumps(result))
    else:
        main(given.file, given.places, given.ranks)
