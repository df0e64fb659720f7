"""What the planner predicts beside what really happens: 2, 4 and 8 ranks of one machine.

    python benchmarks/plan_runs.py facts.json
    python benchmarks/plan_check.py facts.json

`plan_runs.py` has what is measured. The planner is told what it would find out by itself: how long
one rank computes, what is between two ranks, how long encoding takes, and that all ranks share the
cores of this machine. Everything at 2, 4 and 8 ranks is predicted from that.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from plan_runs import BATCH, EVERY, RANKS, SHARED, STEPS, model, names

from caldera.amounts import bytes_text, seconds_text
from caldera.planner import Cluster, Compute, Setting, Wire, workload_of
from caldera.planner.coding import Work, usual_codes
from caldera.planner.ranking import all_ways

HEAD = "| ranks | strategy | predicted | measured | ratio | bytes predicted | bytes counted |"


def setting_of(facts: dict[str, Any], place: str, ranks: int) -> Setting:
    """What the planner is told."""
    cores = facts["cores"]
    wire = Wire(**facts[f"link, {place}"])
    seen = facts[f"compute, {min(ranks, cores)}"]
    compute = Compute(**seen | {"points": tuple(map(tuple, seen["points"]))})
    codes = {}
    for name, code in usual_codes(wire, workload_of(model())).items():
        few, many = (Work(**each) for each in facts["encoding"][name])
        codes[name] = replace(code, few=few, many=many)
    if place == SHARED:
        cluster = Cluster(ranks, wire, per_node=ranks, at_full_speed=cores)
    else:
        cluster = Cluster(ranks, wire, at_full_speed=cores / ranks)
    return Setting(workload_of(model()), compute, cluster, BATCH, codes, EVERY)


def check(facts: dict[str, Any], place: str, ranks: int) -> list[float]:
    """Rows of a table; predicted / measured of each."""
    setting = setting_of(facts, place, ranks)
    ways = {way.name: way for way in all_ways(setting)}
    ratios = []
    for name in names(ranks, place):
        guess = ways[name].predict(setting)
        seconds, sent = facts[f"{place}, {ranks}"][name]
        ratios.append(guess.seconds / seconds)
        print(
            f"| {ranks} | {name} | {seconds_text(guess.seconds)} | {seconds_text(seconds)} "
            f"| {ratios[-1]:.2f} | {bytes_text(guess.sent)} | {bytes_text(sent)} |"
        )
    return ratios


def main(facts: dict[str, Any]) -> None:
    print(f"# Predicted and measured\n\n{platform.machine()}, {facts['cores']} cores")
    for place in STEPS:
        counts = [ranks for ranks in RANKS if f"{place}, {ranks}" in facts]
        if not counts:
            continue
        wire = Wire(**facts[f"link, {place}"])
        print(f"\n## {place}\n\n{wire}\n\n{HEAD}\n|---|---|---|---|---|---|---|")
        ratios = [ratio for ranks in counts for ratio in check(facts, place, ranks)]
        ratios.sort()
        print(f"\nPredicted / measured: median {ratios[len(ratios) // 2]:.2f}, from "
              f"{ratios[0]:.2f} to {ratios[-1]:.2f}.")  # fmt: skip


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
