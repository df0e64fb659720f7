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
from caldera.plan.plan import Plan
from caldera.strategy import Holder
from caldera.tensor.shape import Shape

TOTALS = "run/training/"
"""What the names of an epoch's sums begin with in a checkpoint."""


class OwnPace(DataParallel):
    """Each rank computes on its share of each batch as if that were a batch of its own.

    Plans do not talk to those of other ranks, so losses and metrics are added up at the end of an
    epoch. With `lockstep` they do, and everything is as in `DataParallel`.
    """

    def __init__(self, communicator: Communicator | None, *, lockstep: bool) -> None:
        super().__init__(communicator=communicator)
        self.lockstep = lockstep or not self.several
        self._is_apart = False

    # --- graphs

    def over_all(self, values: Sequence[Expr]) -> list[Expr]:
        return super().over_all(values) if self.lockstep else list(values)

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
        if self.several and given["precision"] == "float16":
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

    def add_up(self, sums: Sequence[Variable]) -> None:
        if not self.lockstep:
            for each in sums:
                each.assign(summed_over(self.communicator, each.numpy()))

    # --- checkpoints

    def holders(self, variables: Mapping[str, Variable]) -> Mapping[str, Holder]:
        if self.lockstep:
            return variables
        return {
            name: Added(each, self.communicator, self._is_apart)
            if name.startswith(TOTALS)
            else each
            for name, each in variables.items()
        }


def summed_over(communicator: Communicator, value: np.ndarray) -> np.ndarray:
    """The sum of an array over all ranks."""
    total = np.empty(value.size, value.dtype)
    communicator.Allreduce(np.ascontiguousarray(value).reshape(-1), total)
    return total.reshape(value.shape)


class Added:
    """A sum of which each rank has a term while it `is_apart`, as a checkpoint sees it."""

    def __init__(self, term: Variable, communicator: Communicator, is_apart: bool) -> None:
        self._term = term
        self._is_apart = is_apart
        self._communicator = communicator
        self.shape: Shape = term.shape
        self.dtype = term.dtype

    def numpy(self) -> np.ndarray:
        """The sum; all ranks have to ask."""
        here = self._term.numpy()
        return summed_over(self._communicator, here) if self._is_apart else here

    def assign(self, value: Any) -> None:
        """Rank 0 goes on from a sum, others from nothing."""
        self._term.assign(value if self._communicator.rank == 0 else np.zeros(self.shape))
