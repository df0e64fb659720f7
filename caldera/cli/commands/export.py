"""`caldera export`: a trained model as a library for C, C++ and Fortran."""

from __future__ import annotations

import argparse
from pathlib import Path

from caldera.cli.command import Command, flag, flags
from caldera.cli.option_types import CountOption, CountsOption
from caldera.export import c
from caldera.train.neural_network import load_model

add_flags = flags(
    flag("model", metavar="FILE.caldera", help="a model that `caldera train` wrote"),
    flag("--c", metavar="FOLDER", required=True, help="the folder of the library"),
    flag("--name", default="", help="the prefix of its functions (default: name of the model)"),
    flag(
        "--batch",
        default="1,32",
        metavar="N,N,...",
        help="batch sizes to compile separately (default: 1,32)",
    ),
    flag("--threads", default="1", metavar="N", help="threads of a handle (default: 1)"),
    flag(
        "--target",
        default="native",
        metavar="CPU,CPU,...",
        help="processors: native (this machine), x86-64-v2, x86-64-v3, x86-64-v4 or aarch64",
    ),
    flag("--vjp", action="store_true", help="add the adjoint: products with J^T, row by row"),
    flag("--jvp", action="store_true", help="add the tangent: products with J, row by row"),
    flag("--step", action="store_true", help="add a training step with the model's optimizer"),
    flag(
        "--no-preprocessing",
        action="store_true",
        help="export the network only, for inputs that are encoded elsewhere",
    ),
    flag(
        "--no-build",
        action="store_true",
        help="write sources and object files only, to be built with CMake",
    ),
)
"""The flags of `export`."""


def run(arguments: argparse.Namespace) -> int:
    """Export the model."""
    path = Path(arguments.model)
    folder = c(
        load_model(path),
        arguments.c,
        name=arguments.name or path.stem.lower().replace("-", "_"),
        batch=CountsOption().from_text(arguments.batch, "--batch"),
        threads=CountOption(1).from_text(arguments.threads, "--threads"),
        target=arguments.target.split(","),
        vjp=arguments.vjp,
        jvp=arguments.jvp,
        step=arguments.step,
        preprocessing=not arguments.no_preprocessing,
        build=not arguments.no_build,
    )
    for each in sorted(folder.iterdir()):
        print(f"wrote   {each}")
    return 0


COMMAND = Command(
    name="export",
    takes="FILE.caldera",
    summary="Export a trained model as a library for C, C++ and Fortran that needs no Python.",
    examples="""
        caldera export out/wing.caldera --c wing/
        caldera export out/wing.caldera --c wing/ --batch 1,32 --threads 4
        caldera export out/wing.caldera --c wing/ --target x86-64-v3,x86-64-v4
        caldera export out/wing.caldera --c wing/ --vjp --jvp
    """,
    add_flags=add_flags,
    run=run,
    order=36,
)
