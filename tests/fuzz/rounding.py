"""What a rounding in every op does to a network, for `card.py`.

A kernel is as good as its error beside its largest result. A layer that is changed in its last bits
does not show all that comes of this: the gradient of keys' bias is 0 however the layers' results
are rounded, and not if the products of the gradient are, which is enough for Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.dtype import is_float
from caldera.kernels.reference import evaluation

PRECISION_STEP = {"float32": 2.0**-23, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance of two neighbouring numbers, relative to them."""
INEXACT = frozenset(
    {
        "matmul",
        "matmul_epilogue",
        "conv2d",
        "conv2d_epilogue",
        "conv2d_input",
        "conv2d_weight",
        "scaled_dot_product_attention",
        "scaled_dot_product_attention_backward",
        "scaled_dot_product_attention_backward_packed",
        "scaled_dot_product_attention_grad",
        "sum",
        "mean",
        "softmax",
        "softmax_grad",
        "log_softmax",
        "log_softmax_grad",
        "cross_entropy",
        "cross_entropy_grad",
        "batch_norm",
        "batch_norm_grad",
        "layer_norm",
        "layer_norm_grad",
        "group_norm",
        "group_norm_grad",
        "avg_pool2d",
        "avg_pool2d_input",
        "scatter_add",
        "exp",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "erf",
        "sigmoid",
        "softplus",
        "sin",
        "cos",
    }
)
"""Ops that add up numbers in any order, or whose functions have other last bits elsewhere."""


@contextmanager
def rounded_ops(seed: int, roundings: float = 1.0) -> Iterator[None]:
    """Inside, what NumPy computes for such an op is changed by roundings of its largest result."""
    usual = evaluation.evaluator
    numbers = count()

    def evaluator(node: Node) -> Callable[[Sequence[np.ndarray]], tuple[np.ndarray, ...]]:
        outputs_of = usual(node)
        if node.op.name not in INEXACT:
            return outputs_of
        compute = node.attrs.get("compute")

        def changed(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
            draw = np.random.default_rng((seed, next(numbers)))
            results = outputs_of(inputs)
            return tuple(_rounded(each, compute, roundings, draw) for each in results)

        return changed

    # Kernels ask for it when they are bound, and graphs for each of their nodes.
    evaluation.evaluator = evaluation.evaluator = evaluator
    try:
        yield
    finally:
        evaluation.evaluator = evaluation.evaluator = usual


def _rounded(
    result: np.ndarray, compute: str | None, roundings: float, draw: np.random.Generator
) -> np.ndarray:
    step = PRECISION_STEP.get(compute or result.dtype.name)
    if step is None or not is_float(result.dtype) or not result.size:
        return result
    wide = result.astype(np.float64)
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
    signs = draw.integers(0, 2, result.shape) * 2 - 1
    return np.asarray(wide + roundings * step * largest * signs).astype(result.dtype)
