"""Local SGD: ranks train by themselves and take the mean of their models now and then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.graph.ops.collective import Message, all_reduce, next_number
from caldera.lazy import Expr, Variable
from caldera.parallel.averaging.periodic import PeriodicAveraging, sums, wide
from caldera.parallel.data.sums import mean_over_ranks
from caldera.parallel.options import check_choice

STATE = ("average", "keep")


class LocalSGD(PeriodicAveraging):
    """Every rank takes `every` steps on its own samples, then all take the mean of their models.

    `batch_size` is that of the whole batch, of which each rank computes its part. A rank counts by
    the samples it has seen since the last mean (by their weights, if they have some). What the
    optimizer keeps is averaged as well, or with `state="keep"` stays with its rank: then fewer
    bytes are sent.

    With `every=1` and SGD, with momentum or without, this is `DataParallel`, but for rounding.
    Batch normalisation is by rank, and the running statistics are averaged with the parameters.
    Between epochs every rank has the mean, which is also what validation is about; when the next
    epoch begins each goes on with its own model, so `every` need not divide an epoch.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", batch_size=4)
    >>> models = [model() for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.LocalSGD(every=2, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(2, work)
    >>> losses[0] == losses[1]
    True
    >>> np.array_equal(models[0].predict(x), models[1].predict(x))
    True
    """

    def __init__(
        self,
        every: int = 8,
        *,
        state: str = "average",
        algorithm: str = "auto",
        communicator: Communicator | None = None,
    ) -> None:
        check_choice("LocalSGD", "state", state, STATE)
        super().__init__(every, communicator, algorithm)
        self.state = state

    def __repr__(self) -> str:
        return f"LocalSGD(every={self.every}, state={self.state!r})"

    @property
    def is_whole(self) -> bool:
        return super().is_whole or self._steps == 0

    def exchanged(self) -> list[Expr]:
        variables = self.averaged() + (self.kept() if self.state == "average" else [])
        message = Message("sum", "data", next_number(), now=True)
        total = Expr(all_reduce([self.weight.node], message)[0])
        # If no rank has seen a sample that counts, all are alike.
        own = op.where(total > 0.0, self.weight, 1.0)
        everyone = op.where(total > 0.0, total, float(self.communicator.size))
        # Whole numbers of samples, and one division at the end: there is no drift by rounding.
        parts = [op.cast(own, each.dtype) * each for each in map(wide, variables)]
        means = [each / op.cast(everyone, each.dtype) for each in sums(parts)]
        return [
            op.assign(variable, op.cast(mean, variable.dtype))
            for variable, mean in zip(variables, means, strict=True)
        ]

    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        values = [each.numpy() for each in variables]
        return mean_over_ranks(self.communicator, values, float(self.weight.numpy()))
