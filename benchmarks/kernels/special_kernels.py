"""Puts every kernel on trial: its time beside that of everything else that computes the same.

    python benchmarks/kernels/special_kernels.py --device cpu
    python benchmarks/kernels/special_kernels.py --device cuda --seconds 140

Kernels are not listed here: the table of kernels is asked for the candidates of each node, so a new
one is on trial as soon as it is registered. Beside the other candidates stand what the op is made
of ("its parts": the general kernels, chosen by measurement), NumPy on a CPU and CuPy on a card. All
are checked against the oracle; they take turns, and the best round of each counts. The ratio is a
kernel's time over that of the best other: below 1 it is ahead.

Ways of one kernel ("cudnn 2") count as that kernel. On a card calls are captured and replayed, but
for what cannot be captured (cuSOLVER, CuPy), which is called from Python. At the end steps of whole
networks are timed with and without what makes launches one. A kernel that is ahead nowhere has
either another reason to be there, or none.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.kernels.kernel_problems import (
    NETWORKS,
    Problem,
    chosen,
    network_problems,
    other_problems,
    values_of,
)
from benchmarks.kernels.kernel_rivals import CUPY, OUTSIDE, contestants
from caldera.base.config import settings
from caldera.bench.frameworks.caldera_tasks import ResidentTrainer
from caldera.bench.timing import CARD_SHORTEST, timed
from caldera.bench.workloads.training import networks
from caldera.core.graph.opdef import OPS
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.kernels.table import LAUNCH_GROUPERS, STEP_FUSERS, TABLE
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import TIMERS

AHEAD, LEVEL = 0.97, 1.03
CLOSE = 1.5
"""How far behind the best a kernel may be to be timed again."""
STEP_NETWORKS = ("mlp", "lenet5", "gpt")
WITHOUT_RANKS = frozenset({"all_sum", "collective_start", "collective_finish", "turn", "scan"})


# --- times


@dataclass
class Result:
    """The times of all kernels of one problem."""

    what: str
    shape: str
    times: dict[str, float]
    failures: dict[str, str] = field(default_factory=dict)

    def rivals(self, name: str) -> tuple[str, float]:
        """The best other, and its time."""
        return min(
            ((other, time) for other, time in self.times.items() if other != name),
            key=lambda each: each[1],
        )

    def rows(self) -> Iterator[str]:
        """A line of the table for each kernel that is on trial."""
        for name, time in sorted(self.times.items(), key=lambda each: each[1]):
            if name in OUTSIDE:
                continue
            other, its = self.rivals(name)
            ratio = time / its
            yield (
                f"| {self.what}: {name} | {self.shape} | {_microseconds(time)} "
                f"| {other} {_microseconds(its)} | {ratio:.2f} | {verdict(ratio)} |"
            )


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


def verdict(ratio: float) -> str:
    """In a word."""
    return "ahead" if ratio < AHEAD else "level" if ratio <= LEVEL else "behind"


def base_name(name: str) -> str:
    """The kernel of which this is one way.

    >>> base_name("cudnn 2"), base_name("few channels, way 1"), base_name("winograd 2x2")
    ('cudnn', 'few channels', 'winograd 2x2')
    """
    return re.sub(r"(, way)? \d+$", "", name)


def tried(problem: Problem, place: Device, repeats: int) -> Result | None:
    """The times of everything that computes this node; None where there is only one thing."""
    node = problem.node
    kernels = contestants(node, place)
    if len({base_name(kernel.name) for kernel in kernels}) < 2:
        return None
    values = values_of(node)
    times: dict[str, float] = {}
    failures: dict[str, str] = {}
    for _ in range(repeats):
        outcome = TIMERS[place.kernels](node, kernels, 5.0, values, thorough=True)
        failures |= outcome.failures
        for name, time in outcome.times.items():
            times[name] = min(time, times.get(name, time))
        best = min(times.values(), default=0.0)
        kernels = [each for each in kernels if times.get(each.name, np.inf) <= CLOSE * best]
        if len(kernels) < 2:
            break
    merged: dict[str, float] = {}
    for name, time in times.items():
        base = base_name(name)
        merged[base] = min(time, merged.get(base, time))
    return Result(node.op.name, f"{problem.where}: {problem.shape}", merged, failures)


# --- whole steps


@contextmanager
def _without(registries: Sequence[dict[str, Any]], family: str) -> Iterator[None]:
    kept = [(registry, registry.pop(family, None)) for registry in registries]
    try:
        yield
    finally:
        for registry, value in kept:
            if value is not None:
                registry[family] = value


def step_result(name: str, place: Device) -> Result:
    """A network's training step: as one launch, as few launches, and with one for each call."""
    known = {case.name: case for work in networks() for case in work.cases}
    case = known[name].on("cuda")
    precision = case.precisions[0]
    given = case.data("float32", None)
    forms = {
        "step: one launch": (),
        "step: grouped launches": (STEP_FUSERS,),
        "step: a launch a call": (STEP_FUSERS, LAUNCH_GROUPERS),
    }
    tasks, losses, fused = {}, {}, []
    fuser = STEP_FUSERS[place.kernels]
    STEP_FUSERS[place.kernels] = lambda *a: fused.append(fuser(*a)) or fused[-1]
    try:
        for form, hidden in forms.items():
            with _without(hidden, place.kernels):
                task = ResidentTrainer(case, "float32", given, place, precision)
                losses[form] = task.losses(3)
            if hidden or any(fused):
                tasks[form] = task
    finally:
        STEP_FUSERS[place.kernels] = fuser
    wanted = losses["step: a launch a call"]
    failures = {
        form: f"losses {found} instead of {wanted}"
        for form, found in losses.items()
        if not np.allclose(found, wanted, rtol=2e-2)
    }
    times = dict.fromkeys(tasks, np.inf)
    for _ in range(3):
        for form, task in tasks.items():
            # Plans are captured anew where another task has moved variables in between.
            with _without(forms[form], place.kernels):
                times[form] = min(times[form], *timed(task, 0.1, shortest=CARD_SHORTEST).wall)
    return Result(name, f"{name}: batch {case.batch} {precision}", times, failures)


# --- the tables


HEADER = (
    "| kernel | problem | us | best other, us | ratio | |",
    "|---|---|---|---|---|---|",
)


def summary(results: Sequence[Result]) -> Iterator[str]:
    """What each kernel has won, the best first."""
    ratios: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for result in results:
        for name, time in result.times.items():
            if name not in OUTSIDE:
                ratio = time / result.rivals(name)[1]
                ratios.setdefault((result.what, name), []).append((ratio, result.shape))
    yield "| kernel | problems | ahead | best ratio | at | |"
    yield "|---|---|---|---|---|---|"
    for (what, name), found in sorted(ratios.items(), key=lambda each: min(each[1])[0]):
        wins = sum(ratio < AHEAD for ratio, _ in found)
        best, where = min(found)
        word = f"ahead at {wins}" if wins else verdict(best) + " everywhere"
        yield f"| {what}: {name} | {len(found)} | {wins} | {best:.2f} | {where} | {word} |"


def untried(results: Sequence[Result], family: str) -> list[str]:
    """Kernels that met no problem here with a rival."""
    seen = {(result.what, name) for result in results for name in result.times}
    return [
        f"{name}: {kernel}"
        for name in OPS
        for kernel in dict.fromkeys(map(base_name, TABLE.names(name, family)))
        if kernel != ORACLE and (name, kernel) not in seen and name not in WITHOUT_RANKS
    ]


def trials(
    problems: Sequence[Problem], place: Device, repeats: int, end: float
) -> Iterator[Result]:
    """The problems one after the other, until the time is used up."""
    for number, problem in enumerate(problems):
        if perf_counter() > end:
            print(f"<!-- the time is used up: {len(problems) - number} problems are left -->")
            return
        try:
            result = tried(problem, place, repeats)
        except Exception as error:
            said = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            print(f"<!-- {problem.node.op.name} {problem.shape}: {said} -->", flush=True)
            continue
        if result is not None:
            yield result


def show(result: Result) -> None:
    """Its lines, at once."""
    for line in result.rows() if len(result.times) > 1 else ():
        print(line, flush=True)
    for name, reason in result.failures.items():
        # CuPy lacks some of NumPy.
        if name != CUPY:
            said = reason.replace("\n", " ")[:300]
            print(f"<!-- {result.what}: {name} at {result.shape}: {said} -->", flush=True)


def run(options: argparse.Namespace, place: Device) -> list[Result]:
    """Put all kernels of a device on trial, and print what comes out."""
    start = perf_counter()
    TABLE.load("cpu")
    TABLE.load(place.kernels)
    names = [name for name in options.networks.split(",") if name]
    problems = list(network_problems(place.kernels, names))
    if options.others:
        problems += other_problems(place.kernels)
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    problems = [
        problem
        for problem in problems
        if not words or any(word in problem.node.op.name for word in words)
    ]
    print("\n".join(HEADER), flush=True)
    results: list[Result] = []
    if options.steps and place.kernels in STEP_FUSERS:
        for name in STEP_NETWORKS:
            try:
                results.append(step_result(name, place))
                show(results[-1])
            except Exception as error:
                print(f"<!-- step of {name}: {type(error).__name__}: {error} -->", flush=True)
    end = start + options.seconds
    for result in trials(
        chosen(problems, options.shapes, place.kernels), place, options.repeats, end
    ):
        results.append(result)
        show(result)
    results = [result for result in results if len(result.times) > 1]
    print("", *summary(results), "", sep="\n")
    rest = untried(results, place.kernels)
    print(f"Without a rival here: {', '.join(rest) or 'none'}.")
    print(f"\n{len(results)} problems in {perf_counter() - start:.0f} s.")
    return results


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--only", default="", help="ops with one of these words in their names")
    parser.add_argument("--shapes", type=int, default=3, help="at most so many of each kind")
    parser.add_argument("--repeats", type=int, default=3, help="of a measurement, if it is close")
    parser.add_argument("--accuracy", default="strict", help="fast: kernels that round more, too")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument(
        "--no-others", dest="others", action="store_false", help="only what networks contain"
    )
    parser.add_argument(
        "--no-steps", dest="steps", action="store_false", help="no whole training steps"
    )
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    # What a kernel is made of is chosen by measurement, too.
    settings.update(tune_budget_s=1000.0, accuracy=options.accuracy)
    warnings.simplefilter("ignore", RuntimeWarning)
    run(options, find_device(options.device))


if __name__ == "__main__":
    main()
