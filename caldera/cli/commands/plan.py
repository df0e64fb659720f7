"""`caldera plan`: what training a model on many ranks would cost, in every way there is."""

from __future__ import annotations

import argparse
from pathlib import Path

from caldera.base.file_cache import write_file
from caldera.cli.command import Command, UsageError, flag, flags, group
from caldera.cli.model_argument import add_model_argument, find_model
from caldera.cli.option_types import CountOption
from caldera.cli.zoo import ZOO
from caldera.comm import world
from caldera.parallel.planner import plan
from caldera.parallel.planner.report import plan_page

_PICTURES = (".svg", ".html", ".htm")


add_flags = flags(
    group(
        "ranks",
        flag("--ranks", metavar="N", required=True, help="number of processes"),
        flag(
            "--link",
            metavar="RATE",
            help="between machines: 100Gb (bits), 12.5GB (bytes a second); without it, measured "
            "between the processes that mpiexec started",
        ),
        flag("--latency", metavar="TIME", default="2us", help="of a message (default: 2us)"),
        flag("--memory", metavar="BYTES", help="memory limit of a rank, such as 80GB or 16GiB"),
        flag(
            "--ranks-per-node",
            metavar="N",
            default="1",
            help="ranks of a machine, which share its link and its cores (default: 1)",
        ),
        flag("--inside", metavar="RATE", help="link between ranks of a single machine"),
        flag(
            "--batch-per-rank",
            metavar="N",
            help="samples of a rank for weak scaling (default: --batch-size)",
        ),
        flag(
            "--speed",
            metavar="FLOPS",
            help="operations a second of a rank, as 30T; without it the model is timed here",
        ),
        flag(
            "--every",
            metavar="N",
            default="8",
            help="steps between exchanges of local SGD and elastic averaging (default: 8)",
        ),
        flag(
            "--inexact",
            action="store_true",
            help="recommend also strategies whose results may differ from training in one process",
        ),
        flag(
            "--plot",
            metavar="FILE.html|svg",
            default="plan.html",
            help="file for the charts over the ranks (default: plan.html)",
        ),
    ),
    add_model_argument,
)
"""Flags of `plan` and of the model's shape."""


def run(arguments: argparse.Namespace) -> int:
    """Print the tables with their conclusions; write the charts."""
    target = Path(arguments.plot)
    if target.suffix.lower() not in _PICTURES:
        raise UsageError.build(
            "--plot", expected="a file that ends in .html or .svg", got=str(target)
        )
    proposal = plan(
        find_model(arguments),
        ranks=CountOption(1).from_text(arguments.ranks, "--ranks"),
        link=arguments.link,
        latency=arguments.latency,
        memory=arguments.memory,
        batch_per_rank=CountOption(1).optional(arguments.batch_per_rank, "--batch-per-rank"),
        ranks_per_node=CountOption(1).from_text(arguments.ranks_per_node, "--ranks-per-node"),
        inside=arguments.inside,
        speed=arguments.speed,
        exact=not arguments.inexact,
        every=CountOption(1).from_text(arguments.every, "--every"),
    )
    # All ranks measure, and rank 0 prints.
    if world().rank == 0:
        print(proposal)
        if target.suffix.lower() == ".svg":
            proposal.plot(target)
        else:
            write_file(target, plan_page(proposal, arguments.subject))
        print(f"wrote   {target}")
    return 0


COMMAND = Command(
    name="plan",
    takes="[MODEL] --ranks N --link RATE",
    summary="Predict the cost of each parallel strategy on many ranks, and recommend one.",
    examples="""
        caldera plan --ranks 1024 --link 100Gb
        caldera plan resnet50 --ranks 1024 --link 100Gb --batch-size 4096 --speed 30T
        caldera plan lenet5 --ranks 16 --link 1Gb --latency 50us --plot plan.html
        caldera plan vgg16 --ranks 64 --link 25GB --memory 16GB --ranks-per-node 8 --inside 300GB
        mpiexec -n 2 caldera plan mlp --data digits --ranks 8
    """,
    add_flags=add_flags,
    run=run,
    order=54,
    words=lambda: ZOO,
)
