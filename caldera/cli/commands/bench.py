"""`caldera bench`: compares times with other frameworks, at equal results."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from caldera.base.config import settings
from caldera.base.file_cache import write_file
from caldera.base.machine import card_state
from caldera.bench.case_runner import CaseOptions
from caldera.bench.contestants import (
    ACCURACIES,
    ALL_PEERS,
    INSTALL,
    PEERS,
    missing_peers,
    usual_peers,
)
from caldera.bench.equality import PRECISIONS, REFERENCE_PRECISION
from caldera.bench.previous_run import (
    SLOWER,
    WITHIN,
    compare_reports,
    options_of,
    previous_sources,
    read_report,
)
from caldera.bench.report import log_text, page, print_report
from caldera.bench.results import Report
from caldera.bench.session import BenchSession
from caldera.bench.workloads import WORKLOADS, LearningCase, TrainingCase
from caldera.cli.command import INTERRUPTED, Command, flag, flags, tell
from caldera.cli.option_types import CountOption, NameOption, Names
from caldera.compiler.passes.pipeline import NAMES as PASSES
from caldera.errors import ConfigError

_CPU, _CARD = "cpu", "cuda"
_DEVICES = (_CPU, _CARD)
_BOTH = "both"
_LIMIT = 300
"""Time limit per framework on a GPU: torch.compile takes over two minutes for Inception v3."""


add_flags = flags(
    flag("work", nargs="*", metavar="WORKLOADS", help="workload to measure; see --list"),
    flag("--device", metavar="NAME", default=_CPU, help="cpu (the default) or cuda: the first GPU"),
    flag(
        "--peers",
        metavar="NAME,...",
        help=f"frameworks to compare with (default: {','.join(PEERS)}, and "
        "tensorflow if installed; '' for none)",
    ),
    flag(
        "--precision",
        metavar="NAME,...",
        help=f"of products: {', '.join(PRECISIONS)} (default on a GPU: as in --list; on the "
        "CPU, which has no tf32, float32)",
    ),
    flag(
        "--settings",
        metavar="TEXT,...",
        help="on a GPU, only contestants with one of these in their names, as in 'caldera,graph'",
    ),
    flag(
        "--limit",
        metavar="SECONDS",
        help=f"of each contestant in a case, which is then ended (default on a GPU: {_LIMIT})",
    ),
    flag("--threads", metavar="N", help="threads of each framework (default: all)"),
    flag("--repeats", metavar="N", help="turns of each (default: 7; 3 with --quick)"),
    flag("--quick", action="store_true", help="fewer sizes, turns and checks"),
    flag(
        "--no-compile",
        action="store_true",
        help="leave out torch.compile, which takes minutes for each large network",
    ),
    flag(
        "--accuracy",
        metavar="NAME",
        help="strict, fast or both (the default): whether Caldera may use less accurate kernels "
        "(on the CPU)",
    ),
    flag(
        "--without",
        metavar="PASS,...",
        help="also Caldera's training steps without each of these passes of the graph (on the CPU)",
    ),
    flag(
        "--workspace",
        metavar="MIB,...",
        help="also measure with at most this scratch memory per kernel: convolutions run in "
        "micro-batches (CPU only)",
    ),
    flag(
        "--test-accuracy",
        metavar="EPOCHS",
        help="also train mlp, lenet5 and resnet20 on real data, and test them",
    ),
    flag("--json", metavar="FILE", help="write all results to this file"),
    flag("--html", metavar="FILE", help="write a page with figures to this file"),
    flag(
        "--again",
        metavar="FILE",
        help="repeat the runs of a --json file, and report whether the difference is within noise",
    ),
    flag("--mllog", metavar="FILE", help="write a training as MLPerf's log lines (:::MLLOG)"),
    flag(
        "--list",
        action="store_true",
        help="list the workloads and the frameworks that support them",
    ),
)
"""The flags of `bench`."""


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write, also what there is when Ctrl-C ends it; 1 if Caldera failed."""
    before = read_report(arguments.again) if arguments.again else None
    options = _options(arguments) if before is None else _same_options(arguments, before)
    targets = [_target(arguments, flag) for flag in ("json", "html", "mllog")]
    if arguments.list:
        _print_list(options)
        return 0
    if not options.works:
        raise ConfigError.build(
            "caldera bench",
            expected="a workload to measure",
            got="nothing",
            hint="for example: caldera bench mlp; caldera bench --list names all work",
        )
    trained = [isinstance(WORKLOADS[name].cases[0], LearningCase) for name in options.works]
    if arguments.mllog and not any(trained):
        raise ConfigError.build(
            "--mllog",
            expected="a training to an accuracy",
            got=" ".join(options.works),
            hint="caldera bench training has some",
        )
    if options.on_card and card_state() is None:
        raise ConfigError.build(
            "--device cuda",
            expected="an NVIDIA GPU",
            got="none that nvidia-smi finds",
            hint="caldera info lists the devices of this machine",
        )
    written: dict[Path, None] = {}

    def keep(report: Report) -> None:
        # Written after each workload, so that stopping a long run loses no results.
        for target, text in zip(targets, (_json_text, page, log_text), strict=True):
            is_empty = text is log_text and not any(entry.trainings for entry in report.entries)
            if target is not None and not is_empty:
                write_file(target, text(report))
                written[target] = None

    with tempfile.TemporaryDirectory(prefix="caldera-before-") as folder:
        previous = None if before is None else _previous(before, Path(folder))
        report = BenchSession(options, tell, before=previous).run(keep)
    print_report(report)
    for target in written:
        print(f"wrote {target}")
    if report.stopped:
        return INTERRUPTED
    failed = any(entry.error for entry in report.entries if entry.framework == "caldera")
    if before is not None:
        failed |= _print_again(before, report)
    return 1 if failed else 0


def _same_options(arguments: argparse.Namespace, before: dict[str, Any]) -> CaseOptions:
    """Return the options of the earlier run; workloads on the command line are an error."""
    if arguments.work:
        raise ConfigError.build(
            "--again",
            expected="no further workload",
            got=" ".join(arguments.work),
            hint="the file lists the measured workloads",
        )
    options = options_of(before)
    for name in options.works:
        NameOption("work", lambda: WORKLOADS).from_text(name, "--again")
    return options


def _previous(before: dict[str, Any], folder: Path) -> Path | None:
    """Return the code of the run before, if git has it, to take turns with."""
    found = previous_sources(before.get("code", {}), folder)
    if found is None:
        tell("the code of that run is not in the history here: runs are compared by their files")
    return found


def _print_again(before: dict[str, Any], report: Report) -> bool:
    """Say what differs from the run before; whether Caldera is slower."""
    found = compare_reports(before, report.to_json())
    print()
    for each in found:
        print(each)
    for name, (old, new) in _changed(before, report).items():
        print(f"{name} was {old}, is {new}")
    same = sum(each.verdict == WITHIN for each in found)
    print(f"{same} of {len(found)} within noise")
    return any(each.verdict == SLOWER and " caldera " in f" {each.name} " for each in found)


def _changed(before: dict[str, Any], report: Report) -> dict[str, tuple[object, object]]:
    """Return the versions, sources and machine properties that differ from the earlier run."""
    now = report.to_json()
    pairs = {
        f"{part} {name}": (before.get(part, {}).get(name), now[part].get(name))
        for part in ("code", "versions", "machine")
        for name in now[part]
        if name not in ("time", "load before")
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


_LEAVE_OUT = "leave it out"
_ONLY_ON = {
    "accuracy": (_CPU, "--precision is enough there"),
    "without": (_CPU, _LEAVE_OUT),
    "workspace": (_CPU, _LEAVE_OUT),
    "settings": (_CARD, _LEAVE_OUT),
}
"""Flags valid for only one device, and advice for the device without them."""


def _options(arguments: argparse.Namespace) -> CaseOptions:
    device = NameOption("device", lambda: _DEVICES).from_text(arguments.device, "--device")
    for name in arguments.work:
        NameOption("work", lambda: WORKLOADS).from_text(name, "caldera bench")
        if device == _CARD and not WORKLOADS[name].is_training:
            raise ConfigError.build(
                "caldera bench --device cuda",
                got=name,
                expected="a network with a GPU benchmark: " + ", ".join(_networks()),
            )
    peers = ",".join(usual_peers(device)) if arguments.peers is None else arguments.peers
    threads = CountOption(1).optional(arguments.threads, "--threads") or settings.threads
    if threads > settings.threads:
        raise ConfigError.build(
            "--threads",
            expected=f"at most {settings.threads}, the cores this process may use",
            got=str(threads),
        )
    for name, (needed, hint) in _ONLY_ON.items():
        value = getattr(arguments, name)
        if value is not None and device != needed:
            raise ConfigError.build(
                f"--{name}", expected=f"--device {needed} with it", got=repr(value), hint=hint
            )
    limit = CountOption(1).optional(arguments.limit, "--limit")
    sizes = [] if arguments.workspace is None else arguments.workspace.split(",")
    return CaseOptions(
        works=list(dict.fromkeys(arguments.work)),
        peers=_names("peer", PEERS if device == _CARD else ALL_PEERS, peers or None, "--peers"),
        accuracies=_accuracies(arguments, device),
        threads=threads,
        repeats=CountOption(1).optional(arguments.repeats, "--repeats"),
        quick=arguments.quick,
        compile=not arguments.no_compile,
        test_accuracy=CountOption(1).optional(arguments.test_accuracy, "--test-accuracy") or 0,
        device=device,
        precisions=_precisions(arguments, device),
        settings=[each.strip() for each in (arguments.settings or "").split(",") if each.strip()],
        without=_names("pass", PASSES, arguments.without, "--without"),
        workspaces=list(
            dict.fromkeys(CountOption(0).from_text(each.strip(), "--workspace") for each in sizes)
        ),
        limit=limit or (_LIMIT if device == _CARD else None),
    )


def _networks() -> list[str]:
    return [name for name in WORKLOADS if WORKLOADS[name].is_training]


def _accuracies(arguments: argparse.Namespace, device: str) -> list[str]:
    if device == _CARD:
        return ["strict"]
    accuracy = NameOption("accuracy", lambda: (*ACCURACIES, _BOTH)).from_text(
        arguments.accuracy or _BOTH, "--accuracy"
    )
    return list(ACCURACIES) if accuracy == _BOTH else [accuracy]


def _precisions(arguments: argparse.Namespace, device: str) -> list[str]:
    known = PRECISIONS if device == _CARD else (REFERENCE_PRECISION, "bfloat16")
    others = [name for name in arguments.work if not WORKLOADS[name].is_training]
    if others and arguments.precision is not None:
        raise ConfigError.build(
            "--precision",
            expected="networks with it: " + ", ".join(_networks()),
            got=", ".join(others),
            hint="other workloads define their dtypes (see --list)",
        )
    return _names("precision", known, arguments.precision)


def _names(what: str, known: Iterable[str], text: str | None, flag: str = "") -> list[str]:
    """Return the different names of a flag; none if it is not given."""
    found = [] if text is None else Names(what, lambda: known).from_text(text, flag or f"--{what}")
    return list(dict.fromkeys(found))


def _target(arguments: argparse.Namespace, flag: str) -> Path | None:
    """Return the output path, checked before hours of measurement."""
    given = getattr(arguments, flag)
    if given is None:
        return None
    path = Path(given)
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError.build(
            f"--{flag}", expected="a file in a folder that exists", got=repr(given)
        )
    return path


def _json_text(report: Report) -> str:
    return json.dumps(report.to_json(), indent=1) + "\n"


def _print_list(options: CaseOptions) -> None:
    print("work")
    for name in WORKLOADS:
        work = WORKLOADS[name]
        if options.on_card and not work.is_training:
            continue
        count = f"  ({len(work.cases)} cases)" if len(work.cases) > 1 else ""
        text = work.description(options.device) + _precisions_text(name, options)
        print(f"  {name:<14}{text}{count}")
    print("peers")
    missing = missing_peers(options.peers or list(ALL_PEERS))
    for peer in options.peers or (PEERS if options.on_card else ALL_PEERS):
        state = f"missing: {INSTALL[peer]}" if peer in missing else "here"
        print(f"  {peer:<14}{state}")


def _precisions_text(name: str, options: CaseOptions) -> str:
    """Describe the precisions in which a workload is measured on a GPU."""
    case = WORKLOADS[name].cases[0]
    if not options.on_card or not isinstance(case, TrainingCase):
        return ""
    return f"; {', '.join(options.precisions_of(case))}"


COMMAND = Command(
    name="bench",
    takes="WORKLOADS ...",
    summary="Compare the speed of Caldera, PyTorch and JAX at equal results.",
    examples="""
        caldera bench --list
        caldera bench mlp --quick
        caldera bench mlp-depth lenet5 --peers torch,jax --html bench.html --json bench.json
        caldera bench conv --peers torch --accuracy strict --threads 2
        caldera bench training distributed --quick --json levels.json --mllog mlperf.log
        caldera bench --again levels.json
        caldera bench mlp resnet50 --device cuda --quick --html bench.html
        caldera bench resnet50 --device cuda --precision bfloat16 --settings caldera,channels_last
    """,
    add_flags=add_flags,
    run=run,
    order=55,
    words=lambda: WORKLOADS,
)
