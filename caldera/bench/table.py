"""A report in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from caldera.base.optional import optional_import
from caldera.bench.formatting import columns_of, facts, mean_text, row, title_of
from caldera.bench.results import OURS, Entry, Report

_NARROWEST = 200
"""Columns that a table gets where the output is not a terminal."""


def print_report(report: Report) -> None:
    """Print tables, one for each case, and the means."""
    if find_spec("rich") is None:
        # A machine with a card may have nothing but what computes.
        print("\n".join(plain_lines(report)))
        return
    console = _console()
    for line in facts(report):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    for title, entries in _tables(report):
        columns = columns_of(entries)
        table = optional_import("rich.table", "rich", "caldera bench").Table(
            title=title, title_justify="left", title_style="bold", box=_box()
        )
        for column in columns:
            table.add_column(column, overflow="fold")
        for entry in entries:
            style = "bold" if entry.framework == OURS else ""
            if entry.rounds and not entry.counts:
                style = "dim strike"
            table.add_row(*_plain(row(report, entry, columns)), style=style)
        console.print()
        console.print(table)
    means = report.means()
    if means:
        console.print()
    for mean in means:
        console.print(mean_text(mean), highlight=False, soft_wrap=True, markup=False)


def plain_lines(report: Report) -> Iterator[str]:
    """The report as lines of text, the cells of a table apart by bars."""
    yield from facts(report)
    for title, entries in _tables(report):
        columns = columns_of(entries)
        yield ""
        yield title
        yield " | ".join(columns)
        for entry in entries:
            yield " | ".join(row(report, entry, columns))
    yield from (mean_text(mean) for mean in report.means())


def _tables(report: Report) -> Iterator[tuple[str, Sequence[Entry]]]:
    """The titles and entries of all tables."""
    for work in report.works():
        for case, entries in report.cases(work).items():
            title = title_of(case, entries)
            yield title if work == case else f"{work}: {title}", entries


def _console() -> Any:
    console = optional_import("rich.console", "rich", "caldera bench").Console()
    if not console.is_terminal:
        console.width = max(console.width, _NARROWEST)
    return console


def _box() -> Any:
    return optional_import("rich.box", "rich", "caldera bench").SIMPLE_HEAD


def _plain(cells: list[str]) -> list[Any]:
    """Cells whose brackets are brackets, not markup."""
    text = optional_import("rich.text", "rich", "caldera bench").Text
    return [text(cell) for cell in cells]
