"""Cases for products with weights, biases and embeddings, which are made of other ops."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers

_W, _B = numbers(3, 2, seed=1), numbers(2, seed=2)
CASES = [
    Case(
        "matmul",
        op.linear,
        (numbers(*shape, 3), _W, _B),
        lambda x, w, b: x @ w + b,
        order=2,
        name="linear",
    )
    for shape in [(2,), (2, 2), (), (0,)]
]
CASES += [
    Case("matmul", op.linear, (numbers(2, 3), _W), lambda x, w: x @ w, name="linear, no bias"),
    Case("add", op.bias_add, (numbers(2, 2), _B), lambda x, b: x + b, order=2, name="bias"),
    Case(
        "add",
        lambda x, b: op.bias_add(x, b, axis=1),
        (numbers(3, 2, 2), _B),
        lambda x, b: x + b[:, None],
        order=2,
        name="bias of channels",
    ),
    Case(
        "gather",
        op.embedding,
        (numbers(4, 2), np.array([[3, 0, 3]])),
        lambda t, i: t[i],
        name="embedding",
    ),
]
