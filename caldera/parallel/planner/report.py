"""Reports of a ranking: table, explanation, and charts over the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from caldera.base.formatting import bytes_text, flops_text, percent_text, seconds_text, table_lines
from caldera.draw.axis import ChartAxis, axis_of
from caldera.draw.line_chart import Line, LineChart, figure, inline
from caldera.draw.page import Safe, card, document, facts, folded, section, table, tag, tiles
from caldera.draw.svg import CATEGORICAL, Picture
from caldera.parallel.planner.asynchronous_cost import AVERAGING, ENSEMBLE, SERVER
from caldera.parallel.planner.cluster import rate_text
from caldera.parallel.planner.data_parallel_cost import COMPRESSED, DATA, SHARDED
from caldera.parallel.planner.hybrid_cost import HYBRID, PIPELINE, TENSOR
from caldera.parallel.planner.prediction import Prediction, Setting
from caldera.parallel.planner.ranking import CLEARLY, RankedStrategy, Ranking, what_if

if TYPE_CHECKING:
    from caldera.parallel.planner.proposal import Proposal

HEAD = ("strategy", "a step", "samples/s", "speed-up", "waits", "idle", "sent", "memory")


def rows(ranking: Ranking) -> list[tuple[str, ...]]:
    """Return the best of each family with its figures, the proposed one first."""
    chosen = ranking.families(ranking.usable()).values()
    ordered = sorted(chosen, key=lambda e: (e is not ranking.best, e.prediction.seconds))
    return [row_of(entry, ranking) for entry in ordered]


def families_table(ranking: Ranking) -> str:
    """Return the rows as a table of text."""
    head, *body = table_lines([HEAD, *rows(ranking)], left=(0,))
    return "\n".join([head, "-" * len(head), *body])


def speed_up(ranking: Ranking, found: Prediction) -> float:
    """Return the speed-up over one rank with its machine to itself."""
    return ranking.setting.alone() / found.seconds if found.seconds else float("inf")


def times_text(times: float) -> str:
    """Format a speed-up.

    >>> times_text(0.6543), times_text(12.34), times_text(1060.4)
    ('0.654x', '12.3x', '1,060x')
    """
    return f"{times:,.0f}x" if times >= 100 else f"{times:.3g}x"


def row_of(entry: RankedStrategy, ranking: Ranking) -> tuple[str, ...]:
    """Return the table cells of one strategy."""
    found = entry.prediction
    return (
        entry.way.name + ("" if entry.way.exact else " *"),
        seconds_text(found.seconds),
        f"{found.rate:,.0f}",
        times_text(speed_up(ranking, found)),
        percent_text(found.exposed / found.seconds) if found.exposed > 0 else "-",
        percent_text(found.idle / found.seconds) if found.idle else "-",
        bytes_text(found.sent),
        bytes_text(found.memory),
    )


# --- sentences


def given(setting: Setting) -> str:
    """Describe the planned setting: the model, a rank, and the links."""
    workload, cluster, points = setting.workload, setting.cluster, setting.compute.points
    samples, seconds = points[-1]
    wire = cluster.wire
    text = (
        f"Given: {bytes_text(workload.parameters)} of parameters, {flops_text(workload.flops)} "
        f"a sample forward; a single rank takes {seconds_text(seconds)} for "
        f"{_samples(samples)}. Between machines {rate_text(wire.bandwidth)} and "
        f"{seconds_text(wire.latency)} a message"
    )
    if cluster.per_node > 1:
        text += f"; {cluster.per_node} ranks on each"
    if cluster.memory is not None:
        text += f"; {bytes_text(cluster.memory)} of memory a rank"
    return text + "."


def _samples(count: float) -> str:
    return "1 sample" if count == 1 else f"{count:,g} samples"


def explained(series: Sequence[Ranking], scaling: str) -> str:
    """Explain the proposal, its bottleneck and the rejected strategies."""
    ranking = series[-1]
    parts = [_proposed(ranking), _bound(ranking), _fewer(series, scaling)]
    parts += [_inexact(ranking), *_rejected(ranking)]
    return "\n".join(part for part in parts if part)


def _proposed(ranking: Ranking) -> str:
    setting, found = ranking.setting, ranking.best.prediction
    faster = speed_up(ranking, found)
    return (
        f"Proposed: {ranking.best.way.name}. A step on {setting.batch:,} samples takes "
        f"{seconds_text(found.seconds)}, {times_text(faster)[:-1]} times as fast as one rank "
        f"({percent_text(faster / setting.ranks)} of {setting.ranks} ranks); each sends "
        f"{bytes_text(found.sent)} and needs {bytes_text(found.memory)} of memory."
    )


def _bound(ranking: Ranking) -> str:
    found, setting = ranking.best.prediction, ranking.setting
    gains = what_if(ranking)
    kind = max(gains, key=lambda name: gains[name])
    wire = setting.cluster.wire
    words = {
        "compute": "by computing",
        "bandwidth": f"by the bandwidth of the links, {rate_text(wire.bandwidth)}",
        "latency": f"by the latency of messages, {seconds_text(wire.latency)}",
    }
    if gains[kind] < CLEARLY:
        return ""
    text = (
        f"It is bound {words[kind]}: a rank computes for {seconds_text(found.computing)}, the "
        f"exchange takes {seconds_text(found.exchange)}"
    )
    if found.exchange:
        hidden = 1 - min(found.exposed / found.exchange, 1.0)
        share = percent_text(hidden) if hidden > 0.001 else "nothing"
        text += f", {share} overlapped with computing"
    if found.idle:
        text += f", and for {seconds_text(found.idle)} the pipeline fills and drains"
    better = {
        "compute": "twice the speed of computing",
        "bandwidth": "twice the bandwidth",
        "latency": "half the latency",
    }
    tried = ", ".join(f"{gains[name]:.2f} with {better[name]}" for name in gains)
    return f"{text}. Speed-up: {tried}."


def _fewer(series: Sequence[Ranking], scaling: str) -> str:
    """Report whether fewer ranks would be as fast."""
    last = series[-1].best.prediction
    if scaling != "strong":
        return ""
    best = min(series, key=lambda each: each.best.prediction.seconds)
    if best is series[-1] or best.best.prediction.seconds > last.seconds / CLEARLY:
        return ""
    return (
        f"With this batch {_ranks(best.setting.ranks)} faster than "
        f"{series[-1].setting.ranks}: {seconds_text(best.best.prediction.seconds)} a step with "
        f"{best.best.way.name}."
    )


def _ranks(count: int) -> str:
    return "one rank is" if count == 1 else f"{count} ranks are"


def _inexact(ranking: Ranking) -> str:
    """Report faster strategies whose result differs from one process."""
    loose = [entry for entry in ranking.usable() if not entry.way.exact]
    faster = [
        entry
        for family, entry in ranking.families(loose).items()
        if family != ENSEMBLE
        and entry.prediction.seconds < ranking.best.prediction.seconds / CLEARLY
    ]
    if not faster:
        return ""
    faster.sort(key=lambda entry: entry.prediction.seconds)
    shown = "; ".join(
        f"{entry.way.name} ({seconds_text(entry.prediction.seconds)})" for entry in faster
    )
    return (
        f"Faster per step, but not equal to one process (*): {shown}. Progress per step is not "
        "predicted."
    )


def _rejected(ranking: Ranking) -> list[str]:
    """Return a line for each family that memory limits, and one for each reason why others cannot
    be used at all."""
    usable = {entry.way.family for entry in ranking.usable()}
    families: dict[str, list[RankedStrategy]] = {}
    for entry in ranking.refused():
        families.setdefault(entry.way.family, []).append(entry)
    lines, reasons = [], dict[str, list[str]]()
    for family, entries in families.items():
        # Strategies that cannot run have no time.
        large = [entry for entry in entries if math.isfinite(entry.prediction.seconds)]
        if large:
            least = min(large, key=lambda entry: entry.prediction.memory)
            what = f"{len(large)} ways" if family in usable else "all of it"
            lines.append(
                f"Rejected for memory: {family} ({what}); the least is {least.way.name}, which "
                f"{least.prediction.refused}."
            )
        elif family not in usable:
            reasons.setdefault(entries[0].prediction.refused, []).append(family)
    return lines + [f"Rejected: {', '.join(each)}, for {why}." for why, each in reasons.items()]


_KINDS = {
    DATA: (0, False),
    SHARDED: (1, False),
    PIPELINE: (2, False),
    TENSOR: (3, False),
    HYBRID: (4, False),
    COMPRESSED: (0, True),
    SERVER: (1, True),
    AVERAGING: (2, True),
}
"""Colour of each family; inexact families are dashed. Ensembles are not shown, as they do not train
a model faster.
"""
_IDEAL = CATEGORICAL[-1]


def plot(
    series: Mapping[str, Sequence[Ranking]], path: str | PathLike[str] | None
) -> Picture | Path:
    """Return the charts as a picture; with a path, written to an .svg file."""
    charts = [chart for name, each in series.items() for chart in scaling_charts(name, each)]
    ranks = next(iter(series.values()))[-1].setting.ranks
    return figure(path, charts, f"1 to {ranks} ranks, predicted")


def scaling_charts(scaling: str, series: Sequence[Ranking]) -> list[LineChart]:
    """Return charts of time per step and speed-up, with a line for the best of each family."""
    times: dict[str, list[tuple[float, float]]] = {}
    gains: dict[str, list[tuple[float, float]]] = {}
    for ranking in series:
        count = float(ranking.setting.ranks)
        for family, entry in ranking.families(ranking.usable()).items():
            if family in _KINDS:
                found = entry.prediction
                times.setdefault(family, []).append((count, found.seconds * 1e3))
                gains.setdefault(family, []).append((count, speed_up(ranking, found)))
    ranks = [float(ranking.setting.ranks) for ranking in series]
    x_axis = ranks_axis(ranks)
    ideal = Line("ideal", [(each, each) for each in ranks], _IDEAL)
    ends = _lines(times, lambda y: seconds_text(y / 1e3))
    return [
        LineChart(
            f"{scaling} scaling: ms a step",
            "ranks",
            ends,
            x_axis,
            axis_of([y for line in times.values() for _, y in line], log=True),
        ),
        LineChart(
            f"{scaling} scaling: times as fast as one rank",
            "ranks",
            [ideal, *_lines(gains, times_text)],
            x_axis,
            axis_of([*ranks, *(y for line in gains.values() for _, y in line)], log=True),
        ),
    ]


def _lines(
    points: Mapping[str, Sequence[tuple[float, float]]], shown: Callable[[float], str]
) -> list[Line]:
    return [
        Line(
            family,
            points[family],
            CATEGORICAL[colour],
            dashed=dashed,
            last=shown(points[family][-1][1]),
        )
        for family, (colour, dashed) in _KINDS.items()
        if family in points
    ]


def ranks_axis(ranks: Sequence[float]) -> ChartAxis:
    """Return powers of two, and the last number.

    >>> ranks_axis([1.0, 2.0, 4.0, 6.0]).ticks
    (1.0, 2.0, 4.0, 6.0)
    """
    low, high = min(ranks), max(ranks)
    if low == high:
        return ChartAxis(low / 2, high * 2, (low,), log=True)
    skip = -(-len(ranks) // 12)
    return ChartAxis(low, high, tuple(ranks[::-skip][::-1]), log=True)


# --- the page

_TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}
_ABOUT = {
    "strong": "One batch, shared by more and more ranks.",
    "weak": "The number of samples per rank is the same for every number of ranks.",
}
_NOTE = (
    "The best of each kind. *: the result may differ from training in one process. Waits: the "
    "part of a step in which a rank waits for messages; idle: in which a pipeline fills and "
    "drains."
)


def plan_page(proposal: Proposal, name: str) -> str:
    """Return the text of the page about a plan for the model of that name."""
    parts = list(_top(proposal, name))
    index = {}
    for scaling in proposal.scalings():
        index[scaling] = _TITLES[scaling]
        parts.append(_scaling(proposal, scaling))
    index["given"] = "Given"
    parts += [_given(proposal), tag("footer", "Written by caldera plan. All times are predicted.")]
    return document(f"{name}: a plan of Caldera", index, parts)


def _top(proposal: Proposal, name: str) -> Iterator[Safe]:
    ranking = proposal.ranking(proposal.scalings()[0])
    yield tag("h1", f"{name} on {ranking.setting.ranks:,} ranks")
    yield tag("p", "Predicted cost of a training step under every strategy.", class_="quiet")
    values = []
    for scaling in proposal.scalings():
        own = proposal.ranking(scaling)
        found = own.best.prediction
        values += [
            (f"{scaling} scaling, a step", seconds_text(found.seconds)),
            (f"{scaling} scaling, times one rank", times_text(speed_up(own, found))),
        ]
    yield tiles(values)


def _scaling(proposal: Proposal, scaling: str) -> Safe:
    ranking = proposal.ranking(scaling)
    charts = map(inline, scaling_charts(scaling, proposal.series(scaling)))
    sentences = [tag("p", line) for line in proposal.explain(scaling).splitlines()]
    numbers = range(1, len(HEAD))
    best = table(HEAD, rows(ranking), numbers=numbers)
    every = folded(
        "All ways",
        table(HEAD, [row_of(each, ranking) for each in ranking.usable()], numbers=numbers),
    )
    return section(
        scaling,
        _TITLES[scaling],
        tag("div", *charts, class_="columns"),
        card(f"A step on {ranking.setting.batch:,} samples", best, every, note=_NOTE),
        card("Why", *sentences),
        note=_ABOUT[scaling],
    )


def _given(proposal: Proposal) -> Safe:
    setting = proposal.ranking(proposal.scalings()[0]).setting
    cluster, workload = setting.cluster, proposal.workload
    steps = ", ".join(
        f"{seconds_text(seconds)} for {samples:g}" for samples, seconds in setting.compute.points
    )
    model = {
        "parameters": bytes_text(workload.parameters),
        "optimizer state": bytes_text(workload.optimizer),
        "work of a sample, forward": flops_text(workload.flops),
        "memory of a sample": bytes_text(workload.activations),
        "steps of a single rank": f"{steps} samples",
    }
    ranks = {
        "ranks": f"{cluster.ranks:,}",
        "ranks of a machine": cluster.per_node,
        "link": rate_text(cluster.wire.bandwidth),
        "latency": seconds_text(cluster.wire.latency),
        "link inside a machine": rate_text((cluster.inside or cluster.wire).bandwidth),
        "memory of a rank": "any" if cluster.memory is None else bytes_text(cluster.memory),
    }
    cards = [card("Model", facts(model)), card("Ranks", facts(ranks))]
    return section("given", "Inputs of the plan", tag("div", *cards, class_="masonry"))
