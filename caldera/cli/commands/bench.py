"""`caldera bench`: times beside those of other frameworks, with equal results."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from caldera.bench.contestants import ACCURACIES, INSTALL, PEERS, missing_peers
from caldera.bench.page import page
from caldera.bench.results import Report
from caldera.bench.session import Options, Session
from caldera.bench.table import print_report
from caldera.bench.work import WORK
from caldera.cli.command import Command
from caldera.cli.values import Choice, Count, Names
from caldera.config import settings
from caldera.errors import ConfigError

_DEVICES = ("cpu",)
_BOTH = "both"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench`."""
    parser.add_argument("work", nargs="*", metavar="WORK", help="what to measure; see --list")
    parser.add_argument(
        "--peers",
        metavar="NAME,...",
        default=",".join(PEERS),
        help=f"whom to compare with (default: {','.join(PEERS)}; '' for nobody)",
    )
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu (the default)")
    parser.add_argument("--threads", metavar="N", help="threads of each framework (default: all)")
    parser.add_argument("--repeats", metavar="N", help="turns of each (default: 7; 3 with --quick)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, turns and checks")
    parser.add_argument(
        "--no-compile",
        action="store_true",
        help="leave out torch.compile, which takes minutes for each large network",
    )
    parser.add_argument(
        "--accuracy",
        metavar="NAME",
        default=_BOTH,
        help="strict, fast or both (the default): whether Caldera may use less accurate kernels",
    )
    parser.add_argument(
        "--test-accuracy",
        metavar="EPOCHS",
        help="also train mlp, lenet5 and resnet20 on real data, and test them",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything to this file")
    parser.add_argument("--html", metavar="FILE", help="write a page with figures to this file")
    parser.add_argument("--list", action="store_true", help="say what can be measured, and by whom")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; 1 if Caldera itself failed somewhere."""
    options = _options(arguments)
    targets = [_target(arguments, flag) for flag in ("json", "html")]
    if arguments.list:
        _print_list(options)
        return 0
    if not options.works:
        raise ConfigError.build(
            "caldera bench", expected="what to measure", got="nothing",
            hint="for example: caldera bench mlp; caldera bench --list names all work",
        )  # fmt: skip
    kept = [
        (target, text)
        for target, text in zip(targets, (_json_text, page), strict=True)
        if target is not None
    ]

    def keep(report: Report) -> None:
        # After each work: what was measured is not lost when a long run is stopped.
        for target, text in kept:
            target.write_text(text(report), encoding="utf-8")

    report = Session(options, _tell).run(keep)
    print_report(report)
    for target, _ in kept:
        print(f"wrote {target}")
    failed = any(entry.error for entry in report.entries if entry.framework == "caldera")
    return 1 if failed else 0


def _options(arguments: argparse.Namespace) -> Options:
    for name in arguments.work:
        Choice("work", lambda: WORK).from_text(name, "caldera bench")
    peers: list[str] = []
    if arguments.peers:
        peers = Names("peer", lambda: PEERS).from_text(arguments.peers, "--peers")
    Choice("device", lambda: _DEVICES).from_text(arguments.device, "--device")
    accuracy = Choice("accuracy", lambda: (*ACCURACIES, _BOTH)).from_text(
        arguments.accuracy, "--accuracy"
    )
    threads = settings.threads
    if arguments.threads is not None:
        threads = Count(1).from_text(arguments.threads, "--threads")
    if threads > settings.threads:
        raise ConfigError.build(
            "--threads", expected=f"at most {settings.threads}, the cores this process may use",
            got=str(threads),
        )  # fmt: skip
    return Options(
        works=list(dict.fromkeys(arguments.work)),
        peers=list(dict.fromkeys(peers)),
        accuracies=list(ACCURACIES) if accuracy == _BOTH else [accuracy],
        threads=threads,
        repeats=_count(arguments.repeats, "--repeats"),
        quick=arguments.quick,
        compile=not arguments.no_compile,
        test_accuracy=_count(arguments.test_accuracy, "--test-accuracy") or 0,
        device=arguments.device,
    )


def _count(text: str | None, flag: str) -> int | None:
    return None if text is None else Count(1).from_text(text, flag)


def _target(arguments: argparse.Namespace, flag: str) -> Path | None:
    """Where to write, looked at before hours are spent on measuring."""
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


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_list(options: Options) -> None:
    print("work")
    for name in WORK:
        work = WORK[name]
        count = f"  ({len(work.cases)} cases)" if len(work.cases) > 1 else ""
        print(f"  {name:<14}{work.summary}{count}")
    print("peers")
    missing = missing_peers(options.peers or list(PEERS))
    for peer in options.peers or PEERS:
        state = f"missing: {INSTALL[peer]}" if peer in missing else "here"
        print(f"  {peer:<14}{state}")


COMMAND = Command(
    name="bench",
    takes="WORK ...",
    summary="Measure Caldera beside PyTorch, JAX and TensorFlow, with equal results.",
    examples="""
        caldera bench --list
        caldera bench mlp --quick
        caldera bench mlp-depth lenet5 --peers torch,jax --html bench.html --json bench.json
        caldera bench conv --peers torch --accuracy strict --threads 2
    """,
    add_flags=add_flags,
    run=run,
    order=55,
)
