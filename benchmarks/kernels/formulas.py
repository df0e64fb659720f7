"""Single formulas over arrays beside PyTorch and NumPy, and bytes a second beside a stream triad.

    python benchmarks/kernels/formulas.py --threads 1,2,4,8,16 --out formulas.json
    python benchmarks/kernels/formulas.py --ops relu --sizes 4000000 --dtypes float32 --threads 2

Each contestant is a process of its own, and they take turns on each case: formula, dtype, size, and
whether the last result is held while the next is computed. The best of a turn's calls counts, and
the ratio is the median over the turns. `bytes` counts operands and results once. The triad
a = b + s c is compiled with OpenMP by the C compiler of the machine, if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CONTESTANTS = ("caldera", "torch", "numpy")
OPS = ("add", "relu", "exp", "tanh", "gelu")
DTYPES = ("float32", "float64", "bfloat16")
SIZES = (1_000, 10_000, 100_000, 1_000_000, 4_000_000, 100_000_000)
LARGEST = {"float32": 100_000_000, "float64": 4_000_000, "bfloat16": 4_000_000}
TRIAD = """
#include <stddef.h>
void triad(double *a, const double *b, const double *c, ptrdiff_t n) {
  #pragma omp parallel for schedule(static)
  for (ptrdiff_t i = 0; i < n; ++i) a[i] = b[i] + 3.0 * c[i];
}
"""
TRIAD_SIZE = 40_000_000


def caldera_call(name: str, a: np.ndarray, b: np.ndarray, dtype: str) -> Callable[[], Any]:
    """Return a function that computes the formula by a plan of Caldera."""
    import caldera as cd
    from caldera import op

    x = op.var("x", a.shape, dtype=dtype, device="cpu")
    x.assign(a)
    if name == "add":
        y = op.var("y", a.shape, dtype=dtype, device="cpu")
        y.assign(b)
        return cd.compile(x + y).run
    formulas = {"relu": op.relu, "exp": op.exp, "tanh": op.tanh, "gelu": op.gelu}
    return cd.compile(formulas[name](x)).run


def torch_call(name: str, a: np.ndarray, b: np.ndarray, dtype: str) -> Callable[[], Any]:
    """Return a function that computes the formula by PyTorch."""
    import torch

    x, y = (torch.from_numpy(each).to(getattr(torch, dtype)) for each in (a, b))
    if name == "add":
        return lambda: torch.add(x, y)
    gelu = torch.nn.functional.gelu
    found = {"relu": torch.relu, "exp": torch.exp, "tanh": torch.tanh, "gelu": gelu}[name]
    return lambda: found(x)


def numpy_call(name: str, a: np.ndarray, b: np.ndarray, dtype: str) -> Callable[[], Any] | None:
    """Return a function that computes the formula by NumPy, if it has the formula and the dtype."""
    if dtype == "bfloat16" or name == "gelu":
        return None
    x, y = a.astype(dtype), b.astype(dtype)
    if name == "add":
        return lambda: np.add(x, y)
    if name == "relu":
        return lambda: np.maximum(x, 0)
    found = {"exp": np.exp, "tanh": np.tanh}[name]
    return lambda: found(x)


def serve(contestant: str, threads: int) -> None:
    """Time the case in each line of the input, and print the best seconds of a call."""
    if contestant == "torch":
        import torch

        torch.set_grad_enabled(False)
        torch.set_num_threads(threads)
    make = {"caldera": caldera_call, "torch": torch_call, "numpy": numpy_call}[contestant]
    made: dict[str, Callable[[], Any] | None] = {}
    for line in sys.stdin:
        name, dtype, size, held, seconds = json.loads(line)
        key = f"{name} {dtype} {size}"
        if key not in made:
            made.clear()
            random = np.random.default_rng(0)
            a, b = (random.normal(size=size).astype("float32") for _ in range(2))
            made[key] = make(name, a, b, dtype)
            with contextlib.suppress(TypeError):
                for _ in range(3):
                    made[key]()  # type: ignore[misc]
        print(json.dumps(best_of(made[key], held, seconds)), flush=True)


def best_of(call: Callable[[], Any] | None, held: bool, seconds: float) -> float | None:
    """Return the best seconds of a call."""
    if call is None:
        return None
    kept: Any = None
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
        if held:
            kept = result
        del result
        calls += 1
    del kept
    return best


class Contestant:
    """A process that times cases."""

    def __init__(self, name: str, python: str, threads: int) -> None:
        environment = os.environ | {
            key: str(threads)
            for key in ("CALDERA_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        }
        self.process = subprocess.Popen(
            [python, __file__, "--contestant", name, "--threads", str(threads)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def best(self, case: list[Any]) -> float | None:
        """Return the best seconds of a call in this turn."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self.process.communicate()


def triad_rate(threads: int) -> float | None:
    """Return the bytes a second of the triad, or None without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "triad.c", Path(folder) / "triad.so"
        source.write_text(TRIAD)
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        try:
            subprocess.run(["cc", *flags, source, "-o", library], check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        code = f"""
import ctypes, time, numpy as np
triad = ctypes.CDLL({str(library)!r}).triad
a, b, c = (np.ones({TRIAD_SIZE}) for _ in range(3))
size = ctypes.c_ssize_t({TRIAD_SIZE})
best = 9.0
for _ in range(12):
    start = time.perf_counter()
    triad(*(each.ctypes.data_as(ctypes.c_void_p) for each in (a, b, c)), size)
    best = min(best, time.perf_counter() - start)
print(24 * {TRIAD_SIZE} / best)
"""
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        return float(found.stdout)


def compare(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Time all cases with so many threads, and print a line for each."""
    triad = triad_rate(threads)
    print(f"\n{threads} threads; triad {0 if triad is None else triad / 1e9:.1f} GB/s\n")
    print("| formula | dtype | numbers | held | Caldera us | GB/s | PyTorch | NumPy |")
    print("|---|---|---|---|---|---|---|---|")
    pythons = {"torch": options.torch_python}
    contestants = {
        name: Contestant(name, pythons.get(name, sys.executable), threads) for name in CONTESTANTS
    }
    rows = []
    for name in options.ops.split(","):
        for dtype in options.dtypes.split(","):
            for size in map(int, options.sizes.split(",")):
                for held in (False, True):
                    if size > LARGEST[dtype]:
                        continue
                    case = [name, dtype, size, held, options.seconds]
                    turns: dict[str, list[Any]] = {each: [] for each in CONTESTANTS}
                    for _ in range(options.turns):
                        for each, process in contestants.items():
                            turns[each].append(process.best(case))
                    rows.append(row_of(case, threads, triad, turns))
    for each in contestants.values():
        each.end()
    return rows


def row_of(
    case: list[Any], threads: int, triad: float | None, turns: dict[str, list[Any]]
) -> dict[str, Any]:
    """Return the figures of a case, and print them."""
    name, dtype, size, held, _ = case
    ours = turns["caldera"]
    ratios = {
        peer: statistics.median(theirs / own for theirs, own in zip(turns[peer], ours, strict=True))
        for peer in ("torch", "numpy")
        if turns[peer][0] is not None
    }
    wide = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    rate = (3 if name == "add" else 2) * size * wide / min(ours)
    shown = " | ".join(
        f"{ratios[each]:.2f}" if each in ratios else "" for each in turns if each != "caldera"
    )
    print(
        f"| {name} | {dtype} | {size:,} | {'yes' if held else 'no'} | {min(ours) * 1e6:,.1f} "
        f"| {rate / 1e9:.1f} | {shown} |",
        flush=True,
    )
    return {
        "formula": name,
        "dtype": dtype,
        "numbers": size,
        "held": held,
        "threads": threads,
        "triad_bytes_a_second": triad,
        "bytes_a_second": rate,
        "seconds": turns,
        "ratios": ratios,
    }


def main() -> None:
    """Run the comparisons that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--threads", default="2", help="numbers of threads")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a turn")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--out", type=Path, help="a JSON file of all samples")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        serve(options.contestant, int(options.threads))
        return
    rows: list[dict[str, Any]] = []
    for threads in map(int, options.threads.split(",")):
        rows += compare(options, threads)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
