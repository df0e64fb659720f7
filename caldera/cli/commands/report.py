"""`caldera report`: one page about a run, a study or several runs, to read or to send."""

from __future__ import annotations

import argparse
from pathlib import Path

from caldera import search
from caldera.base.file_cache import write_file
from caldera.cli.command import Command, UsageError, flag, flags
from caldera.train.report import compare_page, run_page
from caldera.train.tracking.run_folder import REPORT, RunFolder

PAGE, COMPARISON = REPORT, "comparison.html"


add_flags = flags(
    flag(
        "run",
        metavar="FOLDER",
        nargs="+",
        help="folder written by `caldera train --out`, cd.RunFolder or a search; several runs "
        "are compared",
    ),
    flag(
        "--out",
        metavar="FILE.html",
        help=f"output file (default: FOLDER/{PAGE}; of several runs, {COMPARISON})",
    ),
)
"""The flags of `report`."""


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    folders = list(dict.fromkeys(arguments.run))
    several = len(folders) > 1
    usual = Path(COMPARISON) if several else Path(folders[0]) / PAGE
    target = Path(arguments.out) if arguments.out else usual
    if target.suffix.lower() not in (".html", ".htm"):
        raise UsageError.build("--out", expected="a file that ends in .html", got=str(target))
    if several:
        write_file(target, compare_page([_run_folder(folder) for folder in folders]))
    elif search.is_study(folders[0]):
        search.load(folders[0]).page(target)
    else:
        write_file(target, run_page(RunFolder(folders[0])))
    print(f"wrote   {target}")
    return 0


def _run_folder(folder: str) -> RunFolder:
    if search.is_study(folder):
        raise UsageError.build(
            "report",
            expected="runs to compare",
            got=f"the search in {folder}",
            hint=f"`caldera report {folder}` compares its trials",
        )
    return RunFolder(folder)


COMMAND = Command(
    name="report",
    takes="FOLDER ...",
    summary="Write a page about a run or a search, or a comparison of several runs.",
    examples="""
        caldera report out
        caldera report out --out digits.html
        caldera report study
        caldera report first second third --out compared.html
    """,
    add_flags=add_flags,
    run=run,
    order=25,
)
