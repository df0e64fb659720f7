"""The page about a plan: charts over the number of ranks, tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator

from caldera.base.formatting import bytes_text, flops_text, seconds_text
from caldera.draw.line_chart import inline
from caldera.draw.page import Safe, card, document, facts, folded, section, table, tag, tiles
from caldera.parallel.planner import Proposal, Ranking
from caldera.parallel.planner.cluster import rate_text
from caldera.parallel.planner.report import HEAD, row_of, rows, scaling_charts, speed_up, times_text

_TITLES = {"strong": "Strong scaling", "weak": "Weak scaling"}
_ABOUT = {
    "strong": "One batch, shared by more and more ranks.",
    "weak": "Every rank has as many samples, however many ranks there are.",
}
_NOTE = (
    "The best of each kind. * need not equal training in one process. Waits: the part of a step "
    "in which a rank waits for messages; idle: in which a pipeline fills and drains."
)


def plan_page(proposal: Proposal, name: str) -> str:
    """The text of the page about a plan for the model of that name."""
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
    yield tag(
        "p", "What a training step would cost, in every way ranks can share it.", class_="quiet"
    )
    values = []
    for scaling in proposal.scalings():
        own = proposal.ranking(scaling)
        found = own.best.prediction
        values.append((f"{scaling} scaling, a step", seconds_text(found.seconds)))
        values.append((f"{scaling} scaling, times one rank", times_text(speed_up(own, found))))
    yield tiles(values)


def _scaling(proposal: Proposal, scaling: str) -> Safe:
    ranking = proposal.ranking(scaling)
    charts = map(inline, scaling_charts(scaling, proposal.series(scaling)))
    sentences = [tag("p", line) for line in proposal.explain(scaling).splitlines()]
    numbers = range(1, len(HEAD))
    best = table(HEAD, rows(ranking), numbers=numbers)
    every = folded("All ways", table(HEAD, _all(ranking), numbers=numbers))
    return section(
        scaling,
        _TITLES[scaling],
        tag("div", *charts, class_="columns"),
        card(f"A step on {ranking.setting.batch:,} samples", best, every, note=_NOTE),
        card("Why", *sentences),
        note=_ABOUT[scaling],
    )


def _all(ranking: Ranking) -> list[tuple[str, ...]]:
    return [row_of(entry, ranking) for entry in ranking.usable()]


def _given(proposal: Proposal) -> Safe:
    setting = proposal.ranking(proposal.scalings()[0]).setting
    cluster, workload = setting.cluster, proposal.workload
    steps = ", ".join(
        f"{seconds_text(seconds)} for {samples:g}" for samples, seconds in setting.compute.points
    )
    model = {
        "parameters": bytes_text(workload.parameters),
        "what the optimizer keeps": bytes_text(workload.optimizer),
        "work of a sample, forward": flops_text(workload.flops),
        "memory of a sample": bytes_text(workload.activations),
        "steps of one rank alone": f"{steps} samples",
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
    return section("given", "What was given", tag("div", *cards, class_="masonry"))
