"""Matrix products on the CPU: every kernel that can compute one, NumPy and PyTorch, in turns.

    python benchmarks/kernels/products.py --threads 1,2,4,8,16

Prints GFLOP/s, the best of many short rounds. The products are those of a step of the seed's MLP,
of GPT's layers, and a large one; `--dtype bfloat16` is for processors that multiply it by
themselves. PyTorch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import caldera as cd
from caldera.bench.timing import best_in_turns
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import BY_NAME, DType
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import TABLE, Call
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.measure import some_numbers

SIZES = (
    (100, 784, 528, False, False),
    (100, 528, 528, False, False),
    (784, 100, 528, True, False),
    (528, 100, 528, True, False),
    (100, 528, 784, False, True),
    (100, 528, 10, False, False),
    (2048, 256, 1024, False, False),
    (256, 2048, 1024, True, False),
    (2048, 1024, 256, False, True),
    (512, 512, 512, False, False),
    (2048, 2048, 2048, False, False),
)
"""Rows, terms of a sum, columns, and whether either matrix is stored transposed."""
ROUNDS, ROUND_S = 40, 2e-3


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of one call, in the best of many rounds."""
    return best_in_turns({"": run}, ROUNDS, ROUND_S)[""]


def product(size: tuple[int, int, int, bool, bool], dtype: DType) -> Node:
    """The node of a product."""
    rows, terms, columns, ta, tb = size
    left = parameter(0, Spec((terms, rows) if ta else (rows, terms), dtype))
    right = parameter(1, Spec((columns, terms) if tb else (terms, columns), dtype))
    node: Node = matmul(left, right, ta=ta, tb=tb)
    return node


def own_times(node: Node, inputs: tuple[np.ndarray, ...]) -> dict[str, float]:
    """Of each kernel of ours, by its name."""
    times = {}
    with single_threaded_blas:
        for kernel in TABLE.candidates(node, "cpu"):
            if kernel.name != ORACLE:
                workspace = np.empty(max(1, kernel.workspace(node)) + 64, np.uint8)
                aligned = workspace[-workspace.ctypes.data % 64 :]
                out = np.empty(node.shape, node.dtype)
                times[kernel.name] = seconds(kernel.bind(Call(node, (out,), inputs, aligned)))
    return times


def peers_times(node: Node, inputs: tuple[np.ndarray, ...], threads: int) -> dict[str, float]:
    """Of NumPy, and of PyTorch if it is installed."""
    turned = [
        each.T if node.attrs[flag] else each
        for each, flag in zip(inputs, ("ta", "tb"), strict=True)
    ]
    times = {}
    if node.dtype.kind == "f":
        with threadpool_limits(threads, user_api="blas"):
            times["NumPy"] = seconds(lambda: np.matmul(*turned))
    try:
        import torch
    except ImportError:
        return times
    torch.set_num_threads(threads)
    left, right = (
        torch.from_numpy(each.astype("float32")).to(getattr(torch, node.dtype.name))
        for each in turned
    )
    times["PyTorch"] = seconds(lambda: torch.mm(left, right))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", default=str(cd.settings.threads), help="as 1,2,16")
    parser.add_argument("--dtype", default="float32", help="float32, float64 or bfloat16")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    for threads in map(int, options.threads.split(",")):
        print(f"{threads} threads, {options.dtype}")
        for size in SIZES:
            with cd.settings.override(threads=threads):
                node = product(size, BY_NAME[options.dtype])
                inputs = tuple(
                    some_numbers(given.shape, given.dtype, draw) for given in node.inputs
                )
                times = own_times(node, inputs) | peers_times(node, inputs, threads)
            rows, terms, columns, ta, tb = size
            work = 2e-9 * rows * terms * columns
            name = f"{rows}x{terms}{'T' * ta} {terms}x{columns}{'T' * tb}"
            rates = ", ".join(f"{each} {work / times[each]:.0f}" for each in times)
            print(f"  {name:24s} {rates}", flush=True)


if __name__ == "__main__":
    main()
