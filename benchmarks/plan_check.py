"""What the planner predicts beside what really happens: 2, 4 and 8 ranks on this machine.

Compute is timed with a rank on every core, each for itself, and the link between two ranks;
everything at 2, 4 and 8 ranks is predicted from these. Then each strategy trains as `fit` does, on
shared memory and, where this machine allows it (root, `ip`, `tc`), in network namespaces at 100
Mbit/s. All ranks share the cores of one machine, which the prediction knows. A step's time is the
median of those between the ends of steps; bytes are what the busiest rank's communicator counted.

    python benchmarks/plan_check.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from links import Links, missing

import caldera as cd
from caldera import compress, nn, optim, parallel
from caldera.amounts import bytes_text
from caldera.comm import Communicator, world
from caldera.comm.launch import launch
from caldera.planner import Cluster, Compute, Setting, Wire, measured_wire, workload_of
from caldera.planner.coding import Coded, Work, usual_codes
from caldera.planner.compute import measured
from caldera.planner.ranking import all_ways
from caldera.strategy import Alone, Strategy

BATCH = 256
STEPS = {"shared memory": 30, "100mbit": 5}
RANKS = (2, 4, 8)
RATE = "100mbit"
WAYS: dict[str, tuple[str, Any]] = {
    "ring": ("DataParallel, ring", lambda comm: dp(comm, algorithm="ring")),
    "halving": ("DataParallel, halving", lambda comm: dp(comm, algorithm="halving")),
    "stage 1": ("Sharded, stage 1", lambda comm: parallel.Sharded(1, communicator=comm)),
    "stage 3": ("Sharded, stage 3", lambda comm: parallel.Sharded(3, communicator=comm)),
    "float16": ("DataParallel, float16", lambda comm: dp(comm, "cast", dtype="float16")),
    "qsgd": ("DataParallel, QSGD, 4 bits", lambda comm: dp(comm, "qsgd", bits=4)),
    "top16": ("DataParallel, Top16_Q4", lambda comm: dp(comm, "top16_q4")),
}


def dp(comm: Communicator, code: str = "", algorithm: str = "auto", **how: Any) -> Strategy:
    """Data parallel, with a compression or without."""
    compression = compress.compressors.make(code, **how) if code else None
    return parallel.DataParallel(communicator=comm, algorithm=algorithm, compression=compression)


def model() -> cd.NeuralNetwork:
    """The seed's MLP."""
    layers = nn.models.mlp((784,), hidden=(528,) * 3, activation="sigmoid")
    return cd.NeuralNetwork(layers, optimizer=optim.SGD(0.05), batch_size=BATCH)


class Clock(cd.Callback):
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def batch_ends(self, run: cd.Run) -> None:
        self.times.append(time.perf_counter())


def trained(strategy: Strategy, batch: int, steps: int) -> tuple[float, float]:
    """The median seconds of a step, and the bytes of it that this rank sent."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(batch * (steps + 1), 784)).astype("float32")
    y = generator.integers(0, 10, len(x))
    clock = Clock()
    before = strategy.in_plans.traffic.mark()
    model().fit((x, y), batch_size=batch, verbose=0, callbacks=[clock], parallel=strategy)
    sent = strategy.in_plans.traffic.since(before).total.bytes_sent
    return float(np.median(np.diff(clock.times))), sent / (steps + 1)


# --- what is started as a job


def alone() -> dict[str, Any]:
    """Ranks that share nothing but the machine: compute at some batches, and codes."""
    compute, _ = measured(model(), workload_of(model()), BATCH)
    points = []
    for size, _ in compute.points:
        world().Barrier()
        points.append([size, trained(Alone(), int(size), 20)[0]])
    world().Barrier()
    codes = usual_codes(Wire(1e-4, 12.5e6))
    return {
        "points": points,
        "timed": compute.points,
        "forward": compute.forward,
        "codes": {name: [asdict(code.few), asdict(code.many)] for name, code in codes.items()},
    }


def link() -> dict[str, float]:
    """Two ranks: what is between them."""
    found = measured_wire(world())
    return {"latency": found.latency, "bandwidth": found.bandwidth}


def strategies(names: list[str], steps: int) -> dict[str, Any]:
    """Each strategy: seconds and bytes of a step, of the slowest and the busiest rank."""
    found = {}
    for name in names:
        own = trained(WAYS[name][1](world()), BATCH, steps)
        everyone = world().gather_objects(list(own))
        found[name] = [max(each[0] for each in everyone), max(each[1] for each in everyone)]
    return found


# --- what starts jobs


class Here:
    """Ranks of this machine, over shared memory."""

    title = "shared memory"

    def run(self, ranks: int, *words: str) -> Any:
        environment = {
            **os.environ, "CALDERA_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm",
        }  # fmt: skip
        job = launch(ranks, [__file__, "--job", *words], environment=environment)
        done = subprocess.run(
            job.command, env=job.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])


class There:
    """Ranks with a slow link each."""

    title = RATE

    def run(self, ranks: int, *words: str) -> Any:
        # Links of a namespace that was deleted take a moment to go.
        time.sleep(3)
        with Links(ranks, RATE) as links:
            return json.loads(links.run([__file__, "--job", *words]).strip().splitlines()[-1])


def setting_of(ranks: int, wire: Wire, one: dict[str, Any], where: Here | There) -> Setting:
    """What the planner is told: all ranks share the cores of this machine."""
    cores = len(os.sched_getaffinity(0))
    codes = {
        name: Coded(code.compressor, *(Work(**each) for each in one["codes"][name]))
        for name, code in usual_codes(wire).items()
    }
    per_node, at_full_speed = (ranks, cores) if isinstance(where, Here) else (1, cores / ranks)
    cluster = Cluster(ranks, wire, wire, per_node, at_full_speed)
    compute = Compute(tuple((size, seconds) for size, seconds in one["points"]), one["forward"])
    return Setting(workload_of(model()), compute, cluster, BATCH, codes)


def check(where: Here | There, one: dict[str, Any], names: list[str]) -> list[float]:
    """A table; how far off each prediction of a time was, as predicted / measured."""
    found = where.run(2, "link")
    wire = Wire(found["latency"], found["bandwidth"])
    print(
        f"\n## {where.title}\n\nBetween two ranks: latency {wire.latency * 1e6:.0f} us, "
        f"{wire.bandwidth * 8 / 1e6:,.0f} Mbit/s in an allreduce of 4 MiB.\n\n"
        "| ranks | strategy | predicted | measured | predicted / measured "
        "| bytes predicted | bytes counted |\n|---|---|---|---|---|---|---|"
    )
    ratios = []
    for ranks in RANKS:
        seen = where.run(ranks, "strategies", ",".join(names), str(STEPS[where.title]))
        setting = setting_of(ranks, wire, one, where)
        ways = {way.name: way for way in all_ways(setting)}
        for name in names:
            guess = ways[WAYS[name][0]].predict(setting)
            seconds, sent = seen[name]
            ratios.append(guess.seconds / seconds)
            print(
                f"| {ranks} | {WAYS[name][0]} | {guess.seconds * 1e3:.1f} ms "
                f"| {seconds * 1e3:.1f} ms | {ratios[-1]:.2f} | {bytes_text(guess.sent)} "
                f"| {bytes_text(sent)} |", flush=True,
            )  # fmt: skip
    return ratios


def main(names: list[str]) -> None:
    cores = len(os.sched_getaffinity(0))
    print(f"# Predicted and measured\n\n{platform.machine()}, {cores} cores; the seed's MLP "
          f"(784-528-528-528-10), SGD, a batch of {BATCH} shared by all ranks.\n")  # fmt: skip
    one = Here().run(cores, "alone")
    print("A rank of one thread, with one on every core: " + ", ".join(
        f"{seconds * 1e3:.1f} ms for {size:g} samples (plan alone {timed * 1e3:.1f} ms)"
        for (size, seconds), (_, timed) in zip(one["points"], one["timed"], strict=True)
    ) + f"; the forward pass is {one['forward']:.0%} of it. Encoding and decoding: " + ", ".join(
        f"{name} {few['a_value'] * 1e9:.2f} ns a value among 2 ranks, "
        f"{many['a_value'] * 1e9:.2f} among 8, and {many['a_rank'] * 1e6:.0f} us for each other one"
        for name, (few, many) in one["codes"].items()
    ) + ".", flush=True)  # fmt: skip
    places: list[Here | There] = [Here()] + ([] if missing() else [There()])
    if missing():
        print(f"\nNo slow links here: {missing()}.")
    for where in places:
        ratios = sorted(check(where, one, names))
        middle = ratios[len(ratios) // 2]
        print(f"\nPredicted / measured: median {middle:.2f}, from {ratios[0]:.2f} "
              f"to {ratios[-1]:.2f}.", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two strategies only")
    parser.add_argument("--job", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.job:
        main(["ring", "top16"] if given.quick else list(WAYS))
        sys.exit()
    kind, *words = given.job
    if kind == "strategies":
        result: Any = strategies(words[0].split(","), int(words[1]))
    else:
        result = {"alone": alone, "link": link}[kind]()
    if world().rank == 0:
        print(json.dumps(result))
