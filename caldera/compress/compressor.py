"""Base class of gradient compressors, and error feedback per parameter.

A compressor sums the gradients of all ranks with fewer bytes on the wire than they occupy. The
unsent remainder is kept and added to the next gradient. Over all ranks, applied and kept values
add up to the sum of all gradients: nothing is lost, it only arrives later. Residuals therefore
belong in checkpoints; `redistribute` converts them to another number of ranks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypedDict

import numpy as np

from caldera.base.arguments import within
from caldera.base.configurable import Configurable, Family
from caldera.comm import Communicator
from caldera.compress.messages import RandomStream
from caldera.core.tensor.dtype import FLOATS, HALVES
from caldera.errors import CheckpointError, DtypeError, ShapeError

State = dict[str, np.ndarray]

SUMMED = ("residual", "velocity")
"""Kinds of state of which each rank has its own, and the sum over ranks is what counts."""
SHARED = ("step", "factor")
"""Kinds of state that all ranks have alike."""


class CompressorState:
    """What a compressor keeps from one exchange to the next, by kind and parameter."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, str], np.ndarray] = {}
        self._joined: dict[tuple[str, ...], np.ndarray] = {}

    def take(self, kind: str, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of a parameter, to be changed in place; made if there is none yet."""
        key = (kind, name)
        if key not in self._arrays:
            self._arrays[key] = make()
        return self._arrays[key]

    def like(self, kind: str, name: str, gradient: np.ndarray) -> np.ndarray:
        """As `take`: one number for each of the gradient's elements, zeros at first."""
        wide = np.float32 if gradient.dtype in HALVES else gradient.dtype
        found = self.take(kind, name, lambda: np.zeros(gradient.size, wide))
        if found.size != gradient.size:
            raise ShapeError.build(
                f"{kind} of {name}",
                expected=f"{found.size} elements, as before",
                got=f"{gradient.size}",
                hint="names of parameters must be unique",
            )
        return found

    def together(self, kind: str, gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        """As `like` for several parameters, whose numbers lie one after the other in one vector."""
        found = [self.like(kind, name, gradient) for name, gradient in gradients.items()]
        key = (kind, *gradients)
        whole = self._joined.get(key)
        if whole is None or any(each.base is not whole for each in found):
            whole = self._joined[key] = np.concatenate(found)
            edges = accumulate((each.size for each in found), initial=0)
            for name, (begin, end) in zip(gradients, pairwise(edges), strict=True):
                self.put(kind, name, whole[begin:end])
        return whole

    def put(self, kind: str, name: str, array: np.ndarray) -> None:
        """Keep another array."""
        self._arrays[kind, name] = array

    def next_step(self, name: str) -> int:
        """How often this was asked for the parameter before."""
        count = self.take("step", name, lambda: np.zeros(1, np.int64))
        count += 1
        return int(count[0]) - 1

    def state(self) -> State:
        """Copies of all of it, by "kind/parameter"."""
        return {f"{kind}/{name}": array.copy() for (kind, name), array in self._arrays.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Keep what `state()` gave, and nothing else."""
        self._arrays = {_kind_and_name(key): np.array(value) for key, value in state.items()}


def redistribute(
    states: Sequence[Mapping[str, np.ndarray]], size: int, mean: bool = False
) -> list[State]:
    """The states of so many ranks, from those of another number of them.

    The sum over the ranks stays as it was (with `mean`, for a compressor that takes means, the
    mean does): ranks that go leave theirs to those that stay, new ones begin with nothing.

    >>> import numpy as np
    >>> from caldera.compress import redistribute
    >>> four = [{"residual/w": np.array([float(rank)])} for rank in range(4)]
    >>> [state["residual/w"].item() for state in redistribute(four, 3)]
    [3.0, 1.0, 2.0]
    """
    within("redistribute", "size", size, 1, 2**20)
    keys = {key for state in states for key in state}
    factor = size / len(states) if mean else 1.0
    result: list[State] = [{} for _ in range(size)]
    for key in sorted(keys):
        kind, _ = _kind_and_name(key)
        owned = [state.get(key) for state in states]
        example = next(array for array in owned if array is not None)
        for rank in range(size):
            if kind in SHARED:
                result[rank][key] = example.copy()
                continue
            parts = [array for array in owned[rank::size] if array is not None]
            total = np.sum(parts, axis=0) if parts else np.zeros_like(example)
            result[rank][key] = (total * factor).astype(example.dtype)
    return result


def _kind_and_name(key: str) -> tuple[str, str]:
    kind, slash, name = key.partition("/")
    if not slash or kind not in SUMMED + SHARED:
        raise CheckpointError.build(
            "state of a compressor",
            expected="residual/..., velocity/..., step/... or factor/...",
            got=repr(key),
        )
    return kind, name


class CompressorOptions(TypedDict, total=False):
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
