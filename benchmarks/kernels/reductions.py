"""Sums of rows, of columns and of all elements, by every kernel there is, and which one is chosen.

    python benchmarks/kernels/reductions.py --sizes 64,256,1024,2048,3500 --dtypes float32,float64
    python benchmarks/kernels/reductions.py --device cuda --dtypes float32,bfloat16

As the seed's figure 3: square arrays over sizes. All ways take turns, the best turn counts. On a
card kernels are captured calls by the card's clock, and so is `torch.sum` where PyTorch is there.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

import caldera as cd
from benchmarks.kernels.captured_torch import seconds_of_a_call
from caldera.base.config import settings
from caldera.bench.timing import best_in_turns
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.tensor.dtype import BY_NAME
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import TABLE, Call
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import TIMERS, choices
from caldera.kernels.tuning.measure import some_numbers

WAYS = {"rows": (1,), "columns": (0,), "both": (0, 1)}
COLUMNS = ("native", "product with ones", "np.sum")
CARD_COLUMNS = ("loop", "product with ones", "torch.sum")
ROUNDS, ROUND_S = 15, 1e-3
CARD_S = 0.2
"""For the kernels of a sum on a card."""


def reduction_node(shape: Shape, axis: tuple[int, ...], dtype: str, op: str = "sum") -> Node:
    """Return the reduction of an array of this shape over these axes."""
    return OPS[op](parameter(0, Spec(shape, BY_NAME[dtype])), axis=axis, keepdims=False)


def reduction_runners(
    shape: Shape, axis: tuple[int, ...], dtype: str = "float32", op: str = "sum"
) -> dict[str, Callable[[], object]]:
    """Return each candidate kernel by name, bound to one array, and NumPy's function."""
    node = reduction_node(shape, axis, dtype, op)
    x = some_numbers(shape, node.dtype, np.random.default_rng(0))
    found: dict[str, Callable[[], object]] = {}
    for kernel in TABLE.candidates(node, "cpu"):
        if kernel.name != ORACLE:
            out = np.empty(node.shape, node.dtype)
            workspace = np.empty(kernel.workspace(node), np.uint8)
            found[kernel.name] = kernel.bind(Call(node, (out,), (x,), workspace))
    function = getattr(np, op)
    found["np." + op] = lambda: function(x, axis=axis)
    return found


def chosen_reduction(
    shape: Shape, axis: tuple[int, ...], dtype: str = "float32", op: str = "sum"
) -> str:
    """Return the name of the kernel that plans use: measured, unless the array is very small."""
    return choices.kernel(reduction_node(shape, axis, dtype, op), "cpu").name


def on_host(size: int, axes: tuple[int, ...], dtype: str) -> tuple[dict[str, float], str]:
    """Seconds of each way, and which is chosen."""
    # As in a plan: its threads are Caldera's.
    with single_threaded_blas:
        runners = reduction_runners((size, size), axes, dtype)
        times = best_in_turns(runners, ROUNDS, ROUND_S)
    return times, chosen_reduction((size, size), axes, dtype)


def on_card(size: int, axes: tuple[int, ...], dtype: str) -> tuple[dict[str, float], str]:
    """The same on a card."""
    node = reduction_node((size, size), axes, dtype)
    kernels = TABLE.candidates(node, "cuda")
    found = TIMERS["cuda"](node, kernels, CARD_S, thorough=True).times
    # Of the library's algorithms the best counts.
    times = {"loop": found.pop("loop")} | (
        {"product with ones": min(found.values())} if found else {}
    )
    if find_spec("torch"):
        import torch

        x = torch.randn((size, size), device="cuda").to(getattr(torch, dtype))
        times["torch.sum"] = seconds_of_a_call(lambda: torch.sum(x, dim=axes))
    return times, choices.kernel(node, "cuda").name


def main() -> None:
    """Read the command line, and print a table for each dtype and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", default="64,128,256,512,1024,2048,3500")
    parser.add_argument("--dtypes", default="float32,float64,float16,int32,int64")
    options = parser.parse_args()
    TABLE.load(cd.device(options.device).kernels)
    found, columns = (on_host, COLUMNS) if options.device == "cpu" else (on_card, CARD_COLUMNS)
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.override(cache_dir=folder, tune_budget_s=1e6),
    ):
        for dtype in options.dtypes.split(","):
            print(f"\n{dtype}, us a call\n")
            print(f"| sum of | size | {' | '.join(columns)} | chosen | chosen to the fastest |")
            print("|---" * (len(columns) + 4) + "|")
            for way, axes in WAYS.items():
                for size in map(int, options.sizes.split(",")):
                    times, chosen = found(size, axes, dtype)
                    way_of = next((each for each in columns if chosen.startswith(each)), columns[0])
                    ours = times.get(way_of, next(iter(times.values())))
                    fastest = min(t for name, t in times.items() if not name.endswith(".sum"))
                    cells = [f"{1e6 * times[c]:.1f}" if c in times else "-" for c in columns]
                    print(
                        f"| {way} | {size} | {' | '.join(cells)} | {chosen} "
                        f"| {ours / fastest:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
