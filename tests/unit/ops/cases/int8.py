"""Cases for products and convolutions with weights of 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.ops.int8 import PANEL, int8_conv2d, int8_conv2d_relu, int8_linear
from caldera.nn.quantised import filters_of, panels_of
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


def _convolution(
    images: int, channels: int, filters: int, step: float | None, *, added: bool | None
) -> Case:
    """A convolution of 3 x 2 taps; with relu, and an image added before, unless `added` is None."""
    draw = np.random.default_rng([images, channels, filters])
    weight = draw.integers(-127, 128, (filters, channels, 3, 2)).astype("int8")
    scale, offset = np.zeros((2, -(-filters // PANEL) * PANEL), "float32")
    scale[:filters], offset[:filters] = draw.uniform(0.001, 0.01, (2, filters))
    kernel = int8_conv2d if added is None else int8_conv2d_relu
    how: dict[str, Any] = {"filters": filters, "step": step, "stride": (2, 1), "dilation": (1, 1)}
    how["padding"] = ((1, 0), (0, 1))

    def convolution(x: Expr, *more: Expr) -> Any:
        given = [lift(each) for each in (filters_of(weight), scale, offset)]
        first, *others = (op.cast(each, "float32").node for each in (x, *more))
        return Expr(kernel(first, *given, *others, **how))

    def expected(x: np.ndarray, *more: np.ndarray) -> Any:
        x = x.astype("float32")
        steps = np.abs(x).max((1, 2, 3), keepdims=True) / np.float32(127)
        steps = steps if step is None else np.float32(step)
        whole = np.clip(np.rint(x * (np.float32(1) / steps)), -127, 127).astype("int32")
        whole = np.pad(whole, ((0, 0), (0, 0), (1, 0), (0, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(whole, (3, 2), (2, 3))[:, :, ::2]
        sums = np.einsum("nchwrs,fcrs->nfhw", windows, weight.astype("int32"))
        factor, shift = (each[:filters].reshape(-1, 1, 1) for each in (scale, offset))
        found = sums.astype("float32") * steps * factor + shift
        for each in more:
            found = found + each.astype("float32")
        return found if added is None else np.maximum(found, 0)

    more = [numbers(images, filters, 2, 4)] if added else []
    inputs = (numbers(images, channels, 5, 4), *more)
    name = f"{images}x{channels}x{filters}-{step}-{added}"
    return Case(kernel.name, convolution, inputs, expected, differentiable=False, name=name)


CASES = [
    _convolution(2, 5, 17, None, added=None),
    _convolution(1, 8, 16, 0.02, added=None),
    _convolution(2, 4, 3, None, added=False),
    _convolution(2, 9, 32, 0.02, added=True),
    _product(1, 70, 40, None, bias=True),
    _product(3, 5, 7, None, bias=False),
    _product(9, 16, 64, 0.01, bias=True),
    _product(2, 1, 100, 0.5, bias=False),
]
