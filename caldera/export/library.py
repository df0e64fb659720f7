"""Export of a trained model as a library for C, C++ and Fortran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Spec
from caldera.errors import ConfigError
from caldera.export.image import PlanImage, PlanImager
from caldera.export.interface import Argument, ExportedFunction, LibraryInterface, checked_name
from caldera.export.rows import check_rows
from caldera.export.sources import Library
from caldera.export.tables import TargetImage
from caldera.kernels.native.codegen.compiler import object_file
from caldera.kernels.native.codegen.matrix_multiply import standalone
from caldera.kernels.native.codegen.target import host_target
from caldera.train.model import Model
from caldera.train.step_graph import main_output

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
    build: bool = True,
) -> Path:
    """Write a trained model to a folder as a library for C; return the folder.

    The library contains machine code and weights, and needs neither Python nor a BLAS. `name` is
    the prefix of its functions, by default the name of the folder. `batch` are the numbers of rows
    for which code is made; together they compute any number of rows. `threads` is the number of
    threads of a handle. Without `build`, or where no C compiler is installed, the folder has the
    sources and object files, from which CMake builds the library.

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
    imager = PlanImager()
    with as_exported(threads):
        plans = [(*predict_plan(model, rows), rows) for rows in sizes]
        trial = plans[-1] if len(plans) > 1 else predict_plan(model, 2)
        check_rows(*trial[:2], partial(prediction_of, model))
        images = [imager.image(plan, rows, inputs) for plan, inputs, rows in plans]
        symbols = [f"{name}_native_k{i}" for i in range(len(imager.kernels.kernels))]
        code = object_file(dict(zip(symbols, imager.kernels.kernels, strict=True)))
    image = TargetImage("native", _condition(), {"predict": images}, len(symbols), code)
    about = "Compute the outputs of any number of rows."
    predict = ExportedFunction("predict", about, _arguments(images[0]))
    weights = bytearray(imager.variables.nbytes)
    for symbol, offset in imager.variables.offsets.items():
        content = symbol.value.numpy().tobytes()
        weights[offset : offset + len(content)] = content
    library = Library(LibraryInterface(name, (predict,)), image, bytes(weights), threads)
    library.write(target)
    if build:
        library.build(target)
    return target


def _arguments(image: PlanImage) -> tuple[Argument, ...]:
    names = ["x"] if len(image.inputs) == 1 else [each.name for each in image.inputs]
    pairs = zip(names, image.inputs, strict=True)
    inputs = [Argument.of(name, each.spec) for name, each in pairs]
    return (*inputs, *(Argument.of("y", each.spec, is_output=True) for each in image.outputs))


@contextmanager
def as_exported(threads: int) -> Iterator[None]:
    """Context in which plans are compiled, bound and run as they are exported."""
    with standalone(), settings.override(threads=threads):
        yield


def prediction_of(model: Model, rows: int) -> tuple[list[Expr], Expr]:
    """Return the inputs of a model for a number of samples, and its main output."""
    inputs, outputs, traced = model.expressions(rows)
    require(
        not traced.updates,
        "export",
        "a network that changes no variables when it predicts",
        ", ".join(each.node.inputs[0].attrs["symbol"].name for each in traced.updates),
        "run this model with Caldera",
    )
    return inputs, main_output(outputs, model.objective)[1]


def predict_plan(model: Model, rows: int) -> tuple[Plan, Mapping[str, Spec]]:
    """Return the plan that predicts for a number of samples, and the inputs of its caller."""
    inputs, prediction = prediction_of(model, rows)
    require(
        prediction.shape and prediction.shape[0] == rows,
        "export",
        f"an output with a row for each of {rows} samples",
        f"shape {prediction.shape}",
    )
    plan = compile([prediction], device="cpu", precision=model.precision, remember=False)
    if not isinstance(plan, Plan):
        raise ConfigError.build(
            "export",
            expected="a model on the CPU",
            got="layers on several devices",
            hint='move it with model.to("cpu")',
        )
    return plan, {each.node.attrs["symbol"].name: each.node.spec for each in inputs}


def _condition() -> str:
    """Return the body of the C function that checks the processor."""
    here = host_target().features.split(",")
    needed = [f'__builtin_cpu_supports("{each}")' for each in CHECKED if f"+{each}" in here]
    return f"    return {' && '.join(needed) or 1};\n"
