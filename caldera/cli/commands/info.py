"""`caldera info`: lists available features, and how to install missing ones."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from caldera.cli.command import Command, flag, flags
from caldera.cli.optional_parts import parts
from caldera.train.tracking.run_record import environment

add_flags = flags(
    flag("--json", action="store_true", help="for programs to read"),
)
"""The flags of `info`."""


def run(arguments: argparse.Namespace) -> int:
    """Print the environment and the optional features."""
    found, optional = environment(), parts()
    if arguments.json:
        by_name = {part.name: asdict(part) for part in optional}
        print(json.dumps({**found, "parts": by_name}, indent=2))
        return 0
    for title, rows in found.items():
        print(title)
        for name, value in rows.items():
            print(f"  {name:<28}{value}")
    here = [f"  {part.name:<28}{part.found}" for part in optional if part.found]
    missing = [
        f"  {part.name:<28}{part.install}  ({part.purpose})" for part in optional if not part.found
    ]
    for title, lines in {"here": here, "not here, and how to get it": missing}.items():
        if lines:
            print(title, *lines, sep="\n")
    return 0


COMMAND = Command(
    name="info",
    takes="",
    summary="Show the cores, BLAS, GPU and MPI of this machine, and how to install missing parts.",
    examples="""
        caldera info
        caldera info --json > machine.json
    """,
    add_flags=add_flags,
    run=run,
    order=60,
)
