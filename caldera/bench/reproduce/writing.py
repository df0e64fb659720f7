"""Tables, files and the page of `caldera reproduce`."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from caldera.base.config import settings
from caldera.base.file_cache import write_file
from caldera.base.formatting import seconds_text, table_lines
from caldera.base.plain_data import to_plain
from caldera.bench.reproduce.criteria import NOT_COMPARABLE, Figure, figures
from caldera.bench.reproduce.experiment import (
    SECOND_LOOK,
    Experiment,
    ExperimentResult,
    Measurement,
    Plot,
    find_experiments,
)
from caldera.bench.results import code_version, machine_facts, package_versions
from caldera.core.memory.gpus import card_count
from caldera.draw.axis import axis_of
from caldera.draw.line_chart import Line, LineChart, inline
from caldera.draw.page import document, section, table, tag
from caldera.draw.svg import CATEGORICAL
from caldera.errors import DataError

BUSY_TEXT = "Other programs used the machine: verdicts on speed are undecided."
AGAIN_TEXT = (
    f"The first look was undecided. The second look had {SECOND_LOOK} times the number of turns."
)
HEAD = ("measured", "paper", "criterion", "ours", "verdict")
FORMAT = "caldera reproduce 2"
NOT_HERE = "not here"
_ORDER = ("does not hold", "undecided", "holds", NOT_COMPARABLE)


def text_of(experiment: Experiment, outcome: ExperimentResult) -> str:
    """Return the rows of an experiment as plain text."""
    lines = [
        experiment.claim.text,
        *table_lines([HEAD, *(row.cells for row in outcome.rows)], left=range(len(HEAD))),
        *(f"left out: {each}" for each in outcome.measurement.left_out),
        *_remarks(outcome),
        f"{outcome.verdict}, {seconds_text(outcome.seconds)}",
    ]
    return "\n  ".join([f"{experiment.name}: {experiment.claim.source}", *lines])


def markdown_of(experiment: Experiment, outcome: ExperimentResult, *, quick: bool) -> str:
    """Return the report of an experiment in Markdown."""
    claim = experiment.claim
    machine = machine_facts(settings.threads, claim.device)
    command = f"caldera reproduce {experiment.name}{' --quick' if quick else ''}"
    lines = [
        f"# {claim.source}: {experiment.name}",
        "",
        f"Claim: {claim.text}.",
        "",
        f"Judged at: {claim.scale}. Written by `{command}` on {_devices_text(machine)}, "
        f"{machine['architecture']}, {machine['threads']} threads, load {machine['load before']}, "
        f"{machine['time'][:10]}; every sample is in `{file_name(experiment, 'json')}`.",
        "",
        *_table(HEAD, [row.cells for row in outcome.rows]),
        "",
        f"Verdict: {outcome.verdict}.",
        *([claim.note] if claim.note else []),
        *_remarks(outcome),
        *(f"Left out: {each}." for each in outcome.measurement.left_out),
    ]
    return "\n".join(lines) + "\n"


def _remarks(outcome: ExperimentResult) -> list[str]:
    found = [AGAIN_TEXT] if outcome.measurement.undecided else []
    return [*found, BUSY_TEXT] if outcome.busy else found


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    escaped = [[cell.replace("|", "\\|") or "-" for cell in row] for row in rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *escaped)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def file_name(experiment: Experiment, ending: str) -> str:
    """Return the name of an experiment's file of results.

    >>> from caldera.bench.reproduce.experiment import find_experiments
    >>> file_name(find_experiments()["fusion"], "md")
    'reproduce-fusion.md'
    """
    return f"reproduce-{experiment.name}.{ending}"


def json_of(experiment: Experiment, outcome: ExperimentResult, *, quick: bool) -> dict[str, Any]:
    """Return code, machine, libraries, settings, rows and raw samples."""
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        "claim": asdict(experiment.claim),
        "quick": quick,
        "code": code_version(),
        "machine": machine_facts(settings.threads, experiment.claim.device),
        "versions": package_versions(),
        "busy": outcome.busy,
        "verdict": outcome.verdict,
        "rows": [row.cells for row in outcome.rows],
        "plots": [asdict(plot) for plot in outcome.measurement.plots],
        "samples": outcome.measurement.samples,
        "samples of an undecided first look": outcome.measurement.undecided,
        "left out": outcome.measurement.left_out,
        "seconds": outcome.seconds,
        "cpu seconds": outcome.cpu_seconds,
    }


def write_results(
    folder: Path, experiment: Experiment, outcome: ExperimentResult, *, quick: bool
) -> list[Path]:
    """Write the report and the samples of an experiment."""
    texts = {
        "md": markdown_of(experiment, outcome, quick=quick),
        "json": json.dumps(to_plain(json_of(experiment, outcome, quick=quick)), indent=1) + "\n",
    }
    paths = [folder / file_name(experiment, ending) for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_file(path, text)
    return paths


def read_results(folder: Path, experiment: Experiment, *, quick: bool) -> ExperimentResult | None:
    """Judge an earlier run of the same code again, from its samples; None if there is none."""
    path = folder / file_name(experiment, "json")
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found["format"], found["quick"], found["code"]) != (FORMAT, quick, code_version()):
            return None
        plots = [Plot(**each) for each in found["plots"]]
        undecided = found["samples of an undecided first look"]
        measurement = Measurement(found["samples"], plots, found["left out"], undecided)
        outcome = experiment.judge(measurement, busy=found["busy"])
        outcome.seconds, outcome.cpu_seconds = found["seconds"], found["cpu seconds"]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError.build(
            str(path),
            expected=f"a file of `caldera reproduce {experiment.name}`",
            got=f"{type(error).__name__}: {error}",
            hint="remove it to run the experiment again",
        ) from error
    return outcome


Done = Mapping[Experiment, ExperimentResult]


def figure_rows(done: Done, failed: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return all tables, figures and numbers of the papers with their verdicts, failures first."""
    verdicts = {experiment.name: outcome.verdict for experiment, outcome in done.items()}

    known = find_experiments()
    missing = {name: each.missing for name, each in known.items() if each.missing}

    def verdict(figure: Figure) -> str:
        if not figure.experiment:
            return figure.recorded or NOT_HERE
        if figure.experiment in failed:
            return "failed to run"
        return verdicts.get(
            figure.experiment, NOT_HERE if figure.experiment in missing else "not run"
        )

    def place(row: tuple[str, ...]) -> int:
        return next((n for n, each in enumerate(_ORDER) if row[3].startswith(each)), len(_ORDER))

    rows = [
        (
            each.place,
            each.says,
            each.experiment or each.nearest or each.file,
            verdict(each),
            (missing | dict(failed)).get(each.experiment, each.reason),
        )
        for each in figures()
    ]
    return sorted(rows, key=place)


FIGURE_HEAD = ("paper", "figure or claim", "experiment, or the nearest one", "verdict", "reason")


def counts_text(rows: Iterable[tuple[str, ...]]) -> str:
    """Return the number of figures by verdict.

    >>> counts_text([("", "", "", "holds", ""), ("", "", "", "not here", "")])
    '2 claims of the papers: 1 holds, 1 not here'
    """
    counts = Counter(row[3] for row in rows)
    shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{counts.total()} claims of the papers: {shown}"


def _devices_text(machine: Mapping[str, Any]) -> str:
    return " and ".join(str(machine[each]) for each in ("card", "cpu") if each in machine)


def summary_of(done: Done, failed: Mapping[str, str], *, quick: bool) -> str:
    """Return one page of Markdown: the verdicts, the papers' figures, and every quantity."""
    rows = figure_rows(done, failed)
    machine = machine_facts(settings.threads, "cuda" if card_count() else "cpu")
    busy = ", ".join(f"`{each.name}`" for each, found in done.items() if found.busy)
    looks = {each.name: found.measurement.undecided for each, found in done.items()}
    again = ", ".join(f"`{name}`" for name, first in looks.items() if first)
    lines = [
        "# Published claims",
        "",
        f"Written by `caldera reproduce{' --quick' if quick else ''}` on {_devices_text(machine)}, "
        f"{machine['threads']} threads, load {machine['load before']} at the end, "
        f"{machine['time'][:10]}: {totals_text(done)}.",
        "Every sample is in "
        + ", ".join(f"`{file_name(each, 'json')}`" for each in done)
        + ", which are not files of the bench: `caldera check` does not read them.",
        *([f"During {busy}: {BUSY_TEXT[0].lower()}{BUSY_TEXT[1:]}"] if busy else []),
        *([f"{again}: {AGAIN_TEXT[0].lower()}{AGAIN_TEXT[1:]}"] if again else []),
        "",
        f"{counts_text(rows)}.",
        "",
        *_table(FIGURE_HEAD, rows),
        "",
        "Experiments:",
        "",
        *_table(
            ("experiment", "source", "claim", "verdict", "took", "CPU", "left out"),
            [
                (
                    f"[{each.name}]({file_name(each, 'md')})",
                    each.claim.source,
                    each.claim.text,
                    outcome.verdict,
                    seconds_text(outcome.seconds),
                    seconds_text(outcome.cpu_seconds),
                    "; ".join(outcome.measurement.left_out),
                )
                for each, outcome in done.items()
            ],
        ),
        "",
        "Every quantity:",
        "",
        *_table(
            ("experiment", *HEAD),
            [(each.name, *row.cells) for each, outcome in done.items() for row in outcome.rows],
        ),
    ]
    return "\n".join(lines) + "\n"


def totals_text(done: Done) -> str:
    """Return the number of experiments by verdict, and their time."""
    taken = math.fsum(outcome.seconds for outcome in done.values())
    cpu = math.fsum(outcome.cpu_seconds for outcome in done.values())
    counts = Counter(outcome.verdict for outcome in done.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return (
        f"{len(done)} experiments in {seconds_text(taken)} "
        f"({seconds_text(cpu)} of CPU time): {verdicts}"
    )


def page_of(done: Done, failed: Mapping[str, str]) -> str:
    """Return one HTML page: the papers' figures with verdicts, then each experiment."""
    rows = figure_rows(done, failed)
    parts = [
        tag("h1", "Published claims"),
        section("claims", counts_text(rows), table(FIGURE_HEAD, rows), note=totals_text(done)),
    ]
    index = {"claims": "All claims"}
    for experiment, outcome in done.items():
        index[experiment.name] = experiment.name
        claim = experiment.claim
        notes = [f"{claim.text}: {outcome.verdict}.", f"Judged at: {claim.scale}.", claim.note]
        notes += _remarks(outcome)
        parts.append(
            section(
                experiment.name,
                f"{claim.source}: {experiment.name}",
                tag(
                    "div",
                    *(inline(chart(plot)) for plot in outcome.measurement.plots),
                    class_="columns",
                ),
                table(HEAD, [row.cells for row in outcome.rows]),
                note=" ".join(each for each in notes if each),
            )
        )
    return document("caldera reproduce", index, parts)


def chart(plot: Plot) -> LineChart:
    """Return a plot as a chart."""
    lines = [
        # Predictions are dashed, and colours on their second use.
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
