"""A loop with reductions together with its arrays, for whichever device runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.kernels.recipe import Recipe
from caldera.tensor.shape import Shape


@dataclass(frozen=True)
class Task:
    """A loop with reductions. `results` have the rank of the loop, with 1 for reduced axes."""

    recipe: Recipe
    shape: Shape
    axes: tuple[int, ...]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    results: Sequence[np.ndarray]
