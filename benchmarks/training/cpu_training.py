"""Training steps on the CPU beside PyTorch and JAX, by turns, on as many cores as are asked for.

    python benchmarks/training/cpu_training.py mlp resnet20 gpt --threads 2,16 --peers torch,jax
    python benchmarks/training/cpu_training.py resnet50 --precisions float32,bfloat16 --samples a

The identical network, weights and batches; every contestant in a process of its own, one computes
at a time. For each network, number of threads and precision a table: the best step; the median over
turns of the ratio of a turn's best step to Caldera's (in brackets: of the turn's median steps); the
first step with empty caches; the memory that the process has more than after its imports; the
losses of the steps after it. `caldera bench` checks more; this says in seconds where a network
stands.

`--profile FOLDER` also writes the table of Caldera's step, kernel by kernel, and `--samples FILE`
the time of every step.

On a machine that others keep busy, `--threads 1 --cpu-time` counts what the processes computed, and
not what they waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from caldera.bench.contestants import Contestant, contestants, has_compiler
from caldera.bench.worker_process import LOSSES, MEASURE, PREPARE, WorkerError, WorkerHandle
from caldera.bench.workloads import TrainingCase
from caldera.bench.workloads.training import networks

STEPS = 3
"""Whose losses are compared, after the first one."""
LEAST = 2
"""Steps of a turn, however long they take."""


@dataclass
class Entry:
    """One framework in one setting."""

    handle: WorkerHandle
    first_s: float
    losses: list[float]
    turns: list[list[float]] = field(default_factory=list)
    growth: int = 0
    """Bytes that it has more than after its imports."""

    @property
    def label(self) -> str:
        """How the table calls it."""
        return self.handle.contestant.label

    @property
    def is_ours(self) -> bool:
        """Whether it is Caldera, which ratios are to."""
        return self.handle.contestant.framework == "caldera"

    @property
    def best(self) -> float:
        """Seconds of its fastest step."""
        return min(map(min, self.turns))


@dataclass(frozen=True)
class Course:
    """A network, how it is computed, and how long."""

    work: str
    case: TrainingCase
    threads: int
    precision: str
    options: argparse.Namespace

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.options.batch or self.case.batch

    @property
    def name(self) -> str:
        """What tables and files call it."""
        return f"{self.case.name}, batch {self.batch}, {self.threads} threads, {self.precision}"

    def contestants(self) -> list[Contestant]:
        """Everybody who takes part."""
        options = self.options
        peers = [peer for peer in options.peers.split(",") if peer]
        compiler = options.compile and has_compiler()
        return contestants(
            self.case, peers, [options.accuracy], compiler=compiler, precisions=[self.precision]
        )

    def entered(self, contestant: Contestant, caches: Path) -> Entry:
        """Start a contestant, and let it make its first steps."""
        handle = WorkerHandle(contestant, caches, self.threads)
        try:
            reply = handle.ask(PREPARE, work=self.work, case=self.case.name, batch=self.batch)
            losses = handle.ask(LOSSES, steps=STEPS)["losses"]
        except WorkerError:
            handle.close()
            raise
        return Entry(handle, reply["first s"], losses)

    def turn(self, entry: Entry) -> None:
        """Let one of them compute for a while."""
        reply = entry.handle.ask(MEASURE, seconds=self.options.seconds, least=LEAST)
        entry.turns.append(reply["cpu" if self.options.cpu_time else "times"])
        entry.growth = reply["growth"]

    def measured(self, caches: Path) -> list[Entry]:
        """All contestants after all turns."""
        entries: list[Entry] = []
        try:
            for contestant in self.contestants():
                try:
                    entries.append(self.entered(contestant, caches))
                except WorkerError as error:
                    # One that cannot take part must not cost the others their turn.
                    print(f"  {error}", flush=True)
            for turn in range(self.options.turns if entries else 0):
                begin = turn % len(entries)
                for entry in entries[begin:] + entries[:begin]:
                    self.turn(entry)
        finally:
            for entry in entries:
                entry.handle.close()
        return entries


def print_table(course: Course, entries: Sequence[Entry]) -> None:
    """A line for each contestant."""
    print(f"\n{course.name}")
    print("| setting | ms a step | to Caldera | first step | memory | losses |")
    print("|---|---|---|---|---|---|")
    ours = next((each for each in entries if each.is_ours), None)
    for entry in entries:
        losses = " ".join(f"{loss:.4f}" for loss in entry.losses)
        print(
            f"| {entry.label} | {entry.best * 1e3:,.3f} | {ratios(entry, ours)} "
            f"| {entry.first_s:.1f} s | {entry.growth / 2**20:,.0f} MiB | {losses} |",
            flush=True,
        )


def ratios(entry: Entry, ours: Entry | None) -> str:
    """The median over turns of the ratio of the best, and of the median steps."""
    if ours is None:
        return ""
    pairs = list(zip(entry.turns, ours.turns, strict=True))
    best = median(min(theirs) / min(own) for theirs, own in pairs)
    middle = median(median(theirs) / median(own) for theirs, own in pairs)
    return f"{best:.2f} ({middle:.2f})"


def keep_samples(path: Path, course: Course, entries: Sequence[Entry]) -> None:
    """Add the times of a network to a file of them."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[course.name] = {
        each.label: {
            "first s": each.first_s,
            "losses": each.losses,
            "bytes": each.growth,
            "turns": each.turns,
        }
        for each in entries
    }
    path.write_text(json.dumps(known) + "\n")


_EXPLAIN = """
import sys
from dataclasses import replace
from caldera.bench.frameworks import FRAMEWORKS
from caldera.bench.workloads import WORKLOADS
work, case, batch, threads, accuracy, precision = sys.argv[1:]
ours = FRAMEWORKS["caldera"]({"accuracy": accuracy, "precision": precision}, int(threads))
task = ours.trainer(replace(WORKLOADS[work].case(case), batch=int(batch)), "float32")
task.losses(3)
print(task.plan.explain())
"""


def write_profile(folder: Path, course: Course) -> None:
    """The kernels of Caldera's step, and the time of each, from a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))[: course.threads]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _EXPLAIN,
            course.work,
            course.case.name,
            str(course.batch),
            str(course.threads),
            course.options.accuracy,
            course.precision,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(course.threads)},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    name = f"{course.case.name}-{course.threads}-{course.precision}.txt"
    (folder / name).write_text(done.stdout or done.stderr)


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--threads", default=str(cores), help="numbers of them, with commas")
    parser.add_argument("--batch", type=int, help="samples of a batch, if not the network's usual")
    parser.add_argument("--precisions", default="float32", help="float32, bfloat16")
    parser.add_argument("--peers", default="torch,jax")
    parser.add_argument("--accuracy", default="strict", help="strict or fast: Caldera's kernels")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn")
    parser.add_argument("--profile", type=Path, help="a folder for tables of Caldera's kernels")
    parser.add_argument("--samples", type=Path, help="a JSON file for the times of all steps")
    parser.add_argument("--cpu-time", action="store_true", help="of one core, not of the clock")
    options = parser.parse_args()
    counts = [int(each) for each in options.threads.split(",")]
    if options.cpu_time and counts != [1]:
        sys.exit(f"expected --threads 1 with --cpu-time; got {options.threads}")
    if max(counts) > cores:
        sys.exit(f"expected at most {cores} threads, the cores of this process; got {max(counts)}")
    known = {
        case.name: (work.name, case)
        for work in networks()
        for case in work.cases
        if isinstance(case, TrainingCase)
    }
    missing = [name for name in options.networks if name not in known]
    if missing:
        sys.exit(f"expected networks among {', '.join(known)}; got {', '.join(missing)}")
    for name in options.networks:
        for threads in counts:
            for precision in options.precisions.split(","):
                course = Course(*known[name], threads, precision, options)
                with tempfile.TemporaryDirectory() as caches:
                    entries = course.measured(Path(caches))
                print_table(course, entries)
                if options.samples:
                    keep_samples(options.samples, course, entries)
                if options.profile:
                    write_profile(options.profile, course)


if __name__ == "__main__":
    main()
