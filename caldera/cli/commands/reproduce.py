"""`caldera reproduce`: the tables and figures of the reference papers, on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from caldera.base.file_cache import write_file
from caldera.bench.reproduce.criteria import figures
from caldera.bench.reproduce.experiment import (
    BUSY,
    Experiment,
    ExperimentContext,
    ExperimentResult,
    find_experiments,
    run_experiment,
)
from caldera.bench.reproduce.writing import (
    BUSY_TEXT,
    counts_text,
    figure_rows,
    page_of,
    read_results,
    summary_of,
    text_of,
    totals_text,
    write_results,
)
from caldera.bench.timing import Stopwatch, share_of_others
from caldera.cli.command import Command, flag, flags, tell
from caldera.cli.option_types import NameOption
from caldera.errors import CalderaError, ConfigError

_RESULTS = Path("out/reproduce")
SUMMARY = "reproduce-all.md"
"""The file of a run of all experiments."""


add_flags = flags(
    flag(
        "names",
        nargs="*",
        metavar="EXPERIMENTS",
        help="experiments to run (default: all; see --list)",
    ),
    flag("--quick", action="store_true", help="fewer sizes, steps and seeds"),
    flag("--again", action="store_true", help="repeat experiments that an earlier run finished"),
    flag(
        "--out",
        metavar="FOLDER",
        help=f"folder of the results, created if missing (default: {_RESULTS})",
    ),
    flag("--html", metavar="FILE", help="write a page with plots to this file"),
    flag(
        "--list",
        action="store_true",
        help="list the experiments, and the claims that are not reproduced",
    ),
)
"""The flags of `reproduce`."""


def run(arguments: argparse.Namespace) -> int:
    """Run experiments and print verdicts; a claim that does not hold is a result too."""
    everything = find_experiments()
    if arguments.list:
        for each in everything.values():
            print(f"{each.name:<18}{each.claim.source}: {each.claim.text}")
        for figure in figures():
            if not figure.experiment:
                print(f"{'-':<18}{figure.place}: {figure.says} ({figure.reason})")
        return 0
    kind = NameOption("experiment", lambda: everything)
    names = [kind.from_text(name, "caldera reproduce") for name in arguments.names]
    chosen = [everything[name] for name in names or everything]
    for each in [each for each in chosen if each.missing]:
        if names:
            needed = each.missing.removeprefix("requires ")
            raise ConfigError.build(each.name, expected=needed, got="none on this machine")
        chosen.remove(each)
    folder = _folder(arguments.out)
    page = Path(arguments.html) if arguments.html else None
    if page is not None and not page.parent.is_dir():
        raise ConfigError.build(
            "--html", expected="a file in a folder that exists", got=repr(arguments.html)
        )
    done, failed = _run_all(chosen, folder, arguments.quick, arguments.again or bool(names))
    if not arguments.names:
        write_file(folder / SUMMARY, summary_of(done, failed, quick=arguments.quick))
        print(counts_text(figure_rows(done, failed)))
    if done:
        print(totals_text(done))
    if page is not None:
        write_file(page, page_of(done, failed))
        print(f"wrote {page}")
    return 1 if failed else 0


def _run_all(
    chosen: Sequence[Experiment], folder: Path, quick: bool, again: bool
) -> tuple[dict[Experiment, ExperimentResult], dict[str, str]]:
    """Run experiments, or load results that the same code produced earlier."""
    context = ExperimentContext(quick, lambda line: tell(f"  {line}"))
    done: dict[Experiment, ExperimentResult] = {}
    failed: dict[str, str] = {}
    if share_of_others() > BUSY:
        tell(BUSY_TEXT)
    if not again:
        kept = {each: read_results(folder, each, quick=quick) for each in chosen}
        done = {each: found for each, found in kept.items() if found is not None}
        if done:
            tell(
                f"finished before, in {folder}: {len(done)} of {len(chosen)}; --again repeats them"
            )
    watch, rest = Stopwatch(), [each for each in chosen if each not in done]
    for count, experiment in enumerate(rest):
        spent, total = (
            sum(each.claim.seconds for each in part) for part in (rest[:count], rest[count:])
        )
        left = total * (watch.wall / spent if spent else 1.0 if quick else 4.0)
        time = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
        tell(f"{experiment.name} ({count + 1} of {len(rest)}, about {time} left)")
        try:
            done[experiment] = run_experiment(experiment, context)
        except Exception as error:
            # A failure, for example of ranks that cannot be started or within a peer, does not
            # stop later experiments.
            known = isinstance(error, CalderaError)
            failed[experiment.name] = str(error) if known else f"{type(error).__name__}: {error}"
            print(f"{experiment.name} failed: {failed[experiment.name]}", end="\n\n")
            continue
        except KeyboardInterrupt:
            tell(f"results of finished experiments are in {folder}: the same command continues")
            raise
        print(text_of(experiment, done[experiment]), end="\n\n")
        write_results(folder, experiment, done[experiment], quick=quick)
    return {each: done[each] for each in chosen if each in done}, failed


def _folder(given: str | None) -> Path:
    """Return the folder of results, created if it is missing."""
    folder = _RESULTS if given is None else Path(given)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError.build(
            "--out", expected="a folder that can be created", got=f"{given!r}: {error.strerror}"
        ) from error
    return folder


COMMAND = Command(
    name="reproduce",
    takes="EXPERIMENTS ...",
    summary="Reproduce the tables and figures of the reference papers on this machine.",
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
