"""Export of a trained model as a library for C, C++ and Fortran."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from caldera.base.arguments import require
from caldera.export.functions import KINDS, NATIVE, FunctionPlan, as_exported, check_model
from caldera.export.image import PlanImager, VariableLayout
from caldera.export.interface import Argument, ExportedFunction, LibraryInterface, checked_name
from caldera.export.preprocessing import Preprocessing
from caldera.export.sources import Library
from caldera.export.tables import TargetImage, label
from caldera.export.weights import WeightTable
from caldera.kernels.native.codegen.compiler import object_file
from caldera.kernels.native.codegen.target import TARGETS, host_target
from caldera.train.model import Model

MOST_ROWS = 1 << 16
"""Largest number of rows for which code is made."""
CHECKED = (
    *("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "bmi", "bmi2"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi"),
    *("avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "gfni"),
)
"""Instruction sets, by their names in C, that a processor must have for code that may use them."""


def c(
    model: Model,
    folder: str | PathLike[str],
    *,
    name: str = "",
    batch: Sequence[int] = (1, 32),
    threads: int = 1,
    target: str | Sequence[str] = NATIVE,
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
    threads of a handle. `target` are the processors that code is made for, of which each process
    takes the best: "native", this machine, or "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64".
    `vjp` and `jvp` add the adjoint and the tangent of each row: products with
    the Jacobian of `predict`, for sensitivities and data assimilation. `step` adds a training step
    of the model's loss and optimizer, for batches of these numbers of rows.

    A model of a table has a function that encodes rows of numbers and categories, and one with the
    names of classes. Other columns and texts are refused, unless `preprocessing` is False.
    Refused are also networks that mix the rows of a batch, as a softmax along axis 0 does.

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
    made = Path(folder)
    name = checked_name(name or re.sub(r"\W", "_", made.absolute().name).lower())
    sizes = sorted({1, *batch})
    require(
        sizes[0] > 0 and sizes[-1] <= MOST_ROWS,
        "export",
        f"numbers of rows >= 1 and at most {MOST_ROWS}",
        repr(tuple(batch)),
        "larger numbers of rows are computed in batches of these sizes",
    )
    require(0 < threads <= 1024, "export", "threads >= 1 and at most 1024", threads)
    targets = _targets([target] if isinstance(target, str) else target)
    model.check_exportable("export")
    before = Preprocessing.of(model) if preprocessing else Preprocessing((), "", ())
    asked = ("vjp", vjp), ("jvp", jvp), ("step", step)
    names = ["predict", *(each for each, wanted in asked if wanted)]
    with as_exported(threads):
        check_model(model, sizes[-1])
    variables, images = VariableLayout(), []
    planners = {each: KINDS[each].planner(model) for each in names}
    for each in targets:
        with as_exported(threads, each):
            plans = {
                function: {
                    rows: planner(rows)
                    for rows in (sorted(set(batch)) if KINDS[function].is_whole else sizes)
                }
                for function, planner in planners.items()
            }
            images.append(_image(f"{name}_{label(each)}", each, plans, variables))
    functions = tuple(_function(each, next(iter(found.values()))) for each, found in plans.items())
    weights = WeightTable.of(model, variables)
    interface = LibraryInterface(name, functions, before.declarations(name))
    library = Library(interface, images, weights, threads, before)
    library.write(made)
    # Without a cross compiler this machine has none for another architecture.
    if build and (_family(targets[0]) == _family(NATIVE) or os.environ.get("CC")):
        library.build(made)
    return made


def _function(name: str, plan: FunctionPlan) -> ExportedFunction:
    """Return the interface of a function; the only input of a network is x, its targets are y."""
    arguments = [
        Argument.of(each if f"{each[0]}1" in plan.inputs else each.replace("0", ""), spec)
        for each, spec in plan.inputs.items()
    ]
    outputs = zip(plan.outputs, plan.plan.optimised.outputs, strict=True)
    arguments += [Argument.of(each, node.spec, is_output=True) for each, node in outputs]
    return ExportedFunction(name, KINDS[name].about, tuple(arguments))


def _image(
    prefix: str,
    target: str,
    plans: Mapping[str, Mapping[int, FunctionPlan]],
    variables: VariableLayout,
) -> TargetImage:
    """Return the image of all plans for a target, with kernels whose names begin with `prefix`."""
    imager = PlanImager(variables)
    images = {
        name: [imager.image(plan, rows) for rows, plan in found.items()]
        for name, found in plans.items()
    }
    symbols = [f"{prefix}_k{i}" for i in range(len(imager.kernels.kernels))]
    code = object_file(dict(zip(symbols, imager.kernels.kernels, strict=True)))
    return TargetImage(target, _condition(), images, len(symbols), code)


def _targets(given: Sequence[str]) -> list[str]:
    """Return the targets, the best first; all must have the same architecture."""
    known = [NATIVE, *TARGETS]
    names = [each for each in known if each in given]
    unknown = [each for each in given if each not in known]
    hint = "one library has code for processors of one architecture"
    require(
        names and not unknown,
        "export",
        "targets among " + ", ".join(known),
        ", ".join(unknown) or "none",
    )
    families = {_family(each) for each in names}
    require(len(families) == 1, "export", "targets of one architecture", ", ".join(names), hint)
    return names


def _family(target: str) -> str:
    found = TARGETS.get(target) or host_target()
    return found.triple.partition("-")[0]


def _condition() -> str:
    """Return the body of the C function that checks the processor."""
    here = host_target()
    features = here.features.split(",") if here.triple.startswith(("x86_64", "i686")) else []
    needed = [f'__builtin_cpu_supports("{each}")' for each in CHECKED if f"+{each}" in features]
    return f"    return {' && '.join(needed) or 1};\n"
