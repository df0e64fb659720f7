"""Cases for products with a bias and an activation, which a pass makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr
from caldera.core.graph.ops.epilogue import (
    conv2d_epilogue,
    matmul_accumulate,
    matmul_epilogue,
    max_pool2d_epilogue,
)
from tests.unit.ops.case import Case, numbers
from tests.unit.ops.cases.convolution import loops_conv2d
from tests.unit.ops.cases.pooling import apart


def _call(*given: Expr, ta: bool = False, tb: bool = False, activation: Any = None) -> Expr:
    nodes = [each.node for each in given]
    return Expr(matmul_epilogue(*nodes, ta=ta, tb=tb, activation=activation, attributes=()))


def _accumulate(*given: Expr, ta: bool = False, tb: bool = False) -> Expr:
    return Expr(matmul_accumulate(*[each.node for each in given], ta=ta, tb=tb))


_HOW: dict[str, Any] = {
    "stride": (2, 1),
    "padding": ((1, 1), (0, 1)),
    "dilation": (1, 1),
    "groups": 1,
}


def _convolution(*given: Expr, activation: Any = None) -> Expr:
    nodes = [each.node for each in given]
    return Expr(conv2d_epilogue(*nodes, **_HOW, activation=activation, attributes=()))


def _pooling(x: Expr, bias: Expr) -> Expr:
    how: dict[str, Any] = {
        "size": (2, 2),
        "stride": (2, 2),
        "padding": ((0, 0), (0, 0)),
        "dilation": (1, 1),
    }
    return Expr(max_pool2d_epilogue.outputs(x.node, bias.node, activated=True, **how)[0])


_A, _B = numbers(3, 2), numbers(2, 4)

CASES = [
    Case("matmul_epilogue", _call, (_A, _B), lambda a, b: a @ b, name="product", order=2),
    Case(
        "matmul_epilogue",
        _call,
        (_A, _B, numbers(4, seed=1)),
        lambda a, b, c: a @ b + c,
        name="bias",
    ),
    Case(
        "matmul_epilogue",
        lambda a, b, c: _call(a, b, c, ta=True, tb=True, activation="tanh"),
        (numbers(2, 2, 3), numbers(2, 4, 2), numbers(1, 4, seed=1)),
        lambda a, b, c: np.tanh(a.swapaxes(1, 2) @ b.swapaxes(1, 2) + c),
        name="all",
        order=2,
    ),
    Case(
        "matmul_epilogue",
        _call,
        (numbers(2, 5), numbers(5, 2), numbers(2, seed=1)),
        lambda a, b, c: a @ b + c,
        name="long sums",
    ),
    Case(
        "conv2d_epilogue",
        _convolution,
        (numbers(2, 2, 4, 3), numbers(3, 2, 2, 2)),
        lambda x, w: loops_conv2d(x, w, **_HOW),
        name="convolution",
    ),
    Case(
        "conv2d_epilogue",
        lambda *given: _convolution(*given, activation="tanh"),
        (numbers(2, 2, 4, 3), numbers(3, 2, 2, 2), numbers(3, 1, 1, seed=1)),
        lambda x, w, b: np.tanh(loops_conv2d(x, w, **_HOW) + b),
        name="all",
    ),
    Case(
        "max_pool2d_epilogue",
        _pooling,
        (apart(2, 3, 4, 5), numbers(3, 1, 1, seed=1)),
        lambda x, b: np.maximum(
            x.reshape(2, 3, 2, 2, 5)[..., :4].reshape(2, 3, 2, 2, 2, 2).max((3, 5)) + b, 0
        ),
        name="all",
    ),
    Case(
        "matmul_accumulate",
        _accumulate,
        (numbers(3, 4), _A, _B, numbers(), numbers(seed=1)),
        lambda c, a, b, alpha, beta: beta * c + alpha * (a @ b),
        name="plain",
        order=2,
    ),
    Case(
        "matmul_accumulate",
        lambda *given: _accumulate(*given, ta=True, tb=True),
        (numbers(3, 4), numbers(2, 3), numbers(4, 2), numbers(), numbers(seed=1)),
        lambda c, a, b, alpha, beta: beta * c + alpha * (a.T @ b.T),
        name="transposed",
    ),
]
