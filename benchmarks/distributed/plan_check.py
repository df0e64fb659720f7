"""Compare the planner's predictions with measured steps on 2, 4 and 8 ranks of one machine.

    python benchmarks/distributed/plan_runs.py facts.json
    python benchmarks/distributed/plan_check.py facts.json

`plan_runs.py` measures. The planner receives its usual calibration: the compute time of ranks that
begin a step together, the link between ranks, the time of encoding, and the cores that all ranks
share. The prediction of a strategy is the mean of two: from the calibrations before and after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.distributed.plan_runs import BATCH, EVERY, RANKS, SHARED, STEPS, model, names
from caldera.base.formatting import bytes_text, seconds_text
from caldera.parallel.planner import Cluster, Compute, Setting, Wire, workload_of
from caldera.parallel.planner.compression_cost import CodecSeconds, default_codecs
from caldera.parallel.planner.ranking import all_ways

LOW, HIGH = 0.75, 1.33
HEAD = """
| ranks | strategy | predicted | measured | ratio | bytes predicted | bytes counted |
|---|---|---|---|---|---|---|"""


def setting_of(facts: dict[str, Any], found: dict[str, Any], place: str, ranks: int) -> Setting:
    """Return the planner's setting from the calibration measured beside some strategies."""
    cores, workload = facts["cores"], workload_of(model())
    wire, seen = Wire(**found["link"]), found["compute"]["times"]
    compute = Compute(**seen | {"points": tuple(map(tuple, seen["points"]))})
    codes = {}
    # Encoding was timed in seconds of a core, and a rank had a share of a core.
    slower = 1 / found["compute"]["share"]
    for name, code in default_codecs(wire).items():
        few, many = (
            CodecSeconds(each["ranks"], each["a_value"] * slower, each["a_rank"] * slower)
            for each in facts["encoding"][name]
        )
        codes[name] = replace(code, few=few, many=many)
    # Namespaces are machines to MPI, but all of them share the cores of this one.
    per_node, share = (ranks, cores) if place == SHARED else (1, cores / ranks)
    cluster = Cluster(ranks, wire, None, per_node, share)
    return Setting(workload, compute, cluster, BATCH, codes, EVERY)


def measurements(facts: dict[str, Any], place: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each measured strategy with its number of ranks."""
    for key, found in facts.items():
        if key.startswith(f"{place}, "):
            yield from ((int(key.split(", ")[1]), each) for each in found)


def check(facts: dict[str, Any], place: str) -> list[float]:
    """Print rows of a table; return predicted / measured of each."""
    ratios = []
    for ranks, found in measurements(facts, place):
        name, (seconds, sent) = found["name"], found["step"]
        settings = [setting_of(facts, each, place, ranks) for each in found["calibrations"]]
        (way,) = (way for way in all_ways(settings[0]) if way.name == name)
        guesses = [way.predict(each) for each in settings]
        guess = replace(guesses[0], seconds=fmean(each.seconds for each in guesses))
        ratios.append(guess.seconds / seconds)
        print(
            f"| {ranks} | {name} | {seconds_text(guess.seconds)} | {seconds_text(seconds)} "
            f"| {ratios[-1]:.2f} | {bytes_text(guess.sent)} | {bytes_text(sent)} |"
        )
    return ratios


def between(values: Iterable[float], unit: str, factor: float, form: str = ".3g") -> str:
    """Return the smallest and the largest of measured values as text."""
    low, high = min(values), max(values)
    return f"{low * factor:{form}} to {high * factor:{form}} {unit}"


def main(facts: dict[str, Any]) -> None:
    works = [
        f"{name} {few['a_value'] * 1e9:.1f} ns a value among 2 ranks, {many['a_value'] * 1e9:.1f} "
        f"among 8 and {many['a_rank'] * 1e6:.0f} us for each other one"
        for name, (few, many) in facts["encoding"].items()
        if f"DataParallel, {name}" in names(RANKS[-1], SHARED)
    ]
    print(
        f"# Predicted and measured\n\n{facts['machine']}, {facts['cores']} cores; the seed's MLP "
        f"(784-528-528-528-10), SGD, a batch of {BATCH} shared by all ranks, one thread a rank.\n\n"
        f"- Encoding and decoding: {'; '.join(works)}."
    )
    for place in STEPS:
        seen = [own for _, found in measurements(facts, place) for own in found["calibrations"]]
        if not seen:
            continue
        steps = [found["compute"]["times"]["points"][-1] for found in seen]
        each = between([seconds / samples for samples, seconds in steps], "us", 1e6)
        share = between([found["compute"]["share"] for found in seen], "of a core", 1.0, ".2f")
        latency = between([found["link"]["latency"] for found in seen], "us", 1e6)
        behind = between([found["link"]["behind"] for found in seen], "us", 1e6)
        rate = between([found["link"]["bandwidth"] for found in seen], "Gbit/s", 8e-9)
        print(
            f"\n## {place}\n\nCalibrations: a sample takes a rank {each}, and a rank got {share}; "
            f"a message takes {latency}, in the background {behind}; {rate} around a ring.\n{HEAD}"
        )
        ratios = sorted(check(facts, place))
        inside = sum(LOW <= ratio <= HIGH for ratio in ratios)
        print(
            f"\nPredicted / measured: median {ratios[len(ratios) // 2]:.2f}, from {ratios[0]:.2f} "
            f"to {ratios[-1]:.2f}; {inside} of {len(ratios)} within {LOW} to {HIGH}."
        )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
