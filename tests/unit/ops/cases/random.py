"""Cases for random ops. They are constants to a derivative: the numbers stay while a step lasts."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.core.tensor import philox
from caldera.core.tensor.dtype import DType, float32, float64
from tests.unit.ops.case import Case, numbers

_SEED, _STEP, _STREAM = 7, 3, 9
_SOURCE: dict[str, Any] = {"state": np.array([_SEED, _STEP]), "stream": _STREAM}


def _draws(first: int, *shape: int, dtype: DType = float32) -> np.ndarray:
    count = int(np.prod(shape))
    return philox.uniform01(_SEED, _STEP, _STREAM, first, count, dtype).reshape(shape)


def _normals(*shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return philox.normal(_SEED, _STEP, _STREAM, 0, count, float64).reshape(shape)


CASES = [
    Case(
        "random_uniform",
        lambda x: x * op.random_uniform((2, 3), -1.0, 2.0, **_SOURCE),
        (numbers(2, 3),),
        lambda x: x * (_draws(0, 2, 3) * 3 - 1),
        order=2,
    ),
    Case(
        "random_uniform",
        lambda low: op.random_uniform((2, 3), low, low * 2.0, "float64", **_SOURCE),
        (numbers(3),),
        lambda low: low * (1 + _draws(0, 2, 3, dtype=float64)),
        name="bounds",
    ),
    Case(
        "random_normal",
        lambda mean, deviation: op.random_normal((2, 3), mean, deviation, "float64", **_SOURCE),
        (numbers(3), numbers(2, 1)),
        lambda mean, deviation: mean + deviation * _normals(2, 3),
        order=2,
    ),
    Case(
        "random_uniform",
        lambda x: op.where(op.bernoulli((4,), 0.5, **_SOURCE), x, x * x),
        (numbers(4),),
        lambda x: np.where(_draws(0, 4) < 0.5, x, x * x),
        order=2,
        name="bernoulli",
    ),
    Case(
        "dropout",
        lambda x: op.dropout(x, 0.25, offset=5, **_SOURCE),
        (numbers(3, 4),),
        lambda x: np.where(_draws(5, 3, 4) < 0.75, x / 0.75, 0.0),
        order=2,
    ),
    Case(
        "dropout",
        lambda x: op.dropout(x, 1, **_SOURCE),
        (numbers(3),),
        np.zeros_like,
        name="everything",
    ),
    Case(
        "dropout",
        lambda x: op.dropout(x, 0.5, **_SOURCE),
        (numbers(0, 2),),
        np.zeros_like,
        name="nothing",
    ),
]
