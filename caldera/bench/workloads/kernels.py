"""Single computations: convolutions, products, element-wise formulas, updates, input batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from caldera.bench.workloads.base import (
    BenchWorkload,
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    UpdateCase,
    UpdateRule,
)
from caldera.bench.workloads.sizes import (
    DESIGN_CONVOLUTIONS,
    MLP_PRODUCTS,
    Convolution,
    Product,
    deepbench_convolutions,
    deepbench_products,
)

MOST_FLOPS = 8e9
"""Of one pass: about a tenth of a second on two cores."""
MOST_BYTES = 512 << 20
PASSES = ("forward", "input gradient", "filter gradient")

THREE = "3x3 of the design table"
OTHER = "others of the design table"
DEEPBENCH = "DeepBench"


def _passes(size: Convolution, group: str) -> list[Case]:
    images, channels, height, width, filters, kernel, stride, padding = size
    stepping = f"/{stride}" if stride > 1 else ""
    whole = f"{kernel[0]}x{kernel[1]}{stepping} {images},{channels},{height}x{width},{filters}" + (
        "" if group != DEEPBENCH else " DeepBench"
    )
    return [
        ConvolutionCase(
            f"{whole} {what}",
            whole,
            group,
            images,
            channels,
            height,
            width,
            filters,
            kernel,
            stride,
            padding,
            what,
        )
        for what in PASSES
    ]


def _convolutions() -> BenchWorkload:
    ours = [
        case
        for size in DESIGN_CONVOLUTIONS
        for case in _passes(size, THREE if size[5] == (3, 3) else OTHER)
    ]
    sizes = [_passes(size, DEEPBENCH) for size in deepbench_convolutions()]
    kept = [passes for passes in sizes if passes[0].flops <= MOST_FLOPS]
    return BenchWorkload(
        "conv",
        "convolutions: forward, input gradient and filter gradient",
        [*ours, *(case for passes in kept for case in passes)],
        [case for size in DESIGN_CONVOLUTIONS[:7] for case in _passes(size, THREE)],
        _left_out(len(sizes) - len(kept), len(sizes)),
    )


def _product(size: Product, group: str) -> ProductCase:
    m, n, k, first, second = size
    marks = ("T" if first else "N") + ("T" if second else "N")
    return ProductCase(f"{m}x{n}x{k} {marks}", "", group, *size)


def _products() -> BenchWorkload:
    ours = [_product(size, "the seed's MLP") for size in MLP_PRODUCTS]
    theirs = [_product(size, DEEPBENCH) for size in deepbench_products()]
    kept = [each for each in theirs if each.flops <= MOST_FLOPS and each.nbytes <= MOST_BYTES]
    return BenchWorkload(
        "gemm",
        "matrix products m x n x k, T where a matrix is stored transposed",
        [*ours, *kept],
        ours,
        _left_out(len(theirs) - len(kept), len(theirs)),
    )


def _left_out(count: int, of: int) -> str:
    return (
        f"{count} of DeepBench's {of} sizes take more than {MOST_FLOPS / 1e9:.0f} GFLOP a pass "
        f"or {MOST_BYTES >> 20} MiB, and are left out"
    )


_LARGE = (4_000_000,)
_ROWS = (4096, 1000)


def _chain(f: Any, a: Any, b: Any, c: Any) -> Any:
    """Eight operations that one pass over memory can do."""
    return f.tanh(a * b + c) * f.sigmoid(a) - f.exp(-(b * b))


_FORMULAS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add": (lambda f, a, b: a + b, (_LARGE, _LARGE)),
    "relu": (lambda f, a: f.relu(a), (_LARGE,)),
    "exp": (lambda f, a: f.exp(a), (_LARGE,)),
    "tanh": (lambda f, a: f.tanh(a), (_LARGE,)),
    "sigmoid": (lambda f, a: f.sigmoid(a), (_LARGE,)),
    "gelu": (lambda f, a: f.gelu(a), (_LARGE,)),
    "a chain of eight": (_chain, (_LARGE, _LARGE, _LARGE)),
    "bias and sigmoid": (lambda f, a, b: f.sigmoid(a + b), (_ROWS, (1000,))),
    "sum of rows": (lambda f, a: f.sum_of_rows(a), (_ROWS,)),
    "softmax of rows": (lambda f, a: f.softmax(a), (_ROWS,)),
}

_TEN_MILLION = ((2000, 2000), (2000, 2000), (1000, 2000), (2000,))

_RULES = {
    "SGD, momentum": UpdateRule("sgd", 0.01, momentum=0.9),
    "Adam": UpdateRule("adam", 1e-3),
    "AdamW": UpdateRule("adamw", 1e-3, weight_decay=0.01),
    "RMSProp": UpdateRule("rmsprop", 0.01),
}


def kernels() -> list[BenchWorkload]:
    """Every work that is not a whole training step.

    >>> [work.name for work in kernels()]
    ['conv', 'gemm', 'elementwise', 'optimizers', 'input']
    """
    formulas = [
        FormulaCase(name, "", "all", formula, shapes)
        for name, (formula, shapes) in _FORMULAS.items()
    ]
    updates = [UpdateCase(name, "", "all", rule, _TEN_MILLION) for name, rule in _RULES.items()]
    batches = [InputCase("shuffled 128x784")]
    return [
        _convolutions(),
        _products(),
        _same("elementwise", "formulas and reductions of 4 million numbers", formulas),
        _same("optimizers", "fused updates of 10 million parameters", updates),
        _same("input", "shuffled batches from memory", batches),
    ]


def _same(name: str, summary: str, cases: Iterable[Case]) -> BenchWorkload:
    kept = list(cases)
    return BenchWorkload(name, summary, kept, kept)
