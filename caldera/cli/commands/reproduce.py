"""`caldera reproduce`: the seeds' tables and figures, made again on this machine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from caldera.base.file_cache import write_file
from caldera.bench.reproduce.experiment import (
    Experiment,
    ExperimentContext,
    ExperimentResult,
    find_experiments,
    run_experiment,
)
from caldera.bench.reproduce.writing import (
    page_of,
    summary_of,
    text_of,
    totals_text,
    write_results,
)
from caldera.cli.command import Command, flag, flags, tell
from caldera.cli.option_types import NameOption
from caldera.errors import CalderaError, ConfigError

_RESULTS = Path("benchmarks/results")
SUMMARY = "reproduce-all.md"
"""What a run of all experiments writes beside the file of each."""


add_flags = flags(
    flag("names", nargs="*", metavar="EXPERIMENTS", help="which ones (default: all; see --list)"),
    flag("--quick", action="store_true", help="fewer sizes, steps and repeats"),
    flag(
        "--out",
        metavar="FOLDER",
        help=f"where results are written (default: {_RESULTS}, in a clone of the repository)",
    ),
    flag("--html", metavar="FILE", help="write a page with plots to this file"),
    flag("--list", action="store_true", help="say what there is, and what is not"),
)
"""The flags of `reproduce`."""


def run(arguments: argparse.Namespace) -> int:
    """Run, print seed / ours / verdict, and write. A claim that does not hold is a result too."""
    everything = find_experiments()
    if arguments.list:
        for each in everything.values():
            state = "" if each.can_run else f" (not run: {each.reason})"
            print(f"{each.name:<18}{each.source}: {each.claim}{state}")
        return 0
    kind = NameOption("experiment", lambda: everything)
    names = [kind.from_text(name, "caldera reproduce") for name in arguments.names]
    chosen = [everything[name] for name in names or everything]
    folder = _folder(arguments.out)
    page = Path(arguments.html) if arguments.html else None
    if page is not None and not page.parent.is_dir():
        raise ConfigError.build(
            "--html", expected="a file in a folder that exists", got=repr(arguments.html)
        )
    context = ExperimentContext(arguments.quick, lambda line: tell(f"  {line}"))
    done: dict[Experiment, ExperimentResult] = {}
    failed: list[Experiment] = []
    for experiment in chosen:
        if not experiment.can_run:
            continue
        tell(f"{experiment.name} ...")
        try:
            done[experiment] = run_experiment(experiment, context)
        except CalderaError as error:
            # One that fails, ranks that cannot be started perhaps, leaves the others alone.
            failed.append(replace(experiment, run=None, reason=f"it failed: {error}"))
            continue
        print(text_of(experiment, done[experiment]), end="\n\n")
        if folder is not None:
            write_results(folder, experiment, done[experiment], quick=arguments.quick)
    others = [*failed, *(each for each in chosen if not each.can_run)]
    for each in others:
        print(
            f"not run: {each.claim} ({each.source}): {each.reason}; "
            f"nearest: {each.nearest or 'none'}"
        )
    if folder is not None and not arguments.names:
        write_file(folder / SUMMARY, summary_of(done, others, quick=arguments.quick))
    if done:
        print(totals_text(done.values()))
    if page is not None:
        write_file(page, page_of(done, others))
        print(f"wrote {page}")
    return 1 if failed else 0


def _folder(given: str | None) -> Path | None:
    """Where to write: what was asked for, or the results of a clone, or nowhere."""
    if given is None:
        return _RESULTS if _RESULTS.is_dir() else None
    folder = Path(given)
    if not folder.is_dir():
        raise ConfigError.build("--out", expected="a folder that exists", got=repr(given))
    return folder


COMMAND = Command(
    name="reproduce",
    takes="EXPERIMENTS ...",
    summary="Make the tables and figures of the seeds again on this machine.",
    examples="""
        caldera reproduce --list
        caldera reproduce --quick --html reproduce.html
        caldera reproduce mlp-layers topk-assumption
    """,
    add_flags=add_flags,
    run=run,
    order=57,
    words=find_experiments,
)
