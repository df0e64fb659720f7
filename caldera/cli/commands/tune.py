"""`caldera tune`: measure every kernel that a model's training step could use, and remember it."""

from __future__ import annotations

import argparse
from time import perf_counter

from caldera.base.config import settings
from caldera.base.formatting import seconds_text
from caldera.cli.command import Command, flag, flags
from caldera.cli.model_argument import add_model_argument, find_model
from caldera.cli.option_types import CountOption
from caldera.cli.zoo import ZOO
from caldera.kernels.tuning.choose import choices
from caldera.train.step import StepPlans
from caldera.train.strategy import SingleProcessStrategy

add_flags = flags(
    flag(
        "--seconds",
        default="120",
        metavar="N",
        help="time limit of measuring, in seconds (default: 120)",
    ),
    add_model_argument,
)
"""The flags of `tune`."""


def run(arguments: argparse.Namespace) -> int:
    """Measure the kernels and print the results."""
    seconds = CountOption(1).from_text(arguments.seconds, "--seconds")
    model = find_model(arguments)
    before = len(choices.known())
    start = perf_counter()
    with settings.override(tune_budget_s=float(seconds)), choices.exhaustive():
        steps = StepPlans(
            model, model.objective, model.optimizer, model.metrics, SingleProcessStrategy()
        )
        plan = steps.training(model.batch_size)
        sources = [row.source for row in plan.explain(time=False).rows]
    print(
        f"measured  {len(choices.known()) - before} nodes in {seconds_text(perf_counter() - start)}"
    )
    print(f"kept      in {settings.cache_dir}")
    noisy = sources.count("provisional")
    if noisy:
        print(f"busy      {noisy} steps were measured while others computed: run it again later")
    left = sources.count("guess")
    if left:
        print(f"left      {left} steps are too small to be measured, or --seconds were used up")
    return 0


COMMAND = Command(
    name="tune",
    takes="[MODEL]",
    summary="Measure every kernel that a training step could use, and store the times.",
    examples="""
        caldera tune lenet5
        caldera tune resnet50 --batch-size 16 --seconds 300
        caldera tune out/digits.caldera
    """,
    add_flags=add_flags,
    run=run,
    order=51,
    words=lambda: ZOO,
)
