"""What the planner predicts beside what really happens: 2, 4 and 8 ranks of one machine.

    python benchmarks/distributed/plan_runs.py facts.json
    python benchmarks/distributed/plan_check.py facts.json

`plan_runs.py` has what is measured. The planner is told what it would find out by itself: how long
one rank computes, what is between ranks, how long encoding takes, and that all ranks share the
cores of this machine. Everything at 2, 4 and 8 ranks is predicted from that.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.distributed.plan_runs import BATCH, EVERY, RANKS, SHARED, STEPS, model, names
from caldera.base.formatting import bytes_text, seconds_text
from caldera.parallel.planner import Cluster, Compute, Setting, Wire, workload_of
from caldera.parallel.planner.cluster import rate_text
from caldera.parallel.planner.compression_cost import CodecSeconds, default_codecs
from caldera.parallel.planner.ranking import all_ways

HEAD = """
| ranks | strategy | predicted | measured | ratio | bytes predicted | bytes counted |
|---|---|---|---|---|---|---|"""


def setting_of(facts: dict[str, Any], place: str, ranks: int) -> Setting:
    """What the planner is told."""
    cores, workload = facts["cores"], workload_of(model())
    wire = Wire(**facts[f"link, {place}"])
    seen = facts[f"compute, {min(ranks, cores)}"]
    compute = Compute(**seen | {"points": tuple(map(tuple, seen["points"]))})
    codes = {}
    for name, code in default_codecs(wire).items():
        few, many = (CodecSeconds(**each) for each in facts["encoding"][name])
        codes[name] = replace(code, few=few, many=many)
    # Namespaces are machines to MPI, but all of them share the cores of this one.
    per_node, share = (ranks, cores) if place == SHARED else (1, cores / ranks)
    cluster = Cluster(ranks, wire, None, per_node, share, turn=facts.get("turn", 0.0))
    return Setting(workload, compute, cluster, BATCH, codes, EVERY)


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


def calibration(facts: dict[str, Any]) -> str:
    """What was measured first, in words."""
    lines = [
        f"{facts['machine']}, {facts['cores']} cores; the seed's MLP (784-528-528-528-10), SGD, a "
        f"batch of {BATCH} shared by all ranks, one thread a rank.\n"
    ]
    for key, seen in facts.items():
        if key.startswith("compute"):
            points = ", ".join(f"{t * 1e3:.2f} ms for {size:g}" for size, t in seen["points"])
            lines.append(
                f"- {key.removeprefix('compute, ')} ranks side by side, each for itself: {points} "
                f"samples; handing gradients over takes {seen['handing_over'] * 1e3:.2f} ms more."
            )
    works = [
        f"{name} {few['a_value'] * 1e9:.1f} ns a value among 2 ranks, {many['a_value'] * 1e9:.1f} "
        f"among 8 and {many['a_rank'] * 1e6:.0f} us for each other one"
        for name, (few, many) in facts["encoding"].items()
        if f"DataParallel, {name}" in names(RANKS[-1], SHARED)
    ]
    lines.append("- Encoding and decoding: " + "; ".join(works) + ".")
    if "turn" in facts:
        lines.append(f"- A message waits {facts['turn'] * 1e3:.2f} ms for each other on its core.")
    return "\n".join(lines)


def main(facts: dict[str, Any]) -> None:
    print(f"# Predicted and measured\n\n{calibration(facts)}")
    for place in STEPS:
        counts = [ranks for ranks in RANKS if f"{place}, {ranks}" in facts]
        if not counts:
            continue
        wire = Wire(**facts[f"link, {place}"])
        print(
            f"\n## {place}\n\nA message takes {wire.latency * 1e6:.0f} us, in the background "
            f"{wire.behind * 1e6:.0f} us; {rate_text(wire.bandwidth)} around a ring, "
            f"{rate_text(min(wire.meeting, wire.bandwidth))} from everybody to everybody.\n{HEAD}"
        )
        ratios = sorted(ratio for ranks in counts for ratio in check(facts, place, ranks))
        print(
            f"\nPredicted / measured: median {ratios[len(ratios) // 2]:.2f}, from {ratios[0]:.2f} "
            f"to {ratios[-1]:.2f}."
        )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
