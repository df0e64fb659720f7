"""Export of a trained model as a library for C, C++ and Fortran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path

from caldera.base.arguments import require
from caldera.base.file_cache import write_file
from caldera.export.build import build_library
from caldera.export.examples import c_example
from caldera.export.image import PlanImager
from caldera.export.interface import Argument, LibraryFunction, LibraryInterface, checked_name
from caldera.export.programs import PREDICT, as_exported, predict_program
from caldera.export.tables import TargetImage, image_source
from caldera.kernels.native.codegen.compiler import object_file
from caldera.train.model import Model


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
    ['example.c', 'source', 'wing.h']
    """
    target = Path(folder)
    name = checked_name(name or re.sub(r"\W", "_", target.absolute().name).lower())
    sizes = sorted({1, *batch})
    require(sizes[0] > 0, "export", "numbers of rows >= 1", repr(tuple(batch)))
    require(threads > 0, "export", "threads >= 1", threads)
    source = target / "source"
    source.mkdir(parents=True, exist_ok=True)
    imager = PlanImager()
    with as_exported(threads):
        programs = [predict_program(model, rows) for rows in sizes]
        images = [imager.image(each.plan, each.rows, each.inputs) for each in programs]
        symbols = [f"{name}_native_k{i}" for i in range(len(imager.kernels.kernels))]
        code = object_file(dict(zip(symbols, imager.kernels.kernels, strict=True)))
    image = TargetImage("native", "    return 1;\n", {PREDICT: images}, len(symbols), code)
    first = images[0]
    arguments = [Argument.of(_public(each.name, first), each.spec) for each in first.inputs]
    arguments += [Argument.of("y", each.spec, is_output=True) for each in first.outputs]
    interface = LibraryInterface(
        name,
        (LibraryFunction(PREDICT, "Compute the outputs of any number of rows.", tuple(arguments)),),
    )
    weights = bytearray(imager.variables.nbytes)
    for symbol, offset in imager.variables.offsets.items():
        content = symbol.value.numpy().tobytes()
        weights[offset : offset + len(content)] = content
    write_file(target / f"{name}.h", interface.header())
    write_file(target / "example.c", c_example(interface))
    _write_sources(source, interface, [image], bytes(weights), threads)
    if build:
        build_library(target, name)
    return target


def _public(name: str, image: object) -> str:
    inputs = getattr(image, "inputs", [])
    return "x" if len(inputs) == 1 else name


def _write_sources(
    source: Path,
    interface: LibraryInterface,
    images: Sequence[TargetImage],
    weights: bytes,
    threads: int,
) -> None:
    name = interface.name
    data = {f"{name}_variables": weights}
    names = []
    for image in images:
        label = f"{name}_{re.sub(r'[^0-9a-z]', '_', image.target)}"
        names.append(label)
        data[f"{label}_own"] = image.own
        write_file(source / f"{label}.c", image_source(image, label))
        write_file(source / f"{label}_kernels.o", image.code)
    for symbol, content in data.items():
        write_file(source / f"{symbol}.bin", content or bytes(64))
    write_file(source / f"{name}_data.S", "".join(map(_data, data)) + _NO_STACK)
    write_file(source / "runtime.h", _runtime("runtime.h", name))
    parts = [f'#include "../{name}.h"\n#include "runtime.h"\n']
    parts += [f"extern const image_t {label}_image;" for label in names]
    listed = ", ".join(f"&{label}_image" for label in names)
    parts += [f"static const image_t *const IMAGES[] = {{{listed}, 0}};"]
    parts += [f"extern const unsigned char {name}_variables[];"]
    parts += [f"#define VARIABLE_BYTES ((int64_t){len(weights)})", f"#define THREADS {threads}\n"]
    parts += [_runtime("runtime.c", name), interface.bodies()]
    write_file(source / f"{name}.c", "\n".join(parts))


_NO_STACK = '    .section .note.GNU-stack,"",%progbits\n'


def _data(symbol: str) -> str:
    return (
        f"    .section .rodata\n    .balign 64\n    .globl {symbol}\n    .hidden {symbol}\n"
        f'{symbol}:\n    .incbin "{symbol}.bin"\n    .byte 0\n'
    )


def _runtime(file: str, name: str) -> str:
    return (files("caldera.export") / "runtime" / file).read_text().replace("MODEL", name)
