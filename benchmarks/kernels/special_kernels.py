"""Time every kernel next to its alternatives: other kernels, general kernels, NumPy or CuPy.

    python benchmarks/kernels/special_kernels.py --device cpu --only matmul --keep trial.jsonl
    python benchmarks/kernels/special_kernels.py --device cpu --only conv2d --keep trial.jsonl
    python benchmarks/kernels/special_kernels.py --report trial.jsonl trial-again.jsonl
    python benchmarks/kernels/special_kernels.py --device cuda --seconds 140

The candidates of each node come from the table of kernels, so a new kernel takes part as soon as it
is registered. "its parts" are the general kernels of the operations that an op consists of, chosen
by measurement. Every result is checked against the oracle. Contestants run in interleaved rounds,
and the best round of each counts. The ratio is a kernel's time divided by the best time of the
other contestants: a kernel below 1 is ahead.

Other programs change the best round little, except for the locks of a BLAS. With
`--processor-time`, kernels run on one thread, and processor time is measured.

`--only` splits a run, and `--report` prints the tables of several runs, losses first. A kernel is
ahead at a problem if it is ahead in every run.

Variants of a kernel ("cudnn 2", "blas on 1 thread") count as this kernel. On a GPU, calls are
captured and replayed. Calls that cannot be captured (cuSOLVER, CuPy) are made from Python. At the
end, training steps of networks are timed with and without the passes that merge launches.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.kernels.kernel_problems import (
    NETWORKS,
    Problem,
    chosen,
    network_problems,
    values_of,
)
from benchmarks.kernels.kernel_rivals import CUPY, OUTSIDE, contestants
from benchmarks.kernels.op_problems import other_problems
from caldera.base.config import settings
from caldera.bench.frameworks.caldera_tasks import ResidentTrainer
from caldera.bench.timing import CARD_SHORTEST, timed
from caldera.bench.workloads.training import networks
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, Op
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.kernels.common.binding import ALIGNMENT
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import LAUNCH_GROUPERS, STEP_FUSERS, TABLE, Call, Kernel, Runner
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import TIMERS
from caldera.kernels.tuning.measure import HOPELESS, ROUNDS, some_numbers

AHEAD, LEVEL = 0.97, 1.03
CLOSE = 1.5
"""How far behind the best a kernel may be to be timed again."""
SAMPLE_S = 1e-3
"""Seconds of a measurement of the processor's time, at least."""
STEP_NETWORKS = ("mlp", "lenet5", "gpt")
REASONS = {
    "communicator": "runs on several ranks only",
    "messages": "runs on several ranks only",
    "order only": "runs on several ranks only",
    "philox": "runs on several ranks only",
    "packed together": "needs 8 threads",
    "packed, sums cut in 4": "needs 8 threads",
    "winograd 4x4": 'rounds more: needs `accuracy="fast"`',
}
"""By kernel, the reason why it may be on trial nowhere."""


# --- times


@dataclass
class Result:
    """Times of all kernels of a problem."""

    what: str
    shape: str
    times: dict[str, float]
    failures: dict[str, str] = field(default_factory=dict)

    def rivals(self, name: str) -> tuple[str, float]:
        """Return the fastest other contestant, and its time."""
        return min(
            ((other, time) for other, time in self.times.items() if other != name),
            key=lambda each: each[1],
        )

    def rows(self) -> Iterator[str]:
        """Yield a row of the table for each kernel."""
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
    """Return the name of the kernel of this variant.

    >>> base_name("cudnn 2"), base_name("few channels, way 1"), base_name("winograd 2x2")
    ('cudnn', 'few channels', 'winograd 2x2')
    >>> base_name("packed, sums cut in 4"), base_name("packed on 1 thread")
    ('packed, sums cut in 4', 'packed')
    """
    return re.sub(r"((, way)?(?<! in) \d+| on \d+ threads?)$", "", name)


def processor_seconds(
    node: Node, kernels: Sequence[Kernel], values: Sequence[np.ndarray] | None
) -> dict[str, float]:
    """Return the least processor time of each kernel, in interleaved turns."""
    generator = np.random.default_rng(0)
    specs = [given.outputs[0] for given in node.inputs]
    given = values or [some_numbers(each.shape, each.dtype, generator) for each in specs]
    inputs = tuple(_array(*each) for each in zip(specs, given, strict=True))
    outputs = tuple(_array(spec) for spec in node.outputs)
    times: dict[str, float] = {}
    with single_threaded_blas, np.errstate(all="ignore"):
        runners = {}
        for kernel in kernels:
            nbytes = kernel.workspace(node)
            workspace = _array(Spec((nbytes,), np.dtype(np.uint8)), 0) if nbytes else None
            runners[kernel.name] = kernel.bind(Call(node, outputs, inputs, workspace))
        for _ in range(ROUNDS):
            limit = HOPELESS * min(times.values(), default=np.inf)
            for name, run in runners.items():
                if times.get(name, 0.0) <= limit:
                    times[name] = min(_processor_seconds(run), times.get(name, np.inf))
    return times


def _array(spec: Spec, value: Any = None) -> np.ndarray:
    """Return an array with the alignment of a plan's buffers."""
    block = np.empty(spec.nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    found = laid_out(block[start : start + spec.nbytes].view(spec.dtype), spec.shape, spec.order)
    if value is not None:
        found[...] = value
    return found


def _processor_seconds(run: Runner) -> float:
    start, count = process_time(), 0
    while count == 0 or process_time() - start < SAMPLE_S:
        run()
        count += 1
    return (process_time() - start) / count


def tried(
    problem: Problem, place: Device, repeats: int, *, by_processor: bool = False
) -> Result | None:
    """Return the times of all contestants of a node; None for a single contestant."""
    node = problem.node
    kernels = contestants(node, place)
    if len({base_name(kernel.name) for kernel in kernels}) < 2:
        return None
    ours = [each for each in kernels if each.name != ORACLE]
    if by_processor and len({base_name(each.name) for each in ours}) > 1:
        # The oracle checks the results, but is not worth the time of many rounds.
        kernels = ours
    values = values_of(node)
    times: dict[str, float] = {}
    failures: dict[str, str] = {}
    for _ in range(repeats):
        seconds = 0.0 if by_processor else 5.0
        outcome = TIMERS[place.kernels](node, kernels, seconds, values, thorough=True)
        failures |= outcome.failures
        found = outcome.times
        if by_processor:
            right = [each for each in kernels if each.name in found]
            found = processor_seconds(node, right, values)
        for name, time in found.items():
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
    """Time a training step as one launch, as few launches, and with a launch for each call."""
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


def worst_ratios(runs: Sequence[Sequence[Result]]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the ratio of each kernel at each problem: the largest of several runs."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for result in (each for run in runs for each in run if len(each.times) > 1):
        for name, time in result.times.items():
            if name not in OUTSIDE:
                known = found.setdefault((result.what, name), {})
                ratio = time / result.rivals(name)[1]
                known[result.shape] = max(ratio, known.get(result.shape, 0.0))
    return found


def summary(*runs: Sequence[Result]) -> Iterator[str]:
    """Yield the table of kernels over all runs, losses first."""
    yield "| kernel | problems | ahead | best ratio | at | |"
    yield "|---|---|---|---|---|---|"
    ratios = worst_ratios(runs).items()
    for (what, name), found in sorted(ratios, key=lambda each: -min(each[1].values())):
        wins = sum(ratio < AHEAD for ratio in found.values())
        best, where = min((ratio, shape) for shape, ratio in found.items())
        word = f"ahead at {wins}" if wins else verdict(best) + " everywhere"
        yield f"| {what}: {name} | {len(found)} | {wins} | {best:.2f} | {where} | {word} |"


def report(*runs: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of the page for several runs on the CPU."""
    TABLE.load("cpu")
    yield from summary(*runs)
    yield from ("", not_on_trial([each for run in runs for each in run], "cpu"))
    for number, run in enumerate(runs, 1):
        yield from ("", f"## Each problem, run {number}", "", *HEADER)
        rows = [row for result in run if len(result.times) > 1 for row in result.rows()]
        yield from sorted(rows, key=lambda row: -float(row.split(" | ")[4]))


def not_on_trial(results: Sequence[Result], family: str) -> str:
    """Return a sentence that lists kernels without a comparison, with the reasons."""
    found = [
        f"{each} ({REASONS.get(each.partition(': ')[2], 'no problem with a rival')})"
        for each in untried(results, family)
    ]
    return f"Not on trial: {', '.join(found) or 'none'}."


def untried(results: Sequence[Result], family: str) -> list[str]:
    """Return the kernels without a comparison."""
    seen = {(each.what, name) for each in results if len(each.times) > 1 for name in each.times}
    return [
        f"{name}: {kernel}"
        for name in OPS
        for kernel in dict.fromkeys(map(base_name, TABLE.names(name, family)))
        if kernel != ORACLE and (name, kernel) not in seen
    ]


def _is_meant(word: str, op: Op) -> bool:
    return word == op.kind or re.search(word, op.name) is not None


def trials(
    problems: Sequence[Problem],
    place: Device,
    repeats: int,
    end: float,
    *,
    by_processor: bool = False,
) -> Iterator[Result]:
    """Yield problems in order, until the time limit."""
    for number, problem in enumerate(problems):
        if perf_counter() > end:
            print(f"<!-- the time is used up: {len(problems) - number} problems are left -->")
            return
        try:
            result = tried(problem, place, repeats, by_processor=by_processor)
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
        if not words or any(_is_meant(word, problem.node.op) for word in words)
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
        chosen(problems, options.shapes, place.kernels, options.most_work),
        place,
        options.repeats,
        end,
        by_processor=options.processor_time,
    ):
        results.append(result)
        show(result)
        if options.keep:
            with Path(options.keep).open("a") as kept:
                kept.write(json.dumps(asdict(result)) + "\n")
    print("", *summary(results), sep="\n")
    if not words:
        print("", not_on_trial(results, place.kernels), sep="\n")
    print(f"\n{len(results)} problems in {perf_counter() - start:.0f} s.")
    return results


def kept_results(path: str) -> list[Result]:
    """Return the results from a file of `--keep`."""
    return [Result(**json.loads(line)) for line in Path(path).read_text().splitlines()]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument(
        "--only", default="", help="ops with one of these words in their names, or of a kind"
    )
    parser.add_argument("--shapes", type=int, default=3, help="at most so many of each kind")
    parser.add_argument("--repeats", type=int, default=3, help="of a measurement, if it is close")
    parser.add_argument("--accuracy", default="strict", help="fast: kernels that round more, too")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument(
        "--most-work", type=float, default=np.inf, help="of a problem: operations and bytes"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="one thread and the time of the processor: for machines that are not quiet",
    )
    parser.add_argument("--keep", help="file to which the results are added")
    parser.add_argument("--report", nargs="*", help="files of results: print their tables")
    parser.add_argument(
        "--no-others", dest="others", action="store_false", help="only what networks contain"
    )
    parser.add_argument(
        "--no-steps", dest="steps", action="store_false", help="no whole training steps"
    )
    return parser.parse_args(given)


def main() -> None:
    options = arguments()
    if options.report:
        print(*report(*map(kept_results, options.report)), sep="\n")
        return
    # What a kernel is made of is chosen by measurement, too.
    settings.update(tune_budget_s=1000.0, accuracy=options.accuracy)
    if options.processor_time:
        settings.update(threads=1)
    warnings.simplefilter("ignore", RuntimeWarning)
    run(options, find_device(options.device))


if __name__ == "__main__":
    main()
