"""Gradients in fewer bits on their way to a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from caldera.compress import Compressor, TopK
from caldera.compress.codecs import Codec, RawCodec
from caldera.compress.dense import DenseCompressor
from caldera.compress.messages import RandomStream, unpack_indices
from caldera.compress.sparse import SparseCodec, SparseVector
from caldera.core.tensor.dtype import DType
from caldera.errors import ConfigError
from caldera.parallel.asynchronous.transport import ServerShard

_RESIDUAL, _STEP = "residual", "step"


class PushCodec(ABC):
    """Encodes what a worker pushes in the way of a compressor, and keeps what is lost.

    What one push has lost is added to the next one of that parameter, if there is `feedback`.
    """

    def __init__(self, seed: int, rank: int, *, feedback: bool) -> None:
        self._seed = seed
        self._rank = rank
        self._feedback = feedback
        self._steps = 0
        self._residuals: dict[ServerShard, np.ndarray] = {}

    @abstractmethod
    def _encoded(
        self,
        shard: ServerShard,
        gradient: np.ndarray,
        residual: np.ndarray | None,
        chance: RandomStream,
    ) -> np.ndarray:
        """The bytes of a gradient; the residual becomes what was not sent."""

    @abstractmethod
    def decoded(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        """The gradient of so many elements that a server takes a message for."""

    def begin(self, shards: Sequence[ServerShard]) -> None:
        """Before a run: nothing has been lost yet."""
        self._steps = 0
        if self._feedback:
            self._residuals = {shard: np.zeros(shard.size, shard.dtype) for shard in shards}

    def encoded(self, shard: ServerShard, gradient: np.ndarray) -> np.ndarray:
        """The bytes of a gradient."""
        chance = RandomStream(self._seed, self._steps, f"push to rank {shard.rank}")
        residual = self._residuals.get(shard)
        message = self._encoded(shard, gradient, residual, chance)
        if residual is not None:
            # Infinities and nans are sent, so that the step shows them, but must not stay.
            residual[~np.isfinite(residual)] = 0
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


class DensePushCodec(PushCodec):
    """All elements, in the code of a compressor."""

    def __init__(self, compressor: DenseCompressor, rank: int) -> None:
        super().__init__(compressor.seed, rank, feedback=compressor.feedback)
        self._code = compressor.code

    def _encoded(
        self,
        shard: ServerShard,
        gradient: np.ndarray,
        residual: np.ndarray | None,
        chance: RandomStream,
    ) -> np.ndarray:
        whole = gradient if residual is None else gradient + residual
        message = self._code.encode(whole, chance.of(self._rank))
        if residual is not None:
            residual[...] = whole - self.decoded(message, shard.size, shard.dtype)
        return message

    def decoded(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        return self._code.decode(message, count, dtype)


class TopKPushCodec(PushCodec):
    """The largest elements alone, of each parameter or of all that one server has."""

    def __init__(self, compressor: TopK, rank: int) -> None:
        super().__init__(compressor.seed, rank, feedback=True)
        self._compressor = compressor

    def _code(self, dtype: DType) -> Codec:
        return self._compressor.quantiser or RawCodec(dtype)

    def _encoded(
        self,
        shard: ServerShard,
        gradient: np.ndarray,
        residual: np.ndarray | None,
        chance: RandomStream,
    ) -> np.ndarray:
        assert residual is not None
        added = [part.reshape(-1) for part in shard.parts(gradient).values()]
        vector = self._compressor.take(residual, added, chance)
        coding = SparseCodec(self._code(vector.values.dtype), chance, self._rank, residual)
        (message,) = coding.encode(vector, [(0, vector.length)], stage=0, owner=self._rank)
        return message

    def decoded(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        places, values = unpack_indices(message, count)
        return SparseVector(
            count, places, self._code(dtype).decode(values, places.size, dtype)
        ).dense()


def push_codec(compressor: Compressor, rank: int) -> PushCodec:
    """How a compressor's gradients travel to a server, if they do."""
    if not compressor.mean:
        if isinstance(compressor, DenseCompressor):
            return DensePushCodec(compressor, rank)
        if isinstance(compressor, TopK) and not compressor.momentum:
            return TopKPushCodec(compressor, rank)
    raise ConfigError.build(
        "ParameterServer",
        expected="compression= Cast, QSGD, TernGrad, OneBit, Lossless, or TopK without momentum, "
        "with mean=False",
        got=repr(compressor),
        hint="others need all ranks at once, or do not say how one gradient travels",
    )
