"""A check of an op: a function of expressions, the arrays it is called with, and NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One use of an op.

    `function` takes an expression for each input. `expected` takes the same arrays and gives what
    NumPy (or a plain loop) computes; None where another test knows the right answer.
    `differentiable=False` for ops without a derivative; `order=2` checks second derivatives too.
    """

    op: str
    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    expected: Callable[..., Any] | None = None
    differentiable: bool = True
    order: int = 1
    name: str = ""

    @property
    def label(self) -> str:
        shapes = ",".join("x".join(map(str, array.shape)) or "scalar" for array in self.inputs)
        return f"{self.op}-{self.name}-{shapes}"


def numbers(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Random float64 numbers, the same every time."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape)


def complex_numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Random complex128 numbers, the same every time."""
    return numbers(*shape, seed=seed) + 1j * numbers(*shape, seed=seed + 100)
