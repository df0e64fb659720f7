"""Local SGD: ranks train by themselves and take the mean of their models now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.ops.collective import Message, all_reduce, next_number
from caldera.errors import ConfigError
from caldera.parallel.averaging.periodic import PeriodicAveraging, sums, wide
from caldera.parallel.data.sums import mean_over_ranks
from caldera.parallel.options import check_choice
from caldera.train.strategy import RunSetup

STATE = ("average", "keep")
BEGAN, UPDATE = "block/", "block update/"


class LocalSGD(PeriodicAveraging):
    """Every rank takes `every` steps on its own samples, then all take the mean of their models.

    `batch_size` is that of the whole batch, of which each rank computes its part. A rank counts by
    the samples it has seen since the last mean (by their weights, if they have some). What the
    optimizer keeps is averaged as well, or with `state="keep"` stays with its rank: then fewer
    bytes are sent.

    `momentum` is block momentum (Chen and Huo, 2016): what the mean of the models has moved by
    since the last one is a gradient, of which SGD with this momentum makes the next common model.
    Means make steps smaller, as the ranks' differences cancel; momentum gives that back, and
    1 - 1 / ranks is what its authors advise.

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
        momentum: float = 0.0,
        algorithm: str = "auto",
        communicator: Communicator | None = None,
    ) -> None:
        check_choice("LocalSGD", "state", state, STATE)
        if not 0 <= momentum < 1:
            raise ConfigError.build(
                "LocalSGD",
                expected="0 <= momentum < 1",
                got=repr(momentum),
                hint="with 1 what has moved once would never come to rest",
            )
        super().__init__(every, communicator, algorithm)
        self.state = state
        self.momentum = float(momentum)
        self._began: dict[Variable, Variable] = {}
        self._update: dict[Variable, Variable] = {}

    def __repr__(self) -> str:
        momentum = f", momentum={self.momentum:g}" if self.momentum else ""
        return f"LocalSGD(every={self.every}, state={self.state!r}{momentum})"

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        self._began, self._update = {}, {}
        for each in setup.model.trainable() if self.momentum else []:
            start = wide(each).numpy()
            for kept, fill in ((self._began, start), (self._update, np.zeros_like(start))):
                kept[each] = op.var(
                    each.name, each.shape, fill=fill, dtype=fill.dtype, device=each.tensor.device
                )

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
        found = dict(zip(variables, means, strict=True))
        updates = []
        for each, began in self._began.items():
            update = self.momentum * self._update[each] + (found[each] - began)
            found[each] = began + update
            updates += [op.assign(self._update[each], update), op.assign(began, found[each])]
        own_updates = [op.assign(each, op.cast(new, each.dtype)) for each, new in found.items()]
        return own_updates + updates

    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        values = [each.numpy() for each in variables]
        return mean_over_ranks(self.communicator, values, float(self.weight.numpy()))

    # --- checkpoints

    def saved(self) -> dict[str, np.ndarray]:
        kept = {f"{BEGAN}{each.name}": began.numpy() for each, began in self._began.items()}
        kept |= {f"{UPDATE}{each.name}": update.numpy() for each, update in self._update.items()}
        return super().saved() | kept

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        for each, began in self._began.items():
            # A run without block momentum has none of these: then a block begins with the model.
            began.assign(arrays.get(f"{BEGAN}{each.name}", wide(each).numpy()))
            still = np.zeros(each.shape, began.dtype)
            self._update[each].assign(arrays.get(f"{UPDATE}{each.name}", still))
        super().restore(arrays)
