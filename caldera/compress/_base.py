"""What a compressor is: gradients of all ranks summed, with less on the wire than they have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from caldera.base.configurable import Configurable, Family
from caldera.comm import Communicator
from caldera.compress.error_feedback import CompressorState, State
from caldera.compress.random_stream import RandomStream
from caldera.core.tensor.dtype import FLOATS
from caldera.errors import DtypeError, ShapeError


class Options(TypedDict, total=False):
    """What every compressor takes: `mean` for the mean over ranks instead of the sum, and `seed`
    of what is drawn by chance."""

    mean: bool
    seed: int


class Compressor(Configurable):
    """A way to sum gradients over ranks with fewer bytes.

    `exchange(name, gradient, communicator)` puts the sum over all ranks (the mean, if it was made
    with `mean=True`) in the gradient's place, the same bits on every rank. All ranks exchange the
    same parameters in the same order. Residuals and steps are kept by parameter: `state()` is what
    a checkpoint saves and `restore` takes back; each rank has its own.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     gradient = np.array([1.0, -2.0, 0.25, communicator.rank], np.float32)
    ...     compress.QSGD(bits=8).exchange("w", gradient, communicator)
    ...     return gradient.shape
    >>> comm.run_virtual_ranks(2, work)
    [(4,), (4,)]
    """

    def __init__(self, mean: bool = False, seed: int = 0) -> None:
        self.mean = mean
        self.seed = seed
        self._kept = CompressorState()

    def exchange(self, name: str, gradient: np.ndarray, communicator: Communicator) -> None:
        """Sum one parameter's gradient over all ranks, in place."""
        self.exchange_all({name: gradient}, communicator)

    def exchange_all(self, gradients: Mapping[str, np.ndarray], communicator: Communicator) -> None:
        """Sum the gradients of several parameters over all ranks, in place and in one message."""
        for name, gradient in gradients.items():
            _check(name, gradient)
        given = {name: gradient for name, gradient in gradients.items() if gradient.size}
        if not given:
            return
        label = next(iter(given))
        random_stream = RandomStream(self.seed, self._kept.next_step(label), label)
        self._exchange(given, communicator, random_stream)

    @abstractmethod
    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        """Sum gradients (or take their means), none of them empty, over all ranks in place."""

    def _scaled(self, total: np.ndarray, ranks: int) -> np.ndarray:
        """A sum, or the mean if that is wanted: before it is written to where it may not fit."""
        return total / total.dtype.type(ranks) if self.mean else total

    def state(self) -> State:
        """What this rank keeps between exchanges, by name: for a checkpoint."""
        return self._kept.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state()` gave, instead of what is kept now."""
        self._kept.restore(state)


compressors: Family[Compressor] = Family("compressor", Compressor)


def _check(name: str, gradient: np.ndarray) -> None:
    if gradient.dtype not in FLOATS:
        raise DtypeError.build(
            f"gradient of {name}", expected="a float dtype", got=str(gradient.dtype)
        )
    if not gradient.flags.c_contiguous or not gradient.flags.writeable:
        raise ShapeError.build(
            f"gradient of {name}",
            expected="a contiguous array that may be written",
            got="a view or one that is read-only",
            hint="pass np.ascontiguousarray of it",
        )
