"""Reductions on whichever device: a loop with its arrays, and what their partial results are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from caldera.kernels.common.loop_body import LoopBody
from caldera.tensor.shape import Shape


@dataclass(frozen=True)
class ReductionTask:
    """A loop with reductions. `results` have the rank of the loop, with 1 for reduced axes."""

    loop_body: LoopBody
    shape: Shape
    axes: tuple[int, ...]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    results: Sequence[np.ndarray]


def neutral(op: str, dtype: str) -> bool | int | float:
    """The number that changes nothing in a reduction."""
    if op in ("sum", "prod"):
        return 1 if op == "prod" else 0
    if dtype.startswith(("float", "bfloat")):
        return -inf if op == "max" else inf
    bits = {"bool": 1, "uint8": 8, "int8": 7, "int16": 15, "int32": 31, "int64": 63}[dtype]
    lowest = 0 if dtype in ("bool", "uint8") else -(1 << bits)
    return lowest if op == "max" else (1 << bits) - 1


def accumulated(op: str, dtype: str) -> str:
    """The dtype of partial results: sums and products of floats are kept in float64."""
    if op in ("sum", "prod") and dtype.startswith(("float", "bfloat")):
        return "float64"
    return "float32" if dtype in ("float16", "bfloat16") else dtype
