"""Elastic averaging: ranks are drawn to a common centre, and the centre to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.errors import ConfigError
from caldera.parallel.averaging.periodic import PeriodicAveraging, sums, wide
from caldera.parallel.data.sums import mean_over_ranks
from caldera.train.strategy import RunSetup

CENTRE = "centre/"


class ElasticAveraging(PeriodicAveraging):
    """EASGD (Zhang, Choromanska, LeCun 2015): every rank searches by itself, on an elastic band.

    Every `every` steps, the parameters x of each of n ranks and the centre c become

        x - coupling / n * (x - c)    and    c + coupling / n * (sum over ranks of x - c)

    What ranks gain the centre loses, so its sum with all ranks stays as it was. With `coupling=1`
    the centre becomes the mean of the ranks. The result of training, and what validation between
    epochs is about, is the centre, with the mean of the ranks' running statistics.

    With `coupling=0` there are n independent runs: nothing is exchanged, and every rank has its own
    model at the end. On one rank this is plain training.

    >>> from caldera import parallel
    >>> parallel.ElasticAveraging(coupling=0.5, every=4)
    ElasticAveraging(coupling=0.5, every=4)
    """

    def __init__(
        self,
        coupling: float = 0.9,
        every: int = 10,
        *,
        algorithm: str = "auto",
        communicator: Communicator | None = None,
    ) -> None:
        if not 0 <= coupling <= 1:
            raise ConfigError.build(
                "ElasticAveraging",
                expected="0 <= coupling <= 1",
                got=repr(coupling),
                hint="beyond 1 the centre overshoots the mean of the ranks",
            )
        super().__init__(every, communicator, algorithm)
        self.coupling = float(coupling)
        self._centre: dict[Variable, Variable] = {}

    def __repr__(self) -> str:
        return f"ElasticAveraging(coupling={self.coupling:g}, every={self.every})"

    @property
    def is_whole(self) -> bool:
        return super().is_whole or not self.coupling

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        self._centre = {}
        if not self.is_whole:
            for each in setup.model.trainable():
                start = wide(each)
                self._centre[each] = op.var(
                    each.name,
                    each.shape,
                    fill=start.numpy(),
                    dtype=start.dtype,
                    device=each.tensor.device,
                )

    def exchanged(self) -> list[Expr]:
        rate = self.coupling / self.communicator.size
        away = {each: wide(each) - centre for each, centre in self._centre.items()}
        pulls = sums(list(away.values()))
        updates = [
            op.assign(each, op.cast(wide(each) - rate * away[each], each.dtype)) for each in away
        ]
        for centre, pull in zip(self._centre.values(), pulls, strict=True):
            updates.append(op.assign(centre, centre + rate * pull))
        return updates

    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        others = [each for each in variables if each not in self._centre]
        means = mean_over_ranks(self.communicator, [each.numpy() for each in others])
        found = dict(zip(others, means, strict=True))
        found |= {each: centre.numpy().astype(each.dtype) for each, centre in self._centre.items()}
        return [found[each] for each in variables]

    def end(self) -> None:
        if self.coupling:
            super().end()

    # --- checkpoints

    def saved(self) -> dict[str, np.ndarray]:
        centre = {f"{CENTRE}{each.name}": c.numpy() for each, c in self._centre.items()}
        return super().saved() | centre

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        for each, centre in self._centre.items():
            # A run of another strategy has no centre: then it begins where the model is.
            kept = arrays.get(f"{CENTRE}{each.name}")
            centre.assign(wide(each).numpy() if kept is None else kept)
        super().restore(arrays)
