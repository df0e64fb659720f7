"""Build of an exported library: by the C compiler of this machine, or later by CMake."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from caldera.base.children import run_program
from caldera.errors import ConfigError

COMPILE_S = 600.0
"""Seconds for one run of the C compiler."""
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden")


def build_library(folder: Path, name: str) -> bool:
    """Compile the sources to a static and a shared library; False if no C compiler is installed."""
    compiler, archiver = shutil.which(os.environ.get("CC") or "cc"), shutil.which("ar")
    if compiler is None or archiver is None:
        return False
    source = folder / "source"
    objects = sorted(map(str, source.glob("*_kernels.o")))
    for written in sorted((*source.glob("*.c"), *source.glob("*.S"))):
        made = written.with_suffix(".o")
        # The assembler finds the files of weights in this folder.
        _run(compiler, *FLAGS, f"-Wa,-I{source}", "-c", str(written), "-o", str(made))
        objects.append(str(made))
    static, shared = folder / f"lib{name}.a", folder / f"lib{name}.so"
    static.unlink(missing_ok=True)
    _run(archiver, "rcs", str(static), *objects)
    linked = ["-shared", "-Wl,-z,defs", *objects, "-lm", "-lpthread"]
    _run(compiler, *linked, f"-Wl,-soname,{shared.name}", "-o", str(shared))
    for each in objects:
        if not each.endswith("_kernels.o"):
            Path(each).unlink()
    return True


def _run(*command: str) -> None:
    done = run_program(*command, seconds=COMPILE_S)
    if done is None or done.returncode:
        raise ConfigError.build(
            "export",
            expected=f"{Path(command[0]).name} to build the library",
            got="no end" if done is None else done.stderr.decode(errors="replace")[:2000],
            hint="pass build=False, and build the folder with CMake",
        )
