"""`caldera graph`: a picture of a model's training step, before and after optimisation."""

from __future__ import annotations

import argparse
from pathlib import Path

from caldera.cli.command import Command, flag, flags
from caldera.cli.model_argument import add_model_argument, find_model
from caldera.cli.zoo import ZOO
from caldera.errors import ConfigError
from caldera.train.model import Model
from caldera.train.step import StepPlans
from caldera.train.strategy import SingleProcessStrategy

add_flags = flags(
    flag(
        "--out",
        default="graph.svg",
        metavar="FILE.svg",
        help="output file (default: graph.svg)",
    ),
    add_model_argument,
)
"""The flags of `graph`."""


def run(arguments: argparse.Namespace) -> int:
    """Write the picture."""
    print(f"wrote   {draw_training_step(find_model(arguments), Path(arguments.out))}")
    return 0


def draw_training_step(model: Model, path: Path) -> Path:
    """Write the SVG of a training step (forward, loss, gradients, updates); return its path."""
    if path.suffix.lower() != ".svg":
        raise ConfigError.build("graph", expected="a file that ends in .svg", got=str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = StepPlans(
        model, model.objective, model.optimizer, model.metrics, SingleProcessStrategy()
    )
    steps.training(model.batch_size).draw(path)
    return path


COMMAND = Command(
    name="graph",
    takes="[MODEL]",
    summary="Draw the training step of a model as SVG, before and after compilation.",
    examples="""
        caldera graph lenet5 --out lenet5.svg
        caldera graph mlp --data digits --optimizer sgd --momentum 0.9 --precision bfloat16
        caldera graph out/digits.caldera
    """,
    add_flags=add_flags,
    run=run,
    order=50,
    words=lambda: ZOO,
)
