"""Many products of one size: batched in one call, one after the other, NumPy's and PyTorch's.

    python benchmarks/kernels/batched_products.py --sizes 2,4,8,16,32,64,128,256,512,1024,2048,3500
    python benchmarks/kernels/batched_products.py --device cuda --flops 4e9 --most 4096

Square matrices in float32, as many as make some work (`--flops`), at least one and at most 2,000.
Caldera's kernels are measured one by one as candidates for the batched product, and the one that
is chosen is named. All take turns, and the best turn counts; GFLOP/s. PyTorch (`torch.bmm`) is left
out where it is not installed. On a card all are captured calls by the card's clock; one by one is
what a product alone takes, as often as there are products.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import numpy as np

import caldera as cd
from benchmarks.kernels.captured_torch import seconds_of_a_call
from caldera.base.config import settings
from caldera.bench.timing import best_in_turns
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import float32
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import TABLE, Call
from caldera.kernels.tuning.choose import TIMERS, choices

ROUNDS, ROUND_S, MOST_S = 12, 5e-3, 4.0
CARD_S = 0.3
"""For the kernels of a product on a card."""
Run = Callable[[], object]


def product(count: int, size: int) -> Node:
    """So many products of square matrices."""
    spec = Spec((count, size, size), float32)
    node: Node = matmul(parameter(0, spec), parameter(1, spec), ta=False, tb=False)
    return node


def bound(node: Node, inputs: tuple[np.ndarray, ...]) -> tuple[str, Run]:
    """The kernel that is chosen for a product, ready to run."""
    kernel = choices.kernel(node, "cpu")
    out = np.empty(node.shape, np.float32)
    workspace = np.empty(kernel.workspace(node), np.uint8)
    return kernel.name, kernel.bind(Call(node, (out,), inputs, workspace))


def contestants(count: int, size: int) -> tuple[str, dict[str, Run]]:
    """Every way to compute the products, and the name of the kernel that is chosen."""
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(count, size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    chosen, batched = bound(product(count, size), (a, b))
    name, _ = bound(product(1, size), (a[:1], b[:1]))
    singles = []
    for index in range(count):
        one = (a[index : index + 1], b[index : index + 1])
        singles.append(bound(product(1, size), one)[1])

    def one_by_one() -> None:
        for run in singles:
            run()

    ways: dict[str, Run] = {
        "batched": batched,
        "one by one": one_by_one,
        "np.matmul": lambda: np.matmul(a, b, out=out),
        "np.einsum": lambda: np.einsum("bij,bjk->bik", a, b, out=out, optimize=True),
        "BLAS loop": lambda: [np.dot(x, y) for x, y in zip(a, b, strict=True)],
    }
    if find_spec("torch"):
        import torch

        torch.set_num_threads(settings.threads)
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        ways["torch.bmm"] = lambda: torch.bmm(x, y)
    return f"{chosen}; {name}", ways


def threads_of(name: str) -> AbstractContextManager[None]:
    """Inside of a plan, threads are Caldera's."""
    return single_threaded_blas if name in ("batched", "one by one") else nullcontext()


def on_host(count: int, size: int) -> tuple[str, dict[str, float]]:
    """Which kernels are chosen, and the seconds of each way."""
    chosen, ways = contestants(count, size)
    return chosen, best_in_turns(ways, ROUNDS, ROUND_S, most=MOST_S, within=threads_of)


def on_card(count: int, size: int) -> tuple[str, dict[str, float]]:
    """The same on a card."""
    best = {}
    for products in (count, 1):
        node = product(products, size)
        found = TIMERS["cuda"](node, TABLE.candidates(node, "cuda"), CARD_S, thorough=True).times
        best[products] = min(found.items(), key=lambda each: each[1])
    times = {"batched": best[count][1], "one by one": count * best[1][1]}
    if find_spec("torch"):
        import torch

        a, b = (torch.randn(count, size, size, device="cuda") for _ in range(2))
        times["torch.bmm"] = seconds_of_a_call(lambda: torch.bmm(a, b))
    return f"{best[count][0]}; {best[1][0]}", times


def main() -> None:
    """Read the command line, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", default="2,4,8,16,32,64,128,256,512,1024,2048,3500")
    parser.add_argument("--flops", type=float, default=2e7)
    parser.add_argument("--most", type=int, default=2_000, help="products of a size")
    options = parser.parse_args()
    TABLE.load(cd.device(options.device).kernels)
    measured = on_host if options.device == "cpu" else on_card
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.override(cache_dir=folder, tune_budget_s=1e6),
    ):
        names: list[str] = []
        for size in map(int, options.sizes.split(",")):
            count = int(min(options.most, max(1, options.flops // (2 * size**3))))
            chosen, times = measured(count, size)
            if not names:
                names = list(times)
                print(f"| size | products | {' | '.join(names)} | chosen: batched; single |")
                print("|---" * (len(names) + 3) + "|")
            speeds = [f"{2e-9 * count * size**3 / times[name]:.2f}" for name in names]
            print(f"| {size} | {count:,} | {' | '.join(speeds)} | {chosen} |", flush=True)


if __name__ == "__main__":
    main()
