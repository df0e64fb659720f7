"""`caldera run`: a program as several processes, started again after a failure if wanted."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from caldera.cli.command import Command, flag, flags
from caldera.cli.option_types import CountOption
from caldera.comm.processes import LaunchCommand, launch

_ENDED_BY = (signal.SIGINT, signal.SIGTERM)
"""Who sends these wants the job to end, not to begin again."""


add_flags = flags(
    flag("-n", "--ranks", metavar="N", required=True, help="how many processes"),
    flag(
        "--restarts",
        metavar="N",
        default="0",
        help="start all of them again, up to N times, when one fails or is killed (default: 0); "
        "fit(..., checkpoint=, resume=True) goes on from the last checkpoint",
    ),
    flag("--hosts", metavar="A:N,B:N", help="machines and the processes each takes"),
    flag("--survive", action="store_true", help="let the others go on when one dies (Open MPI 5)"),
    flag("program", metavar="PROGRAM", help="a Python file, or another program"),
    flag("arguments", nargs=argparse.REMAINDER, help="what the program is given"),
)
"""The flags of `run`."""


def run(arguments: argparse.Namespace) -> int:
    """Start the program; its exit status."""
    ranks = CountOption(1).from_text(arguments.ranks, "--ranks")
    restarts = CountOption(0).from_text(arguments.restarts, "--restarts")
    job = launch(
        ranks,
        [arguments.program, *arguments.arguments],
        hosts=arguments.hosts,
        survive=arguments.survive,
    )
    wanted = [128 + number for number in _ENDED_BY]
    for attempt in range(restarts + 1):
        status = _started(job, attempt)
        if status == 0 or status in wanted or attempt == restarts:
            break
        print(
            f"caldera run: ended with status {status}; restart {attempt + 1} of {restarts}",
            file=sys.stderr,
        )
    return status


def _started(job: LaunchCommand, attempt: int) -> int:
    """Run all ranks once. What asks this process to end asks mpiexec, which ends its ranks."""
    process = job.start(attempt)
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _ENDED_BY}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        return 128 + asked[0]
    # A process that a signal has ended has its negative number; a shell adds it to 128.
    return 128 - status if status < 0 else status


COMMAND = Command(
    name="run",
    takes="-n N PROGRAM [ARGUMENTS]",
    summary="Run a program as several processes that train together.",
    examples="""
        caldera run -n 4 train.py
        caldera run -n 4 --restarts 3 train.py --epochs 10
        caldera run -n 8 --hosts a:4,b:4 train.py
    """,
    add_flags=add_flags,
    run=run,
    order=52,
)
