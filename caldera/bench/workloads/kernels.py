"""Single computations: convolutions, products, element-wise formulas, updates, input batches.

Sizes are from our own table and from DeepBench (Baidu Research, 2016). Its training set has the
sizes of speech, text and image networks. Several sizes differ only in the number of samples, so a
row lists all numbers of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
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

Convolution = tuple[int, int, int, int, int, tuple[int, int], int, tuple[int, int]]
"""Images, channels, height, width, filters, kernel, stride, padding."""

DESIGN_CONVOLUTIONS: tuple[Convolution, ...] = (
    (32, 64, 56, 56, 64, (3, 3), 1, (1, 1)),
    (32, 128, 28, 28, 128, (3, 3), 1, (1, 1)),
    (32, 256, 14, 14, 256, (3, 3), 1, (1, 1)),
    (32, 512, 7, 7, 512, (3, 3), 1, (1, 1)),
    (128, 16, 32, 32, 16, (3, 3), 1, (1, 1)),
    (128, 32, 16, 16, 32, (3, 3), 1, (1, 1)),
    (128, 64, 8, 8, 64, (3, 3), 1, (1, 1)),
    (32, 256, 14, 14, 1024, (1, 1), 1, (0, 0)),
    (128, 32, 14, 14, 64, (5, 5), 1, (2, 2)),
    (32, 3, 224, 224, 64, (7, 7), 2, (3, 3)),
    (128, 1, 28, 28, 32, (5, 5), 1, (2, 2)),
)

# Samples; channels, height, width; filters, kernel height and width; stride; padding of both axes.
_DEEPBENCH_CONVOLUTIONS = (
    ((4, 8, 16, 32), (1, 161, 700), (32, 5, 20), 2, (0, 0)),
    ((4, 8, 16, 32), (32, 79, 341), (32, 5, 10), 2, (0, 0)),
    ((16,), (1, 48, 480), (16, 3, 3), 1, (1, 1)),
    ((16,), (16, 24, 240), (32, 3, 3), 1, (1, 1)),
    ((16,), (32, 12, 120), (64, 3, 3), 1, (1, 1)),
    ((16,), (64, 6, 60), (128, 3, 3), 1, (1, 1)),
    ((8,), (3, 108, 108), (64, 3, 3), 2, (1, 1)),
    ((8,), (64, 54, 54), (64, 3, 3), 1, (1, 1)),
    ((8,), (128, 27, 27), (128, 3, 3), 1, (1, 1)),
    ((8,), (128, 14, 14), (256, 3, 3), 1, (1, 1)),
    ((8,), (256, 7, 7), (512, 3, 3), 1, (1, 1)),
    ((8, 16), (3, 224, 224), (64, 3, 3), 1, (1, 1)),
    ((8, 16), (64, 112, 112), (128, 3, 3), 1, (1, 1)),
    ((8, 16), (128, 56, 56), (256, 3, 3), 1, (1, 1)),
    ((8, 16), (256, 28, 28), (512, 3, 3), 1, (1, 1)),
    ((8, 16), (512, 14, 14), (512, 3, 3), 1, (1, 1)),
    ((8, 16), (512, 7, 7), (512, 3, 3), 1, (1, 1)),
    ((16,), (3, 224, 224), (64, 7, 7), 2, (3, 3)),
    ((16,), (192, 28, 28), (32, 5, 5), 1, (2, 2)),
    ((16,), (192, 28, 28), (64, 1, 1), 1, (0, 0)),
    ((16,), (512, 14, 14), (48, 5, 5), 1, (2, 2)),
    ((16,), (512, 14, 14), (192, 1, 1), 1, (0, 0)),
    ((16,), (832, 7, 7), (256, 1, 1), 1, (0, 0)),
    ((16,), (832, 7, 7), (128, 5, 5), 1, (2, 2)),
    ((8, 16), (64, 56, 56), (64, 3, 3), 1, (1, 1)),
    ((8, 16), (64, 56, 56), (256, 1, 1), 2, (0, 0)),
    ((8, 16), (128, 28, 28), (128, 3, 3), 1, (1, 1)),
    ((8, 16), (128, 28, 28), (512, 1, 1), 2, (0, 0)),
    ((8, 16), (256, 14, 14), (256, 1, 1), 1, (0, 0)),
    ((8, 16), (256, 14, 14), (256, 3, 3), 1, (1, 1)),
    ((8, 16), (256, 14, 14), (1024, 1, 1), 2, (0, 0)),
    ((8, 16), (512, 7, 7), (512, 1, 1), 1, (0, 0)),
    ((8, 16), (2048, 7, 7), (512, 1, 1), 2, (3, 3)),
    ((16,), (1, 161, 700), (64, 5, 5), 2, (1, 1)),
    ((16,), (64, 80, 350), (64, 3, 3), 1, (1, 1)),
    ((16,), (64, 80, 350), (128, 5, 5), 2, (1, 1)),
    ((16,), (128, 40, 175), (128, 3, 3), 1, (1, 1)),
    ((16,), (128, 40, 175), (256, 5, 5), 2, (1, 1)),
    ((16,), (256, 20, 84), (256, 3, 3), 1, (1, 1)),
    ((16,), (256, 20, 84), (512, 5, 5), 2, (1, 1)),
    ((16,), (512, 10, 42), (512, 3, 3), 1, (1, 1)),
    ((8, 16), (64, 112, 112), (64, 1, 1), 1, (0, 0)),
    ((8, 16), (64, 56, 56), (256, 1, 1), 1, (0, 0)),
    ((8, 16), (256, 56, 56), (64, 1, 1), 1, (0, 0)),
    ((8, 16), (256, 56, 56), (128, 1, 1), 2, (0, 0)),
    ((8, 16), (128, 28, 28), (512, 1, 1), 1, (0, 0)),
    ((8, 16), (512, 28, 28), (128, 1, 1), 1, (0, 0)),
    ((8, 16), (512, 28, 28), (256, 1, 1), 2, (0, 0)),
    ((8, 16), (256, 14, 14), (1024, 1, 1), 1, (0, 0)),
    ((8, 16), (512, 28, 28), (1024, 1, 1), 2, (0, 0)),
    ((8, 16), (1024, 14, 14), (256, 1, 1), 1, (0, 0)),
    ((8, 16), (1024, 14, 14), (512, 1, 1), 2, (0, 0)),
    ((8, 16), (512, 7, 7), (2048, 1, 1), 1, (0, 0)),
    ((8, 16), (1024, 14, 14), (2048, 1, 1), 2, (0, 0)),
    ((8, 16), (2048, 7, 7), (512, 1, 1), 1, (0, 0)),
)

# Rows; columns; inner sizes; whether the first and the second matrix are stored transposed.
_PLAIN, _FIRST, _SECOND = (False, False), (True, False), (False, True)
_STEPS = (16, 32, 64, 128, 7000)
_DEEPBENCH_PRODUCTS = (
    *[((size,), _STEPS, (size,), (_PLAIN, _FIRST)) for size in (1760, 2048, 2560, 4096)],
    *[((size,), (7133,), (size,), (_SECOND,)) for size in (1760, 2048, 2560, 4096)],
    ((5124,), (9124,), (1760, 2048, 2560, 4096), (_PLAIN, _FIRST)),
    ((35,), (8457,), (1760, 2048, 2560, 4096), (_PLAIN, _FIRST)),
    ((7680,), (16, 32, 64, 128, 24000, 48000), (2560,), (_PLAIN, _FIRST)),
    ((3072,), (16, 32, 64, 128, 24000, 48000), (1024,), (_PLAIN, _FIRST)),
    ((6144,), (16, 32, 24000, 48000), (2048,), (_PLAIN, _FIRST)),
    ((4608,), (16, 32, 24000, 48000), (1536,), (_PLAIN, _FIRST)),
    ((8448,), (16, 32, 24000, 48000), (2816,), (_PLAIN, _FIRST)),
    ((3072,), (7435,), (1024,), (_SECOND,)),
    ((7680,), (5481,), (2560,), (_SECOND,)),
    ((512, 1024), (8, 16), (500_000,), (_PLAIN, _FIRST)),
    ((1024,), (700,), (512,), (_PLAIN, _FIRST)),
    ((512, 1024), (24000, 48000), (1536, 2048, 2560, 2816), (_PLAIN, _FIRST)),
    ((512, 1024), (16, 32), (512,), (_PLAIN, _SECOND)),
)

Product = tuple[int, int, int, bool, bool]
"""m, n, k, and whether the first and the second matrix are stored transposed."""

_BATCH, _WIDTH, _PIXELS, _CLASSES = 100, 528, 784, 10
MLP_PRODUCTS: tuple[Product, ...] = tuple(
    size
    for inner, outer in ((_PIXELS, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH, _CLASSES))
    for size in (
        (_BATCH, outer, inner, False, False),
        (_BATCH, inner, outer, False, True),
        (inner, outer, _BATCH, True, False),
    )
)
"""The paper's network: the result, the input's gradient and the weights' of each layer."""


def deepbench_convolutions() -> Iterator[Convolution]:
    """Yield the convolutions of DeepBench's training set, each once.

    >>> len(list(deepbench_convolutions()))
    90
    """
    for counts, (channels, height, width), (
        filters,
        *kernel,
    ), stride, padding in _DEEPBENCH_CONVOLUTIONS:
        for images in counts:
            sides = (kernel[0], kernel[1])
            yield images, channels, height, width, filters, sides, stride, padding


def deepbench_products() -> Iterator[Product]:
    """Yield the products of DeepBench's training set, each once.

    >>> len(list(deepbench_products()))
    160
    """
    for rows, columns, inner, stored in _DEEPBENCH_PRODUCTS:
        for m, n, k, (first, second) in product(rows, columns, inner, stored):
            yield m, n, k, first, second


MOST_FLOPS = 8e9
"""Limit for a single pass: about a tenth of a second on two cores."""
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
    ours = [_product(size, "the paper's MLP") for size in MLP_PRODUCTS]
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
    """Return a chain of eight operations that can be fused to one pass over memory."""
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
    """Return the workloads other than whole training steps.

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
