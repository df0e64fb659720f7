"""Does `caldera bench --again` tell equal codes from slower ones? Twenty verdicts on each.

    python benchmarks/again_runs.py > benchmarks/results/again-$(uname -m).md

As `--again` does, workers with the code of before and workers with the present one take turns until
it is clear whether they differ, for a minute at most. The present code is once a copy of this one,
and once a copy whose every call waits for a tenth of its time more. Workers are kept from one
verdict to the next. What other programs do to this machine meanwhile is in the times, and the load
is in the first line.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import caldera
from caldera.bench.again import BUDGET, SLOWER, UNDECIDED, WITHIN, Again, compare_in_turns
from caldera.bench.case_runner import LEAST, SETTLE
from caldera.bench.contestants import Contestant
from caldera.bench.worker_process import MEASURE, PREPARE, WorkerHandle
from caldera.bench.workloads import WORKLOADS

BEFORE, SAME, MORE = "before", "the same", "10% slower"
ROUND_S = 0.05
_TIMED = "    task.wait()\n    return time.perf_counter() - start\n"
_SLOWED = """    task.wait()
    taken = time.perf_counter() - start
    while time.perf_counter() - start < 1.1 * taken:
        pass
    return time.perf_counter() - start
"""


def copied(folder: Path, *, slowed: bool = False) -> Path:
    """A copy of this code, perhaps a tenth slower."""
    package = folder / "caldera"
    source = Path(caldera.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    if slowed:
        file = package / "bench" / "measuring.py"
        text = file.read_text()
        assert text.count(_TIMED) == 1
        file.write_text(text.replace(_TIMED, _SLOWED))
    return folder


def verdicts(handles: Mapping[str, WorkerHandle]) -> dict[str, Again]:
    """What `--again` would say of each that takes turns with the code of before."""
    rounds: dict[str, list[list[float]]] = {name: [] for name in handles}
    end, turn = time.monotonic() + BUDGET, 0
    while True:
        order = list(handles)[:: -1 if turn % 2 else 1]
        for name in order[turn % 3 :] + order[: turn % 3]:
            time.sleep(SETTLE)
            times = handles[name].ask(MEASURE, seconds=ROUND_S, least=LEAST)["times"]
            rounds[name].append(times)
        turn += 1
        found = {
            name: compare_in_turns(name, rounds[BEFORE], rounds[name])
            for name in handles
            if name != BEFORE
        }
        is_clear = all(each.verdict != UNDECIDED for each in found.values())
        if turn >= LEAST and (is_clear or time.monotonic() > end):
            return found


def main() -> None:
    """Take turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="input")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    load, taken = os.getloadavg()[0], []
    found: dict[str, list[Again]] = {SAME: [], MORE: []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        handles = {}
        for name in (BEFORE, SAME, MORE):
            sources = copied(Path(folder) / name, slowed=name == MORE)
            contestant = Contestant("caldera", "strict", {"accuracy": "strict"}).before(
                str(sources)
            )
            handles[name] = WorkerHandle(contestant, Path(folder) / "caches" / name, 1)
            stack.callback(handles[name].close)
            case = WORKLOADS[options.work].quick[0].name
            handles[name].ask(PREPARE, work=options.work, case=case)
        for _ in range(options.runs):
            start = time.perf_counter()
            for name, each in verdicts(handles).items():
                found[name].append(each)
            taken.append(time.perf_counter() - start)
    print(f"# `caldera bench --again`, {options.runs} verdicts on each\n")
    print(f"`python benchmarks/again_runs.py --work {options.work}` on {platform.machine()}, "
          f"{os.cpu_count()} cores, load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the "
          f"end; up to {BUDGET:.0f} s of turns, two verdicts took {statistics.median(taken):.0f} s "
          f"(at most {max(taken):.0f}).\n")  # fmt: skip
    print("| the present code is | must be called | was | all verdicts | found |")
    print("|---|---|---|---|---|")
    for name, right in ((SAME, WITHIN), (MORE, SLOWER)):
        counts = Counter(each.verdict for each in found[name])
        ratios = sorted(each.ratio - 1 for each in found[name])
        print(f"| {name} | {right} | {counts[right]} of {options.runs} "
              f"| {', '.join(f'{count} {each}' for each, count in counts.items())} "
              f"| {statistics.median(ratios):+.1%} ({ratios[0]:+.1%} to {ratios[-1]:+.1%}) |"
              )  # fmt: skip
    print("\nNo file with every sample stands behind these figures: they are counts of verdicts.")


if __name__ == "__main__":
    main()
