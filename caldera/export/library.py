"""Export of a trained model as a library for C, C++ and Fortran."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from os import PathLike
from pathlib import Path

from caldera.base.arguments import require
from caldera.base.children import run_program
from caldera.base.config import settings
from caldera.base.file_cache import write_file
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Spec
from caldera.errors import ConfigError
from caldera.export.image import PlanImager
from caldera.export.interface import Argument, LibraryInterface, checked_name
from caldera.export.rows import check_rows
from caldera.export.tables import TargetImage, image_source
from caldera.kernels.native.codegen.compiler import object_file
from caldera.kernels.native.codegen.matrix_multiply import standalone
from caldera.kernels.native.codegen.target import host_target
from caldera.train.model import Model
from caldera.train.step_graph import main_output

MOST_ROWS = 1 << 16
"""Largest number of rows for which code is made."""
COMPILE_S = 600.0
"""Seconds for one run of the C compiler."""
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden")
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
    ['CMakeLists.txt', 'example.c', 'source', 'wing.h']
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
    image = TargetImage("native", _condition(), images, len(symbols), code)
    ports = images[0].inputs
    names = ["x"] if len(ports) == 1 else [each.name for each in ports]
    arguments = [Argument.of(*each) for each in zip(names, (p.spec for p in ports), strict=True)]
    arguments += [Argument.of("y", each.spec, is_output=True) for each in images[0].outputs]
    interface = LibraryInterface(name, tuple(arguments))
    weights = bytearray(imager.variables.nbytes)
    for symbol, offset in imager.variables.offsets.items():
        content = symbol.value.numpy().tobytes()
        weights[offset : offset + len(content)] = content
    check_folder(target, name)
    source = target / "source"
    source.mkdir(parents=True, exist_ok=True)
    write_file(target / f"{name}.h", interface.header())
    write_file(target / "example.c", interface.example())
    write_file(target / "CMakeLists.txt", _CMAKE.replace("MODEL", name))
    _write_sources(source, interface, image, bytes(weights), threads)
    if build:
        _build(target, name)
    return target


def check_folder(folder: Path, name: str) -> None:
    """Raise an error if a folder has a project of another name, whose files would be replaced."""
    project = folder / "CMakeLists.txt"
    known = re.search(r"^project\((\S+)", project.read_text(), re.M) if project.is_file() else None
    require(
        not project.exists() or (known is not None and known[1] == name),
        "export",
        f"a folder without other projects for {name}",
        f"{project} of {known[1] if known else 'another project'}",
        "export every library to a folder of its own",
    )


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


def _write_sources(
    source: Path, interface: LibraryInterface, image: TargetImage, weights: bytes, threads: int
) -> None:
    name = interface.name
    label = f"{name}_{image.target}"
    write_file(source / f"{label}.c", image_source(image, label))
    write_file(source / f"{label}_kernels.o", image.code)
    data = {f"{name}_variables": weights, f"{label}_own": image.own}
    for symbol, content in data.items():
        write_file(source / f"{symbol}.bin", content or bytes(64))
    write_file(source / f"{name}_data.S", "".join(map(_data, data)) + _NO_STACK)
    write_file(source / "runtime.h", _runtime("runtime.h", name))
    parts = [
        f'#include "../{name}.h"\n#include "runtime.h"\n',
        f"extern const image_t {label}_image;",
        f"#define {name}_image {label}_image",
        f"extern const unsigned char {name}_variables[];",
        f"#define VARIABLE_BYTES ((int64_t){len(weights)})",
        f"#define THREADS {threads}\n",
        _runtime("runtime.c", name),
        interface.body(),
    ]
    write_file(source / f"{name}.c", "\n".join(parts))


_NO_STACK = '    .section .note.GNU-stack,"",%progbits\n'


def _data(symbol: str) -> str:
    return (
        f"    .section .rodata\n    .balign 64\n    .globl {symbol}\n    .hidden {symbol}\n"
        f'{symbol}:\n    .incbin "{symbol}.bin"\n    .byte 0\n'
    )


def _runtime(file: str, name: str) -> str:
    return (files("caldera.export") / "runtime" / file).read_text().replace("MODEL", name)


_CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project(MODEL C ASM)
add_library(MODEL source/MODEL.c source/MODEL_native.c source/MODEL_data.S
            source/MODEL_native_kernels.o)
target_include_directories(MODEL PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
set_target_properties(MODEL PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden
                      POSITION_INDEPENDENT_CODE ON)
set_source_files_properties(source/MODEL_data.S PROPERTIES COMPILE_OPTIONS
                            "-Xassembler;-I${CMAKE_CURRENT_SOURCE_DIR}/source")
target_link_libraries(MODEL m pthread)
"""


def _build(folder: Path, name: str) -> None:
    """Compile the sources to a static and a shared library, if a C compiler is installed."""
    command = shlex.split(os.environ.get("CC") or "cc")
    archiver = shutil.which("ar")
    if shutil.which(command[0]) is None or archiver is None:
        return
    source = folder / "source"
    kernels, made = str(source / f"{name}_native_kernels.o"), []
    for file in (f"{name}.c", f"{name}_native.c", f"{name}_data.S"):
        made.append(str((source / file).with_suffix(".o")))
        # The assembler finds the files of weights in this folder.
        options = (*FLAGS, "-Xassembler", f"-I{source}", "-c", str(source / file))
        _run(*command, *options, "-o", made[-1])
    static, shared = folder / f"lib{name}.a", folder / f"lib{name}.so"
    static.unlink(missing_ok=True)
    _run(archiver, "rcs", str(static), kernels, *made)
    linked = ["-shared", "-Wl,-z,defs", kernels, *made, "-lm", "-lpthread"]
    _run(*command, *linked, f"-Wl,-soname,{shared.name}", "-o", str(shared))
    for each in made:
        Path(each).unlink()


def _run(*command: str) -> None:
    done = run_program(*command, seconds=COMPILE_S)
    if done is None or done.returncode:
        raise ConfigError.build(
            "export",
            expected=f"{Path(command[0]).name} to build the library",
            got="no end" if done is None else done.stderr.decode(errors="replace")[:2000],
            hint="pass build=False, and build the folder with CMake",
        )
