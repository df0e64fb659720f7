"""Export of a trained model as a library for C, C++ and Fortran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from caldera.base.arguments import require
from caldera.export.functions import KINDS, FunctionPlan, as_exported, check_model
from caldera.export.image import PlanImager
from caldera.export.interface import Argument, ExportedFunction, LibraryInterface, checked_name
from caldera.export.preprocessing import Preprocessing
from caldera.export.sources import Library
from caldera.export.tables import TargetImage
from caldera.export.weights import WeightTable
from caldera.kernels.native.codegen.compiler import object_file
from caldera.kernels.native.codegen.target import host_target
from caldera.train.model import Model

MOST_ROWS = 1 << 16
"""Largest number of rows for which code is made."""
CHECKED = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl")
"""Instruction sets whose absence a library reports when a handle is created."""


def c(
    model: Model,
    folder: str | PathLike[str],
    *,
    name: str = "",
    batch: Sequence[int] = (1, 32),
    threads: int = 1,
    vjp: bool = False,
    jvp: bool = False,
    step: bool = False,
    preprocessing: bool = True,
    build: bool = True,
) -> Path:
    """Write a trained model to a folder as a library for C; return the folder.

    The library contains machine code and weights, and needs neither Python nor a BLAS. `name` is
    the prefix of its functions, by default the name of the folder. `batch` are the numbers of rows
    for which code is made; together they compute any number of rows. `threads` is the number of
    threads of a handle. `vjp` and `jvp` add the adjoint and the tangent of each row: products with
    the Jacobian of `predict`, for sensitivities and data assimilation. `step` adds a training step
    of the model's loss and optimizer, for batches of these numbers of rows.

    A model of a table has a function that encodes rows of numbers and categories, and one with the
    names of classes. Other columns and texts are refused, unless `preprocessing` is False.

    Without `build`, or where no C compiler is installed, the folder has the sources and object
    files, from which CMake builds the library.

    >>> import tempfile
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = cd.export.c(model, folder, name="wing", build=False)
    ...     sorted(each.name for each in made.iterdir())
    ['CMakeLists.txt', 'example.c', ..., 'wing.h', 'wing.hpp', 'wing.pc']
    """
    target = Path(folder)
    name = checked_name(name or re.sub(r"\W", "_", target.absolute().name).lower())
    sizes = sorted({1, *batch})
    require(
        sizes[0] > 0 and sizes[-1] <= MOST_ROWS,
        "export",
        f"numbers of rows >= 1 and at most {MOST_ROWS}",
        repr(tuple(batch)),
        "larger numbers of rows are computed in batches of these sizes",
    )
    require(0 < threads <= 1024, "export", "threads >= 1 and at most 1024", threads)
    model.check_exportable("export")
    before = Preprocessing.of(model) if preprocessing else Preprocessing((), "", ())
    asked = ("vjp", vjp), ("jvp", jvp), ("step", step)
    names = ["predict", *(each for each, wanted in asked if wanted)]
    imager = PlanImager()
    with as_exported(threads):
        check_model(model, sizes[-1])
        plans = {}
        for each in names:
            of = sorted(set(batch)) if KINDS[each].is_whole else sizes
            plans[each] = dict(zip(of, map(KINDS[each].planner(model), of), strict=True))
        images = {
            each: [imager.image(plan, rows) for rows, plan in found.items()]
            for each, found in plans.items()
        }
        symbols = [f"{name}_native_k{i}" for i in range(len(imager.kernels.kernels))]
        code = object_file(dict(zip(symbols, imager.kernels.kernels, strict=True)))
    image = TargetImage("native", _condition(), images, len(symbols), code)
    functions = tuple(_function(each, next(iter(plans[each].values()))) for each in names)
    weights = WeightTable.of(model, imager.variables)
    interface = LibraryInterface(name, functions, before.declarations(name))
    library = Library(interface, image, weights, threads, before.source(name))
    library.write(target)
    if build:
        library.build(target)
    return target


def _function(name: str, plan: FunctionPlan) -> ExportedFunction:
    """Return the interface of a function; the only input of a network is x, its targets are y."""
    arguments = [
        Argument.of(each if f"{each[0]}1" in plan.inputs else each.replace("0", ""), spec)
        for each, spec in plan.inputs.items()
    ]
    outputs = zip(plan.outputs, plan.plan.optimised.outputs, strict=True)
    arguments += [Argument.of(each, node.spec, is_output=True) for each, node in outputs]
    return ExportedFunction(name, KINDS[name].about, tuple(arguments))


def _condition() -> str:
    """Return the body of the C function that checks the processor."""
    here = host_target().features.split(",")
    needed = [f'__builtin_cpu_supports("{each}")' for each in CHECKED if f"+{each}" in here]
    return f"    return {' && '.join(needed) or 1};\n"
