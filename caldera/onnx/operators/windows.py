"""Windows over any number of axes: where they lie, what they cover, and putting them together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.onnx.operators.registry import Value

Sizes = tuple[int, ...]

PLACING = ("strides", "dilations", "pads", "auto_pad")
"""The attributes that say where windows lie."""


@dataclass(frozen=True)
class AxisWindows:
    """Windows laid over the axes of an image, one entry an axis.

    `before` and `after` are the padding; `beyond` is how far the last window sticks out of it, as
    happens in ceil mode.
    """

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    before: Sizes
    after: Sizes
    beyond: Sizes
    outputs: Sizes

    @property
    def reach(self) -> Sizes:
        """How much of the image a window covers, the gaps of its dilation included."""
        return _reach(self.kernel, self.dilations)

    @property
    def is_plain(self) -> bool:
        """Whether every window lies inside the padding."""
        return not any(self.beyond)

    def padding(self) -> list[tuple[int, int]]:
        """(before, after) for each axis, with what the last window needs."""
        return [(a, b + c) for a, b, c in zip(self.before, self.after, self.beyond, strict=True)]


def _reach(kernel: Sizes, dilations: Sizes) -> Sizes:
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True))


def lay_windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> AxisWindows:
    """The windows that ONNX's attributes describe."""
    rank = len(kernel)
    steps = tuple(strides or (1,) * rank)
    gaps = tuple(dilations or (1,) * rank)
    reach = _reach(tuple(kernel), gaps)
    given = tuple(pads or (0,) * (2 * rank))
    axes: list[tuple[int, int, int, int]] = []
    for i, n in enumerate(sizes):
        if auto_pad in ("NOTSET", ""):
            axes.append(_explicit(n, reach[i], steps[i], given[i], given[i + rank], ceil_mode))
        else:
            axes.append(_automatic(n, reach[i], steps[i], auto_pad))
    before, after, beyond, outputs = zip(*axes, strict=True)
    return AxisWindows(tuple(kernel), steps, gaps, before, after, beyond, outputs)


def _explicit(
    n: int, reach: int, stride: int, before: int, after: int, ceil_mode: int
) -> tuple[int, int, int, int]:
    room = n + before + after - reach
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    # A window that would begin behind the image covers nothing of it.
    if ceil_mode and (count - 1) * stride >= n + before:
        count -= 1
    return before, after, max((count - 1) * stride - room, 0), count


def _automatic(n: int, reach: int, stride: int, how: str) -> tuple[int, int, int, int]:
    if how == "VALID":
        return 0, 0, 0, (n - reach) // stride + 1
    if how not in ("SAME_UPPER", "SAME_LOWER"):
        raise ConfigError.build("onnx", expected="a way to pad that is known", got=repr(how))
    count = -(-n // stride)
    total = max((count - 1) * stride + reach - n, 0)
    small = total // 2
    before = small if how == "SAME_UPPER" else total - small
    return before, total - before, 0, count


def positions(kernel: Sizes) -> Iterator[Sizes]:
    """The elements of a window, in row-major order."""
    return itertools.product(*map(range, kernel))


def padded(x: Value, windows: AxisWindows, value: float) -> Expr:
    """Images (N, C, ...) with their padding around them."""
    return op.pad(x, [(0, 0), (0, 0), *windows.padding()], value)


def unfold(x: Any, windows: AxisWindows) -> list[Any]:
    """For each element of the window, what it meets: a padded image, one value a window."""
    parts = []
    for position in positions(windows.kernel):
        cut = [slice(None), slice(None)]
        for i, place in enumerate(position):
            start = place * windows.dilations[i]
            stop = start + (windows.outputs[i] - 1) * windows.strides[i] + 1
            cut.append(slice(start, stop, windows.strides[i]))
        parts.append(x[tuple(cut)])
    return parts


def fold(parts: Sequence[Value], windows: AxisWindows, sizes: Sequence[int]) -> Expr:
    """The opposite: values of each element of the window added where they came from."""
    total: Expr | None = None
    for position, part in zip(positions(windows.kernel), parts, strict=True):
        widths = [(0, 0), (0, 0)]
        for i, place in enumerate(position):
            part = _spread(part, 2 + i, windows.strides[i])
            start = place * windows.dilations[i]
            widths.append((start, sizes[i] - start - part.shape[2 + i]))
        whole = op.pad(part, widths)
        total = whole if total is None else op.add(total, whole)
    assert total is not None
    return total


def _spread(x: Value, axis: int, stride: int) -> Value:
    """Zeros between the elements of an axis."""
    if stride == 1:
        return x
    shape = x.shape
    wide = op.pad(
        op.unsqueeze(x, axis + 1),
        [(0, stride - 1) if each == axis + 1 else (0, 0) for each in range(len(shape) + 1)],
    )
    length = shape[axis] * stride
    joined = op.reshape(wide, (*shape[:axis], length, *shape[axis + 1 :]))
    return op.slice(joined, [None] * (axis + 1), [None] * axis + [length - stride + 1])


def places(windows: AxisWindows, sizes: Sequence[int]) -> np.ndarray:
    """For each element of the window and each window, its place in the flattened image."""
    grids = np.indices(windows.outputs)
    found = []
    for position in positions(windows.kernel):
        index = np.zeros(windows.outputs, np.int64)
        for i, n in enumerate(sizes):
            start = position[i] * windows.dilations[i] - windows.before[i]
            index = index * n + grids[i] * windows.strides[i] + start
        found.append(index)
    return np.stack(found)
