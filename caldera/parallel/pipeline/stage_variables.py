"""Variables that one rank of several has."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.lazy import Variable
from caldera.parallel.distributed_variable import Elsewhere, variable_like


def let_go(variable: Variable) -> None:
    """Keep a variable's values no longer: another rank has them."""
    if not isinstance(variable.symbol.value, Elsewhere):
        variable.symbol.move(Elsewhere(variable.name, variable.tensor.device))


def made_whole(variable: Variable, owner: int, communicator: Communicator) -> None:
    """Give every rank the values that one of them has; all have to call this."""
    value = _from_owner(variable, owner, communicator)
    if isinstance(variable.symbol.value, Elsewhere):
        variable.symbol.move(variable_like(variable, variable.shape, value).tensor)


def _from_owner(variable: Variable, owner: int, communicator: Communicator) -> np.ndarray:
    if communicator.rank == owner:
        value = variable.numpy()
    else:
        value = np.empty(variable.shape, variable.dtype)
    communicator.Bcast(np.ascontiguousarray(value).reshape(-1).view(np.uint8), owner)
    return value


class Owned:
    """A variable that one rank has, as a checkpoint sees it."""

    def __init__(self, variable: Variable, owner: int, communicator: Communicator) -> None:
        self._variable = variable
        self._owner = owner
        self._communicator = communicator
        self.shape = variable.shape
        self.dtype = variable.dtype

    def numpy(self) -> np.ndarray:
        """The value; all ranks have to ask."""
        return _from_owner(self._variable, self._owner, self._communicator)

    def assign(self, value: Any) -> None:
        """Keep a value, on the rank that has the variable."""
        if self._communicator.rank == self._owner:
            self._variable.assign(value)
