"""Cases for pooling, against plain loops over every window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.node import Node
from caldera.core.graph.ops import product
from tests.unit.ops.case import Case, numbers

Window = Callable[[np.ndarray], float]


def loops_pool2d(
    x: np.ndarray, reduce: Window, *, size: Any, stride: Any, padding: Any, dilation: Any = (1, 1)
) -> np.ndarray:
    """`reduce` on the elements of each window; nan marks padding."""
    image = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=np.nan)
    reach = [dilation[i] * (size[i] - 1) + 1 for i in (0, 1)]
    height, width = ((image.shape[2 + i] - reach[i]) // stride[i] + 1 for i in (0, 1))
    result = np.zeros((*x.shape[:2], height, width))
    for n, c, row, column in np.ndindex(*result.shape):
        top, left = row * stride[0], column * stride[1]
        window = image[
            n, c, top : top + reach[0] : dilation[0], left : left + reach[1] : dilation[1]
        ]
        result[n, c, row, column] = reduce(window)
    return result


def mean_with_padding(window: np.ndarray) -> float:
    """The mean, padding counted as 0."""
    return float(np.nansum(window) / window.size)


# name, shape, size, stride, padding
_WINDOWS: list[Any] = [
    ("side by side", (2, 2, 4, 5), (2, 2), (2, 2), ((0, 0), (0, 0))),
    ("overlapping", (1, 2, 4, 4), (3, 2), (1, 1), ((0, 0), (0, 0))),
    ("padded", (1, 2, 4, 3), (3, 3), (2, 2), ((1, 1), (1, 1))),
    ("asymmetric", (1, 1, 3, 4), (2, 3), (2, 1), ((1, 0), (0, 2))),
    ("apart", (1, 1, 5, 5), (1, 2), (2, 3), ((0, 0), (0, 0))),
    ("whole image", (2, 2, 3, 2), (3, 2), (1, 1), ((0, 0), (0, 0))),
    ("no images", (0, 2, 4, 4), (2, 2), (2, 2), ((0, 0), (0, 0))),
]


def apart(*shape: int) -> np.ndarray:
    """Numbers in random order with gaps that finite differences do not cross."""
    count = int(np.prod(shape))
    order = np.random.default_rng(list(shape)).permutation(count)
    return (order * 0.1 - 1.0).reshape(shape)


def _index_like(shape: tuple[int, ...], size: Any) -> Node:
    """An index into windows, as `max_pool2d` might give it."""
    drawn = np.random.default_rng(3).integers(0, size[0] * size[1], shape)
    return lift(drawn.astype(product.index_dtype(size)))


def _max_cases() -> list[Case]:
    cases = []
    for name, shape, size, stride, padding in _WINDOWS:
        how = {"size": size, "stride": stride, "padding": padding}
        cases.append(
            Case(
                "max_pool2d",
                lambda x, how=how: op.max_pool2d(x, **how),
                (apart(*shape),),
                lambda x, how=how: loops_pool2d(x, np.nanmax, **how),
                name=name,
            )
        )
        small = loops_pool2d(np.zeros(shape), np.nanmax, **how).shape
        index = _index_like(small, size)
        attrs = {**how, "dilation": (1, 1)}
        cases.append(
            Case(
                "pool_gather",
                lambda x, i=index, attrs=attrs: Expr(product.pool_gather(x.node, i, **attrs)),
                (numbers(*shape),),
                name=name,
            )
        )
        attrs = {**attrs, "shape": shape}
        cases.append(
            Case(
                "pool_scatter",
                lambda g, i=index, attrs=attrs: Expr(product.pool_scatter(g.node, i, **attrs)),
                (numbers(*small),),
                name=name,
            )
        )
    return cases


def _average_cases() -> list[Case]:
    cases = []
    for name, shape, size, stride, padding in _WINDOWS:
        for counted in (True, False):
            how = {"size": size, "stride": stride, "padding": padding}
            reduce = mean_with_padding if counted else np.nanmean
            cases.append(
                Case(
                    "avg_pool2d",
                    lambda x, how=how, counted=counted: op.avg_pool2d(
                        x, count_padding=counted, **how
                    ),
                    (numbers(*shape),),
                    lambda x, how=how, reduce=reduce: loops_pool2d(x, reduce, **how),
                    name=f"{name}, padding counted: {counted}",
                )
            )
            small = loops_pool2d(np.zeros(shape), np.nanmax, **how).shape
            attrs = {**how, "shape": shape, "count_padding": counted}
            cases.append(
                Case(
                    "avg_pool2d_input",
                    lambda g, attrs=attrs: Expr(product.avg_pool2d_input(g.node, **attrs)),
                    (numbers(*small),),
                    name=f"{name}, padding counted: {counted}",
                )
            )
    return cases


_DILATED = {"size": (2, 2), "stride": (1, 2), "padding": ((1, 0), (1, 1)), "dilation": (2, 3)}

CASES = _max_cases() + _average_cases()
CASES += [
    Case(
        "max_pool2d",
        lambda x: op.max_pool2d(x, **_DILATED),
        (apart(1, 2, 4, 5),),
        lambda x: loops_pool2d(x, np.nanmax, **_DILATED),
        name="dilated",
    ),
    Case(
        "mean",
        lambda x: op.global_average_pool(x),
        (numbers(2, 3, 2, 2),),
        lambda x: x.mean((2, 3)),
        name="global_average_pool",
    ),
]
