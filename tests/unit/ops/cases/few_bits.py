"""Cases for weights of 8 and 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.ops.few_bits import dequantise, few_bits_linear, padded, quantised
from tests.unit.ops.case import Case, numbers


def by_numpy(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Decode weights one by one."""
    rows, groups = scale.shape
    if codes.dtype == np.int8:
        return codes.astype("float32") * scale
    found = np.zeros((rows, 2 * codes.shape[1]), "float32")
    for place in range(found.shape[1]):
        block, inside = divmod(place, 128)
        number, word = divmod(inside, 16)
        byte = codes[:, 64 * block + 4 * word + number // 2]
        found[:, place] = (byte >> 4 * (number % 2) & 15).astype("float32") - 8
    return found * np.repeat(scale, found.shape[1] // groups, 1)


def _product(rows: int, inputs: int, outputs: int, bits: int, group: int) -> Case:
    draw = np.random.default_rng([rows, inputs, outputs, bits])
    weight = draw.normal(size=(outputs, inputs)).astype("float32")
    codes, scale = quantised(weight, bits, group)
    wide = padded(inputs, bits)

    def product(x: Expr) -> Any:
        given = op.cast(x, "float32").node
        return Expr(few_bits_linear(given, lift(codes), lift(scale)))

    def expected(x: np.ndarray) -> Any:
        return x.astype("float32") @ by_numpy(codes, scale).T

    name = f"{rows}x{inputs}x{outputs}-{bits}-{group}"
    inputs_of = (numbers(rows, wide),)
    return Case("few_bits_linear", product, inputs_of, expected, differentiable=False, name=name)


def _matrix(rows: int, columns: int, bits: int, group: int) -> Case:
    draw = np.random.default_rng([rows, columns, bits])
    codes, scale = quantised(draw.normal(size=(rows, columns)).astype("float32"), bits, group)

    def matrix(factor: Expr) -> Any:
        scales = op.cast(factor, "float32") * scale
        return Expr(dequantise(lift(codes), scales.node, columns=columns))

    def expected(factor: np.ndarray) -> Any:
        return by_numpy(codes, factor.astype("float32") * scale)[:, :columns]

    name = f"{rows}x{columns}-{bits}-{group}"
    return Case("dequantise", matrix, (numbers(1, 1),), expected, differentiable=False, name=name)


CASES = [
    _product(1, 70, 40, 8, 0),
    _product(5, 128, 7, 8, 0),
    _product(3, 130, 9, 4, 32),
    _product(1, 300, 5, 4, 64),
    _product(9, 128, 6, 4, 128),
    _matrix(3, 5, 8, 0),
    _matrix(7, 200, 4, 32),
    _matrix(2, 128, 4, 128),
]
