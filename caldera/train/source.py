"""Where the batches of a plan come from: fed from the host, or fetched on the device itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.data import Batch, Loader, Share
from caldera.errors import ConfigError
from caldera.lazy import Expr

Make = Callable[[str, tuple[int, ...], Any], Expr]
Take = Callable[[Expr, Share, Share], Expr]


class Values:
    """Inputs, targets and weights of a rank's share of a batch, as expressions by name.

    A name stands for one expression, however often it is asked for.
    """

    def __init__(self, share: Share, make: Make, updates: Sequence[Expr] = ()) -> None:
        self.share = share
        self.updates = list(updates)
        """Assignments that belong to a step on this batch."""
        self._make = make
        self._made: dict[str, Expr] = {}

    def of(self, name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
        """What is called `name`: "x0", "y0" or "weights"."""
        if name not in self._made:
            self._made[name] = self._make(name, shape, dtype)
        found = self._made[name]
        if found.shape != shape:
            raise ConfigError.build(
                "loss", expected=f"outputs whose targets have one shape, {found.shape}",
                got=f"{shape}", hint="give one target array for each output",
            )  # fmt: skip
        return found

    def part(self, share: Share, take: Take) -> Values:
        """The values of a part of this share, which `take` makes of all of them."""

        def make(name: str, shape: tuple[int, ...], dtype: Any) -> Expr:
            return take(self.of(name, (len(self.share), *shape[1:]), dtype), self.share, share)

        return Values(share, make)


class Source(ABC):
    """What the plans of a model read their batches from."""

    @abstractmethod
    def key(self, share: Share) -> Hashable:
        """Equal for batches that one plan can serve."""

    @abstractmethod
    def values(self, share: Share) -> Values:
        """The batch as expressions; the same ones for equal keys."""

    @abstractmethod
    def epoch(self, loader: Loader) -> Iterator[Batch | Share]:
        """The rest of the loader's epoch: batches to feed, or which samples to fetch."""


class Fed(Source):
    """Batches are made on the host and fed to each run."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Values] = {}

    def key(self, share: Share) -> Hashable:
        return len(share), share.first, share.count

    def values(self, share: Share) -> Values:
        key = self.key(share)
        if key not in self._values:
            self._values[key] = Values(share, op.input)
        return self._values[key]

    def epoch(self, loader: Loader) -> Iterator[Batch | Share]:
        return iter(loader)


def share_of(batch: Batch) -> Share:
    """Which part of a batch was fed."""
    return Share(0, batch.first, len(batch), batch.count, batch.count)


def arrays_of(batch: Batch) -> tuple[np.ndarray, ...]:
    """All arrays of a batch: the inputs, then the targets."""
    targets = () if batch.y is None else (batch.y,)
    return (batch.x, *batch.between, *targets)
