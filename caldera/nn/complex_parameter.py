"""Complex parameters of layers, stored as real ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor import Filler, Tensor


class ComplexParameter(Expr):
    """A complex value whose real and imaginary parts are a variable with a last axis of 2.

    `parts` is that variable: optimizers, files and strategies see real numbers, so that a step of
    Adam, say, treats both parts as PyTorch's does. Made by `Layer.parameter(..., is_complex=True)`.

    >>> from caldera import op
    >>> weight = ComplexParameter(op.var("weight", (2, 2)))
    >>> weight.assign([1.0 + 2.0j, 3.0])
    >>> weight.shape, weight.numpy().tolist(), weight.parts.tolist()
    ((2,), [(1+2j), (3+0j)], [[1.0, 2.0], [3.0, 0.0]])
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Variable) -> None:
        super().__init__(op.view_as_complex(parts).node)
        self.parts = parts

    def assign(self, value: Any) -> None:
        """Set the value now, from an array or anything that can become one."""
        self.parts.assign(as_parts(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return ComplexParameter, (self.parts,)


def as_parts(value: Any) -> np.ndarray:
    """Return real and imaginary parts along a last axis of 2."""
    array = np.asarray(value)
    return np.stack([array.real, array.imag], axis=-1)


def filled_parts(shape: tuple[int, ...], fill: Any, dtype: Any) -> Any:
    """Return the first values of both parts: a filler fills each, such that the variance stays."""
    if isinstance(fill, Filler):
        each = [Tensor(shape, fill=fill, dtype=dtype).numpy().copy() for _ in range(2)]
        return np.stack(each, axis=-1) / np.sqrt(2.0)
    return None if fill is None else np.broadcast_to(as_parts(fill), (*shape, 2))
