"""A loop with reductions together with its arrays, for whichever device runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
