"""`caldera summary`: every layer of a model with its shape, parameters, operations and memory."""

from __future__ import annotations

import argparse

from caldera.cli.command import Command
from caldera.cli.model_argument import add_model_argument, find_model
from caldera.cli.zoo import ZOO


def run(arguments: argparse.Namespace) -> int:
    """Print the summary."""
    find_model(arguments).summary()
    return 0


COMMAND = Command(
    name="summary",
    takes="[MODEL]",
    summary="Show each layer of a model: shape, parameters, FLOPs, memory, work and depth.",
    examples="""
        caldera summary lenet5
        caldera summary mlp --data digits --hidden 64,64
        caldera summary resnet50 --input-shape 3,64,64 --classes 200
        caldera summary out/digits.caldera
    """,
    add_flags=add_model_argument,
    run=run,
    order=40,
    words=lambda: ZOO,
)
