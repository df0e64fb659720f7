"""`caldera doctor`: examine a table for faults that training would not notice."""

from __future__ import annotations

import argparse

from caldera.cli.command import Command, flag, flags
from caldera.cli.datasets import load_data, show_findings
from caldera.cli.options import given_options, option_flags

add_flags = flags(
    flag("table", help="a table (.csv, .tsv, .parquet, .xlsx, .jsonl, .sqlite, .csv.gz ...)"),
    flag("--strict", action="store_true", help="exit with an error if the table has faults"),
    option_flags("data"),
)
"""The flags of `doctor`: the options of data."""


def run(arguments: argparse.Namespace) -> int:
    """Print the findings and the reading of each column."""
    found = load_data(given_options(arguments) | {"data": arguments.table})
    for each in found.notes:
        print(f"note    {each}")
    show_findings(found, strict=arguments.strict)
    faults = sum(each.is_fault for each in found.findings)
    print(
        f"data    {found.name}: {len(found.train)} rows to train, {len(found.test)} to test; "
        f"{faults or 'no'} fault{'' if faults == 1 else 's'} found"
    )
    return 0


COMMAND = Command(
    name="doctor",
    takes="TABLE",
    summary="Examine a table for faults that training would not notice.",
    examples="""
        caldera doctor furnace.csv --target-column strength
        caldera doctor furnace.csv --missing-values=-999 --strict
    """,
    add_flags=add_flags,
    run=run,
    order=17,
)
