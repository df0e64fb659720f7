"""Does `caldera bench --again` tell equal codes from slower ones? Twenty whole sessions of each.

    python benchmarks/again_runs.py > benchmarks/results/again-$(uname -m).md

A session is what `--again` runs: workers with the code of before and workers with the present one
take turns until it is clear whether they differ, for a minute at most. Half of the sessions compare
two copies of this code; in the other half the present code is a copy whose every call waits for a
tenth of its time more. What other programs do to this machine meanwhile is in the times, and the
load is in the first line.
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
from pathlib import Path

import caldera
from caldera.bench.again import BUDGET, SLOWER, WITHIN, Again, compare_reports
from caldera.bench.case_runner import Options
from caldera.bench.session import Session

RUNS = 20
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


def session(work: str, before: Path, now: Path) -> Again:
    """What `--again` would say of Caldera."""
    os.environ["PYTHONPATH"] = str(now)
    options = Options([work], accuracies=("strict",), threads=1, quick=True)
    report = Session(options, before=before).run().to_json()
    return compare_reports(report, report)[0]


def main() -> None:
    """Take turns with both kinds of sessions, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="input")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    load, found, taken = os.getloadavg()[0], {}, []
    with tempfile.TemporaryDirectory() as folder:
        before, equal, slower = (Path(folder) / name for name in ("before", "equal", "slower"))
        copied(before)
        now = {"the same": copied(equal), "10% slower": copied(slower, slowed=True)}
        # Workers look into the folder where they are started first.
        os.chdir(folder)
        for _ in range(options.runs):
            for name, sources in now.items():
                start = time.perf_counter()
                found.setdefault(name, []).append(session(options.work, before, sources))
                taken.append(time.perf_counter() - start)
    print(f"# `caldera bench --again`, {options.runs} sessions of each\n")
    print(f"`python benchmarks/again_runs.py --work {options.work}` on {platform.machine()}, "
          f"{os.cpu_count()} cores, load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the "
          f"end; up to {BUDGET:.0f} s of turns, a session took {statistics.median(taken):.0f} s "
          f"(at most {max(taken):.0f}).\n")  # fmt: skip
    print("| the present code is | must be called | was | all verdicts | found |")
    print("|---|---|---|---|---|")
    for name, right in (("the same", WITHIN), ("10% slower", SLOWER)):
        verdicts = Counter(each.verdict for each in found[name])
        ratios = sorted(each.ratio - 1 for each in found[name])
        print(f"| {name} | {right} | {verdicts[right]} of {options.runs} "
              f"| {', '.join(f'{count} {each}' for each, count in verdicts.items())} "
              f"| {statistics.median(ratios):+.1%} ({ratios[0]:+.1%} to {ratios[-1]:+.1%}) |"
              )  # fmt: skip
    print("\nNo file with every sample stands behind these figures: they are counts of verdicts.")


if __name__ == "__main__":
    main()
