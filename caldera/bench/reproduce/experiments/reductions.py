"""MagmaDNN, figure 3: sums of rows and columns by products with ones, or by reducing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from caldera import op
from caldera.base.registry import optional_import
from caldera.bench.reproduce.experiment import (
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    faster,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.compiler.lazy import compile

SIZES = (64, 128, 256, 512, 1024, 2048)


@claim(
    "reductions",
    "MagmaDNN, figure 3",
    "Small sums of rows and columns are faster as products with ones than by reducing",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """X.1 and its transpose over sizes, by products, libraries and our kernels."""
    sizes = SIZES[:-1:2] if context.quick else SIZES
    plots, samples, rows = [], {}, []
    for axis, name in ((1, "X.1"), (0, "X^T.1")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for size in sizes:
            context.tell(f"{name}, {size}")
            for way, found in _times(size, axis, context.repeats).items():
                lines.setdefault(way, []).append((float(size), 1e6 * min(found)))
                samples[f"{name}, {size}, {way}: s"] = found
        ours = [y for _, y in lines["our kernels"]]
        product = [y for _, y in lines["product with ones"]]
        # Both as plans: what a call of a plan costs is in both.
        worst = max(a / min(a, b) for a, b in zip(ours, product, strict=True))
        ways = {way: samples[f"{name}, {sizes[0]}, {way}: s"] for way in lines}
        ratio, verdict = faster(ways["product with ones"], ways["our kernels"])
        rows.append(
            ComparisonRow(
                f"{name}: reducing over product with ones, {sizes[0]}", "above 1", ratio, verdict
            )
        )
        rows.append(
            ComparisonRow(
                f"{name}: ours over the faster of the two, at most",
                "1",
                f"{worst:.2f}",
                holds(worst < 1.5),
            )
        )
        library = min((way for way in lines if way.endswith("sum")), key=lambda w: min(ways[w]))
        ratio, verdict = faster(ways["BLAS gemv"], ways[library])
        rows.append(
            ComparisonRow(
                f"{name}: a library's sum over a library's gemv, {sizes[0]}",
                "above 1",
                ratio,
                verdict,
            )
        )
        plots.append(Plot(name, "rows and columns", "us", lines, log=True))
    return ExperimentResult(
        rows,
        plots,
        samples,
        [
            *context.skipped(f"sizes {', '.join(str(s) for s in SIZES if s not in sizes)}"),
            "MAGMA and cuBLAS on a card",
        ],
    )


def _times(size: int, axis: int, repeats: int) -> dict[str, list[float]]:
    array = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    ones = np.ones(size, np.float32)
    x = op.var("x", array.shape, fill=array, device="cpu")
    one = op.var("ones", (size, 1), fill=ones[:, None], device="cpu")
    reduce = compile([op.sum(x, axis=axis)])
    product = compile([op.matmul(x, one, transpose_a=axis == 0)])
    by_numpy = (lambda: array @ ones) if axis else (lambda: ones @ array)
    ways: dict[str, Callable[[], object]] = {
        "our kernels": reduce.run,
        "product with ones": product.run,
        "BLAS gemv": by_numpy,
        "NumPy's sum": lambda: array.sum(axis=axis),
    }
    if find_spec("torch") is not None:
        there = optional_import("torch", "torch", "caldera reproduce").from_numpy(array)
        ways["PyTorch's sum"] = lambda: there.sum(dim=axis)
    return in_turns(ways, repeats)
