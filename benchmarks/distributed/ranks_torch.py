"""Compare training on 2 to 16 ranks with PyTorch's DDP, FSDP and pipelines, interleaved.

    python benchmarks/distributed/ranks_torch.py --torch PYTHON [--quick] [--ranks 2,4,8,16]
        [--links memory,1gbit,100mbit] [--most-seconds 250] [--out ranks.md] [--json ranks.json]

The MLP of the MagmaDNN paper, ResNet-20 and a small GPT train with the same global batch and
initial weights, by SGD with momentum. `DataParallel()` is compared with DDP, `Sharded(3)` with
`fully_shard`, `PipelineParallel` with `Schedule1F1B`, PowerSGD and bfloat16 sums with DDP's
hooks. The network determines the number of stages; further ranks run more pipelines in parallel.
Caldera uses MPI, PyTorch (in the Python of `--torch`, which also requires NumPy) torchrun and
gloo. Each rank has its share of the cores and one thread. Both jobs stay alive, and one sleeps
while the other computes. A time is the median over turns of the mean step.

On the default link, `memory`, messages use the fastest transport within the machine. Links with a
rate (see links.py) require root, `ip` and `tc`; without them `memory` is measured instead.
`--most-seconds` is divided among links and numbers of ranks, and the page names the cases that are
skipped; `--quick` takes two short turns and less than 8 minutes. `--json` has every turn.

Batch normalisation differs: Caldera's statistics are of the global batch, DDP's and FSDP's of a
rank's part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.distributed import ranks_cases as shared
from benchmarks.distributed.links import ROOT, Links, missing
from benchmarks.distributed.ranks_caldera_worker import write
from caldera.comm.supervision import launch

HERE = Path(__file__).parent
FRAMEWORKS = ("Caldera", "PyTorch")
NETWORKS = ("mlp", "resnet20", "gpt")
STRATEGIES = ("data", "sharded", "pipeline", "powersgd", "bf16")
MEMORY = "memory"
QUICK_S = 420.0
CASE_S = 150.0
"""Seconds after which a turn counts as stuck."""
TARGET = 1.3
NAMES = {
    "data": ("DataParallel()", "DDP"),
    "sharded": ("Sharded(3)", "fully_shard"),
    "pipeline": ("PipelineParallel", "Schedule1F1B"),
    "powersgd": (f"PowerSGD({shared.POWER_RANK})", "powerSGD_hook"),
    "bf16": ('Cast("bfloat16")', "bf16_compress_hook"),
}


class TurnFailedError(Exception):
    """Raised for a framework's job that ended or hangs; the message has its last lines."""


@dataclass
class Job:
    """The ranks of one framework."""

    framework: str
    ranks: int
    folder: Path
    python: str
    links: Links | None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, first: int, cases: Sequence[shared.RanksCase]) -> None:
        """Start all ranks, which wait for their turn in the first case."""
        words = [str(self.folder), str(first), shared.to_json(cases)]
        self.log = self.folder / f"{self.framework}-{first}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "CALDERA_THREADS": "1",
            # Hooks of PyTorch's on the CPU ask for a GPU wherever one is visible.
            "CUDA_VISIBLE_DEVICES": "",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        commands = [self._torchrun(rank, words) for rank in range(self.ranks)]
        if self.framework == "Caldera":
            program = [str(HERE / "ranks_caldera_worker.py"), *words]
            if self.links is None:
                job = launch(self.ranks, program, environment=environment)
            else:
                job = self.links.job(program)
            commands, environment = [job.command], job.environment
        elif self.links is None:
            commands = commands[:1]
        with self.log.open("wb") as log:
            self.processes = [
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
                for command in commands
            ]

    def _torchrun(self, rank: int, words: list[str]) -> list[str]:
        run = [self.python, "-W", "ignore", "-m", "torch.distributed.run"]
        program = [str(HERE / "ranks_torch_worker.py"), *words]
        if self.links is None:
            return [*run, "--standalone", f"--nproc-per-node={self.ranks}", *program]
        at = [f"--nnodes={self.ranks}", f"--node-rank={rank}", "--master-port=29500"]
        at.append(f"--master-addr={self.links.address(0)}")
        inside = ["env", "GLOO_SOCKET_IFNAME=eth0", *run, *at, "--nproc-per-node=1", *program]
        return self.links.inside(rank, inside)

    def turn(self, case: int, turn: int) -> float:
        """Let the ranks compute for a turn and return its result."""
        turns = shared.Turns(self.folder, self.framework)
        turns.go(case, turn)
        return self.result(case, turn)

    def result(self, case: int, turn: int) -> float:
        """Wait for the result of a turn."""
        turns, ends = shared.Turns(self.folder, self.framework), time.monotonic() + CASE_S
        while (found := turns.result(case, turn)) is None:
            stuck = time.monotonic() > ends
            if stuck or any(each.poll() is not None for each in self.processes):
                text = self.log.read_text().splitlines()
                lines = [line for line in text if "Error" in line]
                # A job that has ended may report the reason in other words.
                lines += ["stuck"] if stuck else [line for line in text if line]
                raise TurnFailedError(f"{self.framework}: {(lines or ['ended'])[0].strip()}")
            time.sleep(shared.POLL_S)
        return float(found)

    def end(self) -> None:
        """End all ranks."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in self.processes:
                with suppress(ProcessLookupError):
                    os.killpg(each.pid, number)
            for each in self.processes:
                with suppress(subprocess.TimeoutExpired):
                    each.wait(10)
        self.processes = []


@dataclass
class Row:
    """Times and losses of one case."""

    case: shared.RanksCase
    ranks: int
    link: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def ratio(self) -> float:
        """Time of PyTorch divided by the time of Caldera."""
        ours, theirs = (median(self.seconds[name]) for name in FRAMEWORKS)
        return theirs / ours

    def __str__(self) -> str:
        names = " | ".join(f"`{name}`" for name in NAMES[self.case.strategy])
        head = f"| {self.link} | {self.ranks} | {self.case.network} | {names} |"
        if self.failure:
            return f"{head} not measured: {self.failure} |  |  |  |"
        ours, theirs = (1e3 * median(self.seconds[name]) for name in FRAMEWORKS)
        pairs = [b / a for a, b in zip(*self.seconds.values(), strict=True)]
        ratio = f"{self.ratio:.2f} ({min(pairs):.2f} to {max(pairs):.2f})"
        loss = "{:.4f}, {:.4f}".format(*self.losses)
        return f"{head} {ours:.1f} | {theirs:.1f} | {ratio} | {loss} |"


def measured(jobs: list[Job], index: int, case: shared.RanksCase, row: Row) -> None:
    """Measure one case by turns."""
    for job in jobs:
        job.turn(index, 0)
        row.seconds[job.framework] = []
    for turn in range(1, case.turns + 1):
        for job in jobs if turn % 2 else reversed(jobs):
            row.seconds[job.framework].append(job.turn(index, turn))
    row.losses = [job.result(index, case.turns + 1) for job in jobs]
    if not all(math.isfinite(loss) for loss in row.losses):
        row.failure = f"losses {row.losses}"


def on_ranks(
    ranks: int, link: str, cases: Sequence[shared.RanksCase], python: str, ends: float
) -> list[Row]:
    """Measure all cases on a number of ranks, until a time."""
    rows = []
    made = Links(ranks, link) if link != MEMORY else nullcontext()
    with tempfile.TemporaryDirectory() as name, made as links:
        folder = Path(name)
        for network in {case.network for case in cases}:
            write(network, folder)
        jobs = [Job(framework, ranks, folder, python, links) for framework in FRAMEWORKS]
        try:
            for index, case in enumerate(cases):
                row = Row(case, ranks, link)
                rows.append(row)
                if time.monotonic() > ends:
                    row.failure = "no time left"
                    continue
                try:
                    for job in jobs:
                        if not job.processes:
                            job.start(index, cases[index:])
                    measured(jobs, index, case, row)
                except TurnFailedError as error:
                    row.failure = str(error).replace("|", "/")[:200]
                    for job in jobs:
                        job.end()
                print(row, flush=True)
        finally:
            for job in jobs:
                job.end()
    return rows


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return sentences on wins and losses."""
    found = [row for row in rows if not row.failure]
    if not found:
        return ["Nothing was measured."]
    wins = sum(row.ratio > 1 for row in found)
    far = sum(row.ratio >= TARGET for row in found)
    lines = [
        f"Caldera is faster in {wins} of {len(found)} rows, slower in {len(found) - wins}; "
        f"{far} reach {TARGET} times PyTorch's speed; median {median(r.ratio for r in found):.2f}."
    ]
    for strategy in STRATEGIES:
        ratios = [row.ratio for row in found if row.case.strategy == strategy]
        if ratios:
            beside = " beside ".join(f"`{name}`" for name in NAMES[strategy])
            lines.append(f"- {beside}: {min(ratios):.2f} to {max(ratios):.2f} times as fast.")
    skipped = [row for row in rows if row.failure]
    lines += [f"- not measured: {len(skipped)} rows."] if skipped else []
    return lines


def report(rows: Sequence[Row], python: str, began: float, load: float) -> str:
    """Return the page of results."""
    torch = subprocess.run(
        [python, "-W", "ignore", "-c", "import torch; print(torch.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    batches = ", ".join(f"{name} {shared.BATCH[name]}" for name in NETWORKS)
    head = "| link | ranks | network | Caldera | PyTorch | ms | ms | faster (turns) | losses |"
    return "\n".join(
        [
            f"# Ranks of Caldera beside PyTorch {torch}",
            "",
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
            f"mpi4py {version('mpi4py')}, load at the start {load:.1f}, "
            f"{time.monotonic() - began:.0f} s. Batches of all ranks together: {batches}. "
            f"SGD, rate {shared.RATE}, momentum {shared.MOMENTUM}. "
            f"Losses are means over all steps.",
            "",
            *verdict(rows),
            "",
            head,
            "|---" * 9 + "|",
            *map(str, rows),
        ]
    )


def main() -> None:
    """Measure the requested cases."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--torch", default=sys.executable, help="Python that has PyTorch")
    options.add_argument("--ranks", default="2,4,8,16")
    options.add_argument("--networks", default=",".join(NETWORKS))
    options.add_argument("--strategies", default=",".join(STRATEGIES))
    options.add_argument("--links", default=MEMORY, help="of memory,1gbit,100mbit")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--steps", type=int, default=8, help="of a turn")
    options.add_argument("--quick", action="store_true", help="two short turns, under 8 minutes")
    options.add_argument("--most-seconds", type=float, help="after which no case is started")
    options.add_argument("--out", type=Path)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    turns, steps = (2, 4) if given.quick else (given.turns, given.steps)
    cases = [
        shared.RanksCase(network, strategy, turns, steps)
        for strategy in given.strategies.split(",")
        for network in given.networks.split(",")
        # Compression pays where there are many parameters for the work.
        if strategy not in ("powersgd", "bf16") or network == "mlp"
    ]
    links = given.links.split(",")
    lacks = missing() if set(links) - {MEMORY} else ""
    if lacks:
        print(f"no links: {lacks}", flush=True)
        links = [MEMORY]
    settings = [(int(ranks), link) for link in links for ranks in given.ranks.split(",")]
    rows: list[Row] = []
    most = given.most_seconds or (QUICK_S if given.quick else math.inf)
    for left, (ranks, link) in zip(range(len(settings), 0, -1), settings, strict=True):
        now = time.monotonic()
        ends = now + max(0.0, began + most - now) / left
        rows += on_ranks(ranks, link, cases, given.torch, ends)
    page = report(rows, given.torch, began, load)
    page += f"\n\nLinks were not measured: {lacks}.\n" if lacks else "\n"
    print(f"\n{page}")
    if given.out is not None:
        given.out.write_text(page)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
