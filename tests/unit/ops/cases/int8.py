"""Cases for products with weights of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.ops.int8 import PANEL, int8_linear
from caldera.nn.quantised import panels_of
from tests.unit.ops.case import Case, numbers


def _product(rows: int, inputs: int, columns: int, step: float | None, *, bias: bool) -> Case:
    draw = np.random.default_rng([rows, inputs, columns])
    weight = draw.integers(-127, 128, (inputs, columns)).astype("int8")
    scale = np.zeros(-(-columns // PANEL) * PANEL, "float32")
    scale[:columns] = draw.uniform(0.001, 0.01, columns)
    offset = np.where(scale > 0, draw.normal(size=scale.shape), 0).astype("float32")

    def product(x: Expr) -> Any:
        given = [lift(panels_of(weight)), lift(scale), *([lift(offset)] if bias else [])]
        return Expr(int8_linear(op.cast(x, "float32").node, *given, columns=columns, step=step))

    def expected(x: np.ndarray) -> Any:
        x = x.astype("float32")
        steps = np.abs(x).max(1, keepdims=True) / np.float32(127) if step is None else step
        steps = np.maximum(np.float32(steps), np.float32(2.0**-100))
        whole = np.clip(np.rint(x / steps), -127, 127).astype("int32") @ weight.astype("int32")
        found = whole.astype("float32") * steps * scale[:columns]
        return found + offset[:columns] if bias else found

    name = f"{rows}x{inputs}x{columns}-{step}"
    inputs_of = (numbers(rows, inputs),)
    return Case("int8_linear", product, inputs_of, expected, differentiable=False, name=name)


CASES = [
    _product(1, 70, 40, None, bias=True),
    _product(3, 5, 7, None, bias=False),
    _product(9, 16, 64, 0.01, bias=True),
    _product(2, 1, 100, 0.5, bias=False),
]
