"""Where the operands of a loop lie: axes in the order of memory, joined where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from caldera.core.tensor.shape import Shape

Item = TypeVar("Item")


@dataclass(frozen=True)
class Axes:
    """A loop's lengths from the outermost axis to the innermost, which are reduced, and for each
    operand the bytes between neighbours along each of them."""

    lengths: tuple[int, ...]
    reduced: tuple[bool, ...]
    strides: tuple[tuple[int, ...], ...]

    def without(self, axis: int) -> Axes:
        """The loop less one of its axes."""
        return Axes(
            _less(self.lengths, axis),
            _less(self.reduced, axis),
            tuple(_less(each, axis) for each in self.strides),
        )

    def modes(self, itemsizes: Sequence[int]) -> str:
        """How each operand runs along the innermost axis: "1" dense, "0" constant, "s" strided."""
        inner = [each[-1] for each in self.strides]
        return "".join(
            "0" if step == 0 else "1" if step == size else "s"
            for step, size in zip(inner, itemsizes, strict=True)
        )


def _less(values: tuple[Item, ...], index: int) -> tuple[Item, ...]:
    return values[:index] + values[index + 1 :]


def _strides(array: np.ndarray, shape: Shape) -> tuple[int, ...]:
    """The array's strides along the axes of a shape that it broadcasts to."""
    own = zip(array.shape, array.strides, strict=True)
    return (0,) * (len(shape) - array.ndim) + tuple(0 if n == 1 else step for n, step in own)


def axes_of(shape: Shape, arrays: Sequence[np.ndarray], reduced: Sequence[int] = ()) -> Axes:
    """The loop over `shape`; the order of its axes is that of the first array that fills it."""
    views = [_strides(array, shape) for array in arrays]
    axes = [axis for axis, length in enumerate(shape) if length != 1]
    lead = next((each for each in views if all(each[axis] for axis in axes)), None)
    if lead is not None:
        axes.sort(key=lambda axis: -abs(lead[axis]))
    found = Axes(
        tuple(shape[axis] for axis in axes),
        tuple(axis in reduced for axis in axes),
        tuple(tuple(each[axis] for axis in axes) for each in views),
    )
    if not axes:
        return Axes((1,), (bool(reduced),), ((0,),) * len(views))
    return _joined(found)


def _joined(axes: Axes) -> Axes:
    """Neighbours made one where every operand goes on from the one to the other."""
    outer = len(axes.lengths) - 2
    while outer >= 0:
        inner = outer + 1
        steady = all(each[outer] == each[inner] * axes.lengths[inner] for each in axes.strides)
        if steady and axes.reduced[outer] == axes.reduced[inner]:
            length = axes.lengths[outer] * axes.lengths[inner]
            axes = axes.without(outer)
            lengths = list(axes.lengths)
            lengths[outer] = length
            axes = Axes(tuple(lengths), axes.reduced, axes.strides)
        outer -= 1
    return axes
