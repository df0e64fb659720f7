"""All of `results/inst2vec-x86_64.md` by one command, from an empty folder.

    python benchmarks/programs/inst2vec_all.py FOLDER [--json results.json]

Fetches and compiles the C of Debian's source packages, trains vectors of statements for contexts 1,
2 and 3 and asks them the questions of table 2, tells functions apart by what they are for (table
3), counts pairs a second beside gensim, and chooses devices, kernels, threads, unrolling and tiles
(tables 4 and 5): `inst2vec.py` and `inst2vec_kernels.py` one after the other. Tables are printed,
every sample goes into the file. It takes clang, and gensim if that is to be compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.programs import inst2vec, inst2vec_kernels
from caldera.code.llvm_ir import find_clang
from caldera.io.files import created

KERNELS = argparse.Namespace(nodes=100, bodies=20, epochs=40, seeds=2)
"""How much `inst2vec_kernels.py` is asked to do."""


def machine() -> dict[str, Any]:
    """What it ran on, and when."""
    said = subprocess.run([find_clang(), "--version"], capture_output=True, text=True, check=False)
    versions = {"clang": said.stdout.splitlines()[0]}
    for name in ("numpy", "llvmlite", "gensim"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    inst2vec.add_options(parser)
    parser.add_argument("--json", type=Path, help="a file for every sample")
    options = vars(parser.parse_args())
    path, begin = options.pop("json"), time.perf_counter()
    samples = machine() | inst2vec.measured(**options)
    print(f"\nuntil here {time.perf_counter() - begin:.0f} s")
    samples["choices"] = inst2vec_kernels.measured(KERNELS)
    samples["seconds"] = time.perf_counter() - begin
    samples["seconds of processor time"] = sum(os.times()[:4])
    print(
        f"\n{samples['seconds']:.0f} s in all, {samples['seconds of processor time']:.0f} s of "
        "processor time"
    )
    if path is not None:
        with created(path, "w", "inst2vec") as file:
            json.dump(samples, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
