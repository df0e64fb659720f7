"""What ranks_torch.py measures, and how two frameworks take turns: standard library only.

Both frameworks read the same weights and batches from a folder, and wait for their turn for a file
in it: ranks that sleep take no core from those that compute.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RATE, MOMENTUM = 0.02, 0.9
HIDDEN = (528, 528, 528)
WORDS, CONTEXT, WIDTH, DEPTH, HEADS = 256, 64, 128, 8, 4
BATCH = {"mlp": 512, "resnet20": 128, "gpt": 32}
"""Samples in a step of all ranks together."""
SHAPE = {"mlp": (784,), "resnet20": (3, 32, 32), "gpt": (CONTEXT,)}
MOST_STAGES = {"mlp": 4, "resnet20": 8, "gpt": 8}
WARM_UP = 3
"""Steps before the first turn."""
POWER_RANK = 4
POLL_S = 1e-3
BUCKET_BYTES = 4 << 20


@dataclass(frozen=True)
class RanksCase:
    """A network trained with one strategy: data, sharded, pipeline, powersgd or bf16."""

    network: str
    strategy: str
    turns: int
    steps: int

    @property
    def total_steps(self) -> int:
        """Steps of the training: each turn begins with one that is not timed."""
        return WARM_UP + self.turns * (self.steps + 1)


def pipeline_shape(network: str, ranks: int) -> tuple[int, int, int]:
    """Return the number of stages, of pipelines and of micro-batches."""
    stages = min(ranks, MOST_STAGES[network])
    return stages, ranks // stages, max(4, stages)


def costs(network: str) -> list[float]:
    """Return the multiplications of each unit that a stage may begin with, for one sample."""
    if network == "mlp":
        return [784 * 528, 528 * 528, 528 * 528, 528 * 10]
    if network == "resnet20":
        block = 2 * 9 * 16 * 16 * 32 * 32
        return [9 * 3 * 16 * 32 * 32, *[block] * 9, 640]
    return [0, *[CONTEXT * (12 * WIDTH**2 + 2 * CONTEXT * WIDTH)] * DEPTH, CONTEXT * WIDTH * WORDS]


def balanced(given: Sequence[float], stages: int) -> list[int]:
    """Return the units at which stages begin, and the end, with the smallest largest stage.

    >>> balanced([4, 3, 3, 1], 2)
    [0, 1, 4]
    """
    count = len(given)
    best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [0])}
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            best[stage, end] = min(
                (max(best[stage - 1, cut][0], sum(given[cut:end])), [*best[stage - 1, cut][1], end])
                for cut in range(stage - 1, end)
                if (stage - 1, cut) in best
            )
    return best[stages, count][1]


class Turns:
    """The turns of one framework's ranks, as files in a folder."""

    def __init__(self, folder: Path, framework: str) -> None:
        self.folder, self.framework = folder, framework

    def go(self, case: int, turn: int) -> None:
        """Let the ranks compute."""
        self._path(case, turn, "go").touch()

    def wait(self, case: int, turn: int) -> None:
        """Wait for `go`."""
        path = self._path(case, turn, "go")
        while not path.exists():
            time.sleep(POLL_S)

    def done(self, case: int, turn: int, found: Any) -> None:
        """Write the result of a turn."""
        part = self._path(case, turn, "part")
        part.write_text(json.dumps(found))
        part.rename(self._path(case, turn, "done"))

    def result(self, case: int, turn: int) -> Any:
        """Return the result of a turn, or None while there is none."""
        path = self._path(case, turn, "done")
        return json.loads(path.read_text()) if path.exists() else None

    def _path(self, case: int, turn: int, what: str) -> Path:
        return self.folder / f"{self.framework}-{case}-{turn}.{what}"


class TurnClock:
    """Counts steps, times them, and waits for the next turn after each turn."""

    def __init__(self, turns: Turns, index: int, case: RanksCase, is_first: bool) -> None:
        self._turns, self._index, self._case, self._is_first = turns, index, case, is_first
        self._steps, self._turn, self._left = 0, 0, WARM_UP
        self._begun = 0.0
        turns.wait(index, 0)

    def step_ends(self) -> None:
        """Note the end of a step."""
        self._left -= 1
        if self._turn and self._left == self._case.steps:
            self._begun = time.perf_counter()
        if self._left:
            return
        if self._is_first:
            taken = (time.perf_counter() - self._begun) / self._case.steps
            self._turns.done(self._index, self._turn, taken)
        self._turn += 1
        if self._turn <= self._case.turns:
            self._left = self._case.steps + 1
            self._turns.wait(self._index, self._turn)

    def report(self, loss: float) -> None:
        """Give the mean loss of all steps."""
        if self._is_first:
            self._turns.done(self._index, self._case.turns + 1, loss)


def take_session() -> None:
    """Continue in a child process with a session of its own, unless this process leads one.

    torchrun gives each rank a session, and mpiexec does not. On a busy machine the Linux kernel
    divides the cores among sessions, whatever their number of processes.
    """
    if os.getsid(0) == os.getpid():
        return
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setsid()


def take_cores(rank: int, ranks: int) -> None:
    """Stay on this rank's share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // ranks)
    first = rank * share % len(cores)
    os.sched_setaffinity(0, cores[first : first + share])


def write_array(path: Path, kind: str, raw: bytes) -> None:
    """Write numbers of a kind of `array.array`."""
    path.write_bytes(kind.encode() + raw)


def read_array(path: Path) -> array[Any]:
    """Read what `write_array` wrote."""
    raw = path.read_bytes()
    found = array(raw[:1].decode())
    found.frombytes(raw[1:])
    return found


def to_json(cases: Sequence[RanksCase]) -> str:
    """Return cases as text."""
    return json.dumps([asdict(case) for case in cases])


def from_json(text: str) -> list[RanksCase]:
    """Return the cases that `to_json` wrote."""
    return [RanksCase(**case) for case in json.loads(text)]
