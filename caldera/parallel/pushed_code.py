"""Gradients in fewer bits on their way to a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caldera.compress import Compressor
from caldera.compress.dense import DenseCompressor
from caldera.compress.draws import Chance
from caldera.errors import ConfigError
from caldera.parallel.shards import Shard

_RESIDUAL, _STEP = "residual", "step"


class PushedCode:
    """Encodes what a worker pushes with the code of a compressor, and keeps what is lost.

    What a code loses of one gradient is added to the next one of that parameter, if the compressor
    gives feedback.
    """

    def __init__(self, compressor: Compressor, rank: int) -> None:
        if not isinstance(compressor, DenseCompressor) or compressor.mean:
            raise ConfigError.build(
                "ParameterServer",
                expected="compression= Cast, QSGD, TernGrad, OneBit or Lossless, with mean=False",
                got=repr(compressor),
                hint="others need all ranks at once, or do not say how one gradient travels",
            )  # fmt: skip
        self.code = compressor.code
        self._seed = compressor.seed
        self._feedback = compressor.feedback
        self._rank = rank
        self._steps = 0
        self._residuals: dict[Shard, np.ndarray] = {}

    def begin(self, shards: Sequence[Shard]) -> None:
        """Before a run: nothing has been lost yet."""
        self._steps = 0
        if self._feedback:
            self._residuals = {shard: np.zeros(shard.size, shard.dtype) for shard in shards}

    def encoded(self, shard: Shard, gradient: np.ndarray) -> np.ndarray:
        """The bytes of a gradient."""
        residual = self._residuals.get(shard)
        whole = gradient if residual is None else gradient + residual
        chance = Chance(self._seed, self._steps, f"push to rank {shard.rank}")
        message = self.code.encode(whole, chance.of(self._rank))
        if residual is not None:
            lost = whole - self.code.decode(message, shard.size, shard.dtype)
            np.copyto(residual, np.where(np.isfinite(lost), lost, 0))
        return message

    def step_taken(self) -> None:
        """Other draws for the next step."""
        self._steps += 1

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of this rank, by "kind/parameter"."""
        found = {
            f"{_RESIDUAL}/{name}": part
            for shard, flat in self._residuals.items()
            for name, part in shard.parts(flat).items()
        }
        return found | {f"{_STEP}/pushes": np.array([self._steps])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state` gave."""
        self._steps = int(state[f"{_STEP}/pushes"][0])
        for shard, flat in self._residuals.items():
            for name, part in shard.parts(flat).items():
                part[...] = state[f"{_RESIDUAL}/{name}"]
