"""Which stages of a pipeline may run on a device."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.data.loading.pipeline import Pipeline
from caldera.data.random_draws import LazyDraw
from caldera.data.sources.base import Arrays


def device_splits(pipeline: Pipeline) -> tuple[int | None, ...]:
    """How many of its stages the host may run, before the device runs the others.

    First as few as possible: then bytes are copied, not floats. Then as many as do not make batches
    larger, if these are more. At last all of them, which is None.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.zeros((10, 3, 8, 8), np.uint8)
    >>> stages = [data.Mirror(), data.Cutout(2), data.Normalise(0.5, 1.0)]
    >>> device_splits(data.Pipeline(images, stages))
    (0, 2, None)
    >>> device_splits(data.Pipeline(images, [lambda x, draw: x, data.Mirror()]))
    (1, 2, None)
    """
    sizes: dict[int, int] = {}
    for end in reversed(range(len(pipeline.stages))):
        arrays = pipeline.example(end)
        if not can_run_on_device(pipeline, arrays, end):
            break
        sizes[end] = _bytes(arrays)
    finished = _bytes(pipeline.example())
    smallest = min(sizes.values(), default=finished)
    few = [min(sizes)] if sizes else []
    many = [max(end for end in sizes if sizes[end] == smallest)] if sizes else []
    return (*dict.fromkeys([*few, *many]), None)


def can_run_on_device(pipeline: Pipeline, arrays: Arrays, first: int) -> bool:
    """Whether a device can run all stages from `first` on.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.zeros((1, 3, 8, 8), np.uint8)
    >>> can_run_on_device(data.Pipeline(images, data.Mirror()), (images,), 0)
    True
    """
    if any(array.dtype == object for array in arrays):
        return False
    inputs = tuple(
        op.input(f"array {number}", array.shape, dtype=array.dtype)
        for number, array in enumerate(arrays)
    )
    draw = LazyDraw(np.zeros(2, np.int64), np.int64(0))
    return pipeline.stages.expressions(inputs, draw, first) is not None


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)
