"""`caldera report`: one page about a run or a study, to read or to send to somebody."""

from __future__ import annotations

import argparse
from pathlib import Path

from caldera import search
from caldera.cli.command import Command, UsageError
from caldera.file_cache import write_file
from caldera.report import run_page
from caldera.train.tracking.run_folder import RunFolder

PAGE = "report.html"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `report`."""
    parser.add_argument(
        "run", metavar="FOLDER",
        help="what `caldera train --out` or cd.RunFolder wrote, or the folder of a search",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FILE.html", help=f"where to write it (default: FOLDER/{PAGE})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    target = Path(arguments.out) if arguments.out else Path(arguments.run) / PAGE
    if target.suffix.lower() not in (".html", ".htm"):
        raise UsageError.build("--out", expected="a file that ends in .html", got=str(target))
    if search.is_study(arguments.run):
        search.load(arguments.run).page(target)
    else:
        write_file(target, run_page(RunFolder(arguments.run)))
    print(f"wrote   {target}")
    return 0


COMMAND = Command(
    name="report",
    takes="FOLDER",
    summary="Write one page about a run or a search: curves, mistakes, graph, time, all trials.",
    examples="""
        caldera report out
        caldera report out --out digits.html
        caldera report study
    """,
    add_flags=add_flags,
    run=run,
    order=25,
)
