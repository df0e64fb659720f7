"""What was not sent is kept and added to the next gradient: error feedback, by parameter.

Over all ranks, what was applied and what is kept add up to the sum of all gradients: nothing is
lost, it only arrives later. So residuals belong into checkpoints; `redistribute` gives those of
some ranks to another number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from caldera.base.arguments import within
from caldera.core.tensor.dtype import HALVES
from caldera.errors import CheckpointError, ShapeError

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
