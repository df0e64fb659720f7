"""What `caldera reproduce` prints and writes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from caldera.base.config import settings
from caldera.base.file_cache import write_file
from caldera.base.formatting import seconds_text, table_lines
from caldera.base.plain_data import to_plain
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    Experiment,
    ExperimentResult,
    Plot,
)
from caldera.bench.results import code_version, machine_facts, package_versions
from caldera.draw.axis import axis_of
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import document, section, table, tag
from caldera.draw.svg import CATEGORICAL

BUSY = 2.0
"""A load for each core above which somebody else must compute too: it is taken at the end."""
_BUSY = (
    "The machine was busy with other programs: times are theirs as well, and verdicts on speed are "
    "doubtful."
)
HEAD = ("", "seed", "ours", "verdict")
FORMAT = "caldera reproduce 1"


def verdict_text(row: ComparisonRow) -> str:
    """The verdict, and whether ours is a prediction.

    >>> verdict_text(ComparisonRow("a", "1", "2", "holds", predicted=True))
    'holds (predicted)'
    """
    return f"{row.verdict} (predicted)" if row.predicted else row.verdict


def text_of(experiment: Experiment, outcome: ExperimentResult) -> str:
    """A table of plain text."""
    lines = [
        experiment.claim,
        *table_lines([HEAD, *_plain_rows(outcome)], left=range(len(HEAD))),
        *(f"left out: {each}" for each in outcome.left_out),
        f"{outcome.verdict}, {seconds_text(outcome.seconds)}",
    ]
    return "\n  ".join([f"{experiment.name}: {experiment.source}", *lines])


def _plain_rows(outcome: ExperimentResult) -> list[tuple[str, ...]]:
    return [(row.what, row.seed, row.ours, verdict_text(row)) for row in outcome.rows]


def markdown_of(experiment: Experiment, outcome: ExperimentResult, *, quick: bool) -> str:
    """A file of `benchmarks/results`."""
    machine = machine_facts(settings.threads)
    command = f"caldera reproduce {experiment.name}{' --quick' if quick else ''}"
    lines = [
        f"# {experiment.source}: {experiment.name}",
        "",
        f"{experiment.claim}. Written by `{command}` on {machine['cpu']}, "
        f"{machine['architecture']}, {machine['threads']} threads, load {machine['load before']}, "
        f"{machine['time'][:10]}; "
        f"every sample is in `{file_name(experiment, 'json')}`.",
        "",
        *_table(HEAD, [_cells(row) for row in outcome.rows]),
        "",
        f"Verdict: {outcome.verdict}.",
    ]
    if BESIDE in {row.verdict for row in outcome.rows}:
        lines.append(
            '"Beside": the seed\'s machine is another one, so the numbers only stand side by side.'
        )
    lines += [*_busy(machine), *(f"Left out: {each}." for each in outcome.left_out)]
    return "\n".join(lines) + "\n"


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    return (row.what, row.seed or "-", row.ours or "-", verdict_text(row))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *escaped)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def _busy(machine: Mapping[str, Any]) -> list[str]:
    load = machine["load before"] or 0.0
    return [_BUSY] if load > BUSY * machine["cores"] else []


def file_name(experiment: Experiment, ending: str) -> str:
    """Of an experiment's results.

    >>> file_name(Experiment("fusion", "", ""), "md")
    'reproduce-fusion.md'
    """
    return f"reproduce-{experiment.name}.{ending}"


def json_of(experiment: Experiment, outcome: ExperimentResult, *, quick: bool) -> dict[str, Any]:
    """Everything: code, machine, libraries, settings, rows and raw samples."""
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        "source": experiment.source,
        "claim": experiment.claim,
        "quick": quick,
        "code": code_version(),
        "machine": machine_facts(settings.threads),
        "versions": package_versions(),
        "rows": [asdict(row) for row in outcome.rows],
        "plots": [asdict(plot) for plot in outcome.plots],
        "samples": outcome.samples,
        "left out": outcome.left_out,
        "seconds": outcome.seconds,
        "cpu seconds": outcome.cpu_seconds,
    }


def write_results(
    folder: Path, experiment: Experiment, outcome: ExperimentResult, *, quick: bool
) -> list[Path]:
    """Write the table and the samples of an experiment."""
    texts = {
        "md": markdown_of(experiment, outcome, quick=quick),
        "json": json.dumps(to_plain(json_of(experiment, outcome, quick=quick)), indent=1) + "\n",
    }
    paths = [folder / file_name(experiment, ending) for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_file(path, text)
    return paths


def summary_of(
    done: Mapping[Experiment, ExperimentResult], others: Sequence[Experiment], *, quick: bool
) -> str:
    """All verdicts on one page, every number, what was left out, and what could not be run."""
    machine = machine_facts(settings.threads)
    lines = [
        "# The seeds' experiments",
        "",
        f"Written by `caldera reproduce{' --quick' if quick else ''}` on {machine['cpu']}, "
        f"{machine['threads']} threads, load {machine['load before']} at the end, "
        f"{machine['time'][:10]}: {totals_text(done.values())}.",
        "Every sample is in "
        + ", ".join(f"`{file_name(each, 'json')}`" for each in done)
        + ", which are not files of the bench: `caldera check` does not read them.",
        *_busy(machine),
        "",
    ]
    lines += _table(
        ("experiment", "source", "claim", "verdict", "took", "CPU", "left out"),
        [
            (
                f"[{each.name}]({file_name(each, 'md')})",
                each.source,
                each.claim,
                outcome.verdict,
                seconds_text(outcome.seconds),
                seconds_text(outcome.cpu_seconds),
                "; ".join(outcome.left_out),
            )
            for each, outcome in done.items()
        ],
    )
    if others:
        head = ("experiment", "source", "claim", "why not", "the nearest thing")
        rows = [(each.name, each.source, each.claim, each.reason, each.nearest) for each in others]
        lines += ["", "Not run:", "", *_table(head, rows)]
    every = [(each.name, *_cells(row)) for each, outcome in done.items() for row in outcome.rows]
    lines += ["", "Every number:", "", *_table(("experiment", "what", *HEAD[1:]), every)]
    return "\n".join(lines) + "\n"


def totals_text(outcomes: Collection[ExperimentResult]) -> str:
    """How many, how long, and how many claims hold.

    >>> row = ComparisonRow("a", "1", "1", "holds")
    >>> totals_text([ExperimentResult([row], seconds=2.0, cpu_seconds=3.0)])
    '1 experiments in 2.0 s (3.0 s of CPU time): 1 holds'
    """
    taken = math.fsum(outcome.seconds for outcome in outcomes)
    cpu = math.fsum(outcome.cpu_seconds for outcome in outcomes)
    counts = Counter(outcome.verdict for outcome in outcomes)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return (
        f"{len(outcomes)} experiments in {seconds_text(taken)} "
        f"({seconds_text(cpu)} of CPU time): {verdicts}"
    )


def page_of(done: Mapping[Experiment, ExperimentResult], others: Sequence[Experiment]) -> str:
    """One page: a table and plots for each experiment, and what could not be run."""
    parts = [tag("h1", "caldera reproduce")]
    index = {}
    for experiment, outcome in done.items():
        index[experiment.name] = experiment.name
        parts.append(
            section(
                experiment.name,
                f"{experiment.source}: {experiment.name}",
                tag("div", *(inline(chart(plot)) for plot in outcome.plots), class_="columns"),
                table(HEAD, _plain_rows(outcome)),
                note=f"{experiment.claim}: {outcome.verdict}",
            )
        )
    if others:
        rows_of = [(each.source, each.claim, each.reason, each.nearest) for each in others]
        index["others"] = "Not run"
        head = ("source", "claim", "why not", "the nearest thing that was run")
        parts.append(section("others", "Not run", table(head, rows_of)))
    return document("caldera reproduce", index, parts)


def chart(plot: Plot) -> LineChart:
    """A plot as a chart."""
    lines = [
        # Dashed: what nobody measured, and the colours that come a second time.
        Line(
            name,
            list(points),
            CATEGORICAL[place % len(CATEGORICAL)],
            dashed=name == "predicted" or place >= len(CATEGORICAL),
        )
        for place, (name, points) in enumerate(plot.lines.items())
    ]
    points = [point for line in lines for point in line.points]
    floor = [0.0] if plot.from_zero and not plot.log else []
    return LineChart(
        f"{plot.title} ({plot.y})",
        plot.x,
        lines,
        axis_of([x for x, _ in points]),
        axis_of([*floor, *(y for _, y in points)], log=plot.log),
    )
