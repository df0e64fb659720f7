"""The files of a library: sources, object code, and projects for build systems."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caldera.base.arguments import require
from caldera.base.children import run_program
from caldera.base.file_cache import write_file
from caldera.errors import ConfigError
from caldera.export.bindings import cpp_header, fortran_module, template
from caldera.export.examples import c_example, cpp_example, fortran_example
from caldera.export.interface import LibraryInterface
from caldera.export.preprocessing import Preprocessing
from caldera.export.tables import TargetImage, image_source, label
from caldera.export.weights import WeightTable

COMPILE_S = 600.0
"""Seconds for one run of the C compiler."""
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden")


@dataclass(frozen=True)
class Library:
    """A library to be written to a folder."""

    interface: LibraryInterface
    images: Sequence[TargetImage]
    weights: WeightTable
    threads: int
    preprocessing: Preprocessing

    def write(self, folder: Path) -> None:
        """Write all files that need no compiler."""
        name = self.interface.name
        check_folder(folder, name)
        (folder / "source").mkdir(parents=True, exist_ok=True)
        files = [f"source/{each}" for each in (*self._sources(), *self._objects())]
        marks = {"SOURCES": "\n            ".join(files)}
        texts = {
            f"{name}.h": self.interface.header(),
            f"{name}.hpp": cpp_header(self.interface, self.preprocessing.cpp(name)),
            f"{name}.f90": fortran_module(self.interface, self.preprocessing.fortran(name)),
            "example.c": c_example(self.interface),
            "example.cpp": cpp_example(self.interface),
            "example.f90": fortran_example(self.interface),
            **{each.replace("MODEL", name): template(each, name, **marks) for each in _PROJECTS},
        }
        for file, text in texts.items():
            write_file(folder / file, text)
        self._write_sources(folder / "source")

    @property
    def _labels(self) -> list[str]:
        """The prefixes of names that belong to a target."""
        return [f"{self.interface.name}_{label(each.target)}" for each in self.images]

    def _sources(self) -> list[str]:
        """Return the files to compile."""
        name = self.interface.name
        return [f"{name}.c", *(f"{each}.c" for each in self._labels), f"{name}_data.S"]

    def _objects(self) -> list[str]:
        """Return the files of kernels."""
        return [f"{each}_kernels.o" for each in self._labels]

    def _write_sources(self, source: Path) -> None:
        name, weights, labels = self.interface.name, self.weights, self._labels
        data = {f"{name}_variables": weights.content, f"{name}_header": weights.header}
        for prefix, image in zip(labels, self.images, strict=True):
            write_file(source / f"{prefix}.c", image_source(image, prefix))
            write_file(source / f"{prefix}_kernels.o", image.code)
            data[f"{prefix}_own"] = image.own
        for symbol, content in data.items():
            write_file(source / f"{symbol}.bin", content or bytes(64))
        write_file(source / f"{name}_data.S", "".join(map(_data, data)) + _NO_STACK)
        write_file(source / "runtime.h", template("runtime.h", name))
        images = [f"{each}_image" for each in labels]
        parts = [
            f'#include "../{name}.h"\n#include "runtime.h"\n',
            f"extern const image_t {', '.join(images)};",
            f"static const image_t *const images[] = {{&{', &'.join(images)}}};",
            f"extern const unsigned char {name}_variables[], {name}_header[];",
            f"#define VARIABLE_BYTES ((int64_t){len(weights.content)})",
            f"#define HEADER_BYTES ((size_t){len(weights.header)})",
            f"#define WEIGHTS {len(weights.entries)}",
            f"#define THREADS {self.threads}\n",
            template("runtime.c", name),
            template("weights.c", name, ENTRIES=weights.table()),
            self.interface.body(),
            self.preprocessing.source(name),
        ]
        write_file(source / f"{name}.c", "\n".join(parts))

    def build(self, folder: Path) -> None:
        """Compile the sources to a static and a shared library, if a C compiler is installed."""
        name = self.interface.name
        command = shlex.split(os.environ.get("CC") or "cc")
        archiver = shutil.which("ar")
        if shutil.which(command[0]) is None or archiver is None:
            return
        source = folder / "source"
        kernels, made = [str(source / each) for each in self._objects()], []
        for file in self._sources():
            made.append(str((source / file).with_suffix(".o")))
            # The assembler finds the files of weights in this folder.
            options = (*FLAGS, "-Xassembler", f"-I{source}", "-c", str(source / file))
            _run(*command, *options, "-o", made[-1])
        static, shared = folder / f"lib{name}.a", folder / f"lib{name}.so"
        static.unlink(missing_ok=True)
        _run(archiver, "rcs", str(static), *kernels, *made)
        linked = ["-shared", "-Wl,-z,defs", *kernels, *made, "-lm", "-lpthread"]
        _run(*command, *linked, f"-Wl,-soname,{shared.name}", "-o", str(shared))
        for each in made:
            Path(each).unlink()


def check_folder(folder: Path, name: str) -> None:
    """Raise an error if a folder has a project of another name, whose files would be replaced."""
    project = folder / "CMakeLists.txt"
    known = re.search(r"^project\((\S+)", project.read_text(), re.M) if project.is_file() else None
    require(
        not project.exists() or (known is not None and known[1] == name),
        "export",
        f"a folder without other projects for {name}",
        f"{project} of {known[1] if known else 'another project'}",
        "export every library to a separate folder",
    )


_NO_STACK = '    .section .note.GNU-stack,"",%progbits\n'


def _data(symbol: str) -> str:
    return (
        f"    .section .rodata\n    .balign 64\n    .globl {symbol}\n    .hidden {symbol}\n"
        f'{symbol}:\n    .incbin "{symbol}.bin"\n    .byte 0\n'
    )


_PROJECTS = ("CMakeLists.txt", "MODEL-config.cmake", "MODEL.pc")
"""Files for CMake and pkg-config."""


def _run(*command: str) -> None:
    done = run_program(*command, seconds=COMPILE_S)
    if done is None or done.returncode:
        raise ConfigError.build(
            "export",
            expected=f"{Path(command[0]).name} to build the library",
            got="no end" if done is None else done.stderr.decode(errors="replace")[:2000],
            hint="pass build=False, and build the folder with CMake",
        )
