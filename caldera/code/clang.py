"""C to LLVM IR, by the clang that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from os import PathLike, fspath

from caldera.errors import ConfigError, DataError

MOST_SECONDS = 1e6


@lru_cache
def find_clang() -> str:
    """The newest clang on the path: `clang` itself, or the `clang-N` with the largest N."""
    known = [shutil.which("clang"), *(shutil.which(f"clang-{n}") for n in range(30, 14, -1))]
    versions = {path: _version(path) for path in known if path is not None}
    if not versions:
        raise ConfigError.build(
            "code.compile_c",
            expected="clang 15 or newer",
            got="none on the path",
            hint="install it, for example with: apt install clang-19",
        )
    return max(versions, key=versions.__getitem__)


def _version(path: str) -> int:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+)", said)
    return int(found.group(1)) if found else 0


def compile_c(
    source: str | PathLike[str], flags: Sequence[str] = ("-O1",), seconds: float = 60.0
) -> str:
    """The LLVM IR of a C file, as text.

    Flags are clang's, such as `-I` for folders of headers and `-O0` to `-O3`. Nothing is run
    but the compiler.

    >>> from caldera import code
    >>> text = code.compile_c("sum.c", ["-O2", "-I", "include"])  # doctest: +SKIP
    """
    if not 0 < seconds <= MOST_SECONDS:
        raise ConfigError.build(
            "code.compile_c",
            expected=f"seconds= above 0, at most {MOST_SECONDS}",
            got=repr(seconds),
        )
    command = [find_clang(), "-S", "-emit-llvm", "-w", "-o", "-", *flags, fspath(source)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise DataError.build(
            "code.compile_c",
            expected=f"clang to be done in {seconds} s",
            got=str(source),
            hint="give it more seconds=, or leave the file out",
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        first = next((line for line in said if "error: " in line), "clang said nothing")
        raise DataError.build(
            "code.compile_c",
            expected="a C file that clang compiles",
            got=first,
            hint="headers are found with flags=['-I', folder]",
        )
    return done.stdout.decode(errors="replace")
