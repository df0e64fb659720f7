"""Description of a time series for a model: its columns and the columns to forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from caldera.data.tables.encoders import NumberEncoder


class TargetScale(NamedTuple):
    """Mean and deviation of the targets: a single pair, or a pair per index of the last axis.

    >>> TargetScale(20.0, 2.0).mean
    20.0
    """

    mean: float | tuple[float, ...]
    scale: float | tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """Windows of a series: their lengths, and the scale of their targets.

    - `columns`: names of the columns; empty strings for columns without names.
    - `past`, `future`: numbers of known steps and of forecast steps.
    - `targets`: positions of the forecast columns, and `scales`, the encoder fitted to each.

    >>> level = NumberEncoder(mean=5.0, scale=2.0, median=5.0)
    >>> Series(("level",), past=28, future=2, targets=(0,), scales=(level,)).outputs
    ('level +1', 'level +2')
    """

    columns: tuple[str, ...]
    past: int
    future: int
    targets: tuple[int, ...]
    scales: tuple[NumberEncoder, ...]

    @property
    def target_scale(self) -> TargetScale:
        """Mean and deviation of the outputs, which are all targets of a step, step by step."""
        means, scales = zip(*((each.mean, each.scale) for each in self.scales), strict=True)
        if len(means) == 1:
            return TargetScale(means[0], scales[0])
        return TargetScale(means * self.future, scales * self.future)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the numbers that a model predicts."""
        names = [self.columns[each] or f"column {each}" for each in self.targets]
        return tuple(f"{name} +{step + 1}" for step in range(self.future) for name in names)

    def problem(self) -> str:
        """Return the fault of a series that was read from a file; "" if it is valid."""
        if self.past < 1 or self.future < 1:
            return f"windows of {self.past} and {self.future} steps"
        if not self.targets or len(self.scales) != len(self.targets):
            return f"{len(self.scales)} scales for {len(self.targets)} columns"
        if not all(0 <= each < len(self.columns) for each in self.targets):
            return f"the columns {self.targets} among {len(self.columns)}"
        for each in self.scales:
            if not np.isfinite((each.mean, each.scale)).all() or each.scale <= 0:
                return f"a scale of {each.scale}"
        return ""
