"""What strategies have in common whose ranks take their steps without waiting for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.lazy import Expr, Variable
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.parallel.data_parallel import DataParallel
from caldera.parallel.sums import OfAllRanks, summed_over_ranks
from caldera.plan.plan import Plan
from caldera.strategy import Holder, Strategy

TOTALS = "run/training/"
"""What the names of an epoch's sums begin with in a checkpoint."""


class OwnPace(DataParallel):
    """Each rank computes on its share of each batch as if that were a batch of its own.

    Plans do not talk to those of other ranks, so losses and metrics are added up at the end of an
    epoch. With `lockstep` they do, and everything is as in `DataParallel`.
    """

    def __init__(self, communicator: Communicator | None, *, lockstep: bool) -> None:
        super().__init__(communicator=communicator)
        self.lockstep = lockstep or not self.has_others
        # Between epochs all ranks evaluate together.
        everyone = self.communicator
        self._together = self if self.lockstep else DataParallel(communicator=everyone)
        self._is_apart = False

    @property
    def has_others(self) -> bool:
        """Whether there are other ranks."""
        return self.communicator.size > 1

    @property
    def several(self) -> bool:
        return self.lockstep and super().several

    def evaluating(self) -> Strategy:
        return self._together

    # --- graphs

    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        # Of this rank's samples alone: nothing is summed on the way.
        return list(parameters), op.grad(loss, list(parameters), unused="zero")

    def parts(self, share: Share) -> list[Share]:
        return [share] if self.lockstep else [replace(share, count=share.samples)]

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        return super().compiled(make) if self.lockstep else make()

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        super().agree(given)
        if self.has_others and given["precision"] == "float16":
            raise ConfigError.build(
                type(self).__name__, expected="a precision without a loss scale",
                got="precision='float16'",
                hint="take 'bfloat16', or parallel.DataParallel: its ranks agree on a loss scale",
            )  # fmt: skip

    def begin(self, model: Layer, optimizer: Optimizer) -> None:
        states = [each.name for each in model.states()]
        if states and not self.lockstep:
            raise ConfigError.build(
                type(self).__name__, expected="layers without statistics of a whole batch",
                got=states[0],
                hint="ranks at their own pace have no batch in common: take nn.LayerNorm or "
                "nn.GroupNorm, or a synchronous strategy",
            )  # fmt: skip
        super().begin(model, optimizer)

    def take_apart(self) -> None:
        self._is_apart = True

    def make_whole(self) -> None:
        self._is_apart = False

    def epoch_sums(self, sums: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return sums if self.lockstep else summed_over_ranks(self.communicator, sums)

    # --- checkpoints

    def holders(self, variables: Mapping[str, Variable]) -> Mapping[str, Holder]:
        if self.lockstep:
            return variables
        return {
            name: OfAllRanks(each, self._sum, self._term) if name.startswith(TOTALS) else each
            for name, each in variables.items()
        }

    def _sum(self, variable: Variable) -> np.ndarray:
        """What all ranks have added up, of which each has a term while steps run."""
        here = variable.numpy()
        return summed_over_ranks(self.communicator, [here])[0] if self._is_apart else here

    def _term(self, value: np.ndarray) -> np.ndarray:
        """Rank 0 goes on from a sum, others from nothing."""
        return value if self.communicator.rank == 0 else np.zeros_like(value)
