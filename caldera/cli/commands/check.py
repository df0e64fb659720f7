"""`caldera check`: ways to fool the masses, looked for in files of results."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from caldera.bench.honesty import Findings, check
from caldera.bench.honesty.age import age_text, figure_ages
from caldera.cli.command import Command, flag, flags

add_flags = flags(
    flag(
        "files",
        nargs="+",
        metavar="FILE",
        help="output of `caldera bench --json`, or another report in the documented format",
    ),
    flag("--json", action="store_true", help="print the findings as JSON"),
    flag(
        "--age",
        action="store_true",
        help="print verdict, date and commit of each figure, and mark those older than the kernels",
    ),
)
"""The flags of `check`."""


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict of each rule; return 1 unless all are fine."""
    if arguments.age:
        print(age_text([each for file in arguments.files for each in figure_ages(Path(file))]))
        return 0
    found = [check(file) for file in arguments.files]
    if arguments.json:
        print(json.dumps([_plain(each) for each in found], indent=1))
    else:
        print("\n\n".join(map(str, found)))
    return 0 if all(each.passes for each in found) else 1


def _plain(findings: Findings) -> dict[str, object]:
    keys = ("number", "rule", "way", "status", "why", "sentence")
    verdicts = [{key: asdict(each)[key] for key in keys} for each in findings.verdicts]
    return {"title": findings.title, "passes": findings.passes, "verdicts": verdicts}


COMMAND = Command(
    name="check",
    takes="FILE ...",
    summary="Check a report of results for common ways to mislead its readers.",
    examples="""
        caldera check bench.json
        caldera check ours.json theirs.json --json
        caldera check --age benchmarks/results/readme.json
    """,
    add_flags=add_flags,
    run=run,
    order=56,
)
