"""Quantised allreduce of whole vectors, its quantisers, and low-precision weights.

Rank r receives part r of all vectors, decodes and adds them in rank order, encodes the sum and
sends it to all. Every value thus crosses the wire 2 (n - 1) / n times, as in a ring, and is rounded
twice: by its source and by the rank that sums. Both keep their rounding errors. The part of a
rank's vector that it sums locally is not rounded.

Rounding weights to the nearest loses every update smaller than half a step of the format, and
training stops; stochastic rounding keeps updates on average (Gupta and others, 2015). All ranks
round the same parameter with the same draws, so their weights stay equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Unpack

import ml_dtypes
import numpy as np

from caldera.base.registry import nearest
from caldera.comm import Communicator
from caldera.compress.codecs import (
    Codec,
    HalfPrecisionCodec,
    LosslessCodec,
    QsgdCodec,
    SignCodec,
    TernaryCodec,
)
from caldera.compress.compressor import (
    EMPTY,
    Compressor,
    CompressorOptions,
    CompressorState,
    RandomStream,
    State,
    allgather_messages,
    alltoall_messages,
    bounds,
    compressors,
)
from caldera.core.tensor.dtype import HALVES
from caldera.errors import ConfigError
from caldera.kernels.native.compression import FORMATS, round_stochastically

_SUMMANDS, _SUMS = 0, 1
"""Numbers of the two stages in the random stream."""


class DenseCompressor(Compressor):
    """Base of compressors that encode every value: `code` before the sum, `sum_codec` after it.

    With `feedback` the error is kept for the next exchange.
    """

    def _use(self, code: Codec, sum_codec: Codec, feedback: bool) -> None:
        """Set the codecs; they are not arguments, since files store the arguments of the
        subclass.
        """
        self.code = code
        self.sum_codec = sum_codec
        self.feedback = feedback

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        if communicator.size == 1 and not self.feedback:
            return
        flat = _joined([gradient.reshape(-1) for gradient in gradients.values()])
        residuals = []
        if self.feedback:
            residuals = [self._kept.like("residual", n, g) for n, g in gradients.items()]
            flat = flat + _joined(residuals)
        lost = np.zeros_like(flat) if self.feedback else None
        total = sum_encoded(flat, self.code, self.sum_codec, communicator, random_stream, lost)
        total = self._scaled(total, communicator.size)
        _spread(total, [gradient.reshape(-1) for gradient in gradients.values()])
        if lost is not None:
            _spread(lost, residuals)


def sum_encoded(
    vector: np.ndarray,
    code: Codec,
    sum_codec: Codec,
    communicator: Communicator,
    random_stream: RandomStream,
    lost: np.ndarray | None,
) -> np.ndarray:
    """Return the sum of the ranks' vectors; `lost` receives this rank's rounding error.

    The sum and all ranks' errors add up to the sum of the vectors. Infinities and NaNs have error
    0.
    """
    size, rank = communicator.size, communicator.rank
    if size == 1:
        return vector
    edges = bounds(vector.size, size)
    parts = [vector[begin:end] for begin, end in pairwise(edges)]
    mine = parts[rank]
    leaving = [
        EMPTY
        if other == rank
        else code.encode(part, random_stream.of(rank, _SUMMANDS, edges[other]))
        for other, part in enumerate(parts)
    ]
    arriving = alltoall_messages(communicator, leaving, code.longest(mine.size, vector.dtype))
    total = np.zeros_like(mine)
    for other, message in enumerate(arriving):
        total += mine if other == rank else code.decode(message, mine.size, vector.dtype)
    sums = sum_codec.encode(total, random_stream.of(rank, _SUMS))
    longest = [sum_codec.longest(part.size, vector.dtype) for part in parts]
    gathered = allgather_messages(communicator, sums, longest)
    result = np.concatenate(
        [
            sum_codec.decode(message, part.size, vector.dtype)
            for message, part in zip(gathered, parts, strict=True)
        ]
    )
    if lost is not None:
        for other, (begin, end) in enumerate(pairwise(edges)):
            if other == rank:
                lost[begin:end] = total - result[begin:end]
            else:
                lost[begin:end] = parts[other] - code.decode(
                    leaving[other], end - begin, vector.dtype
                )
        lost[~np.isfinite(lost)] = 0
    return result


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the concatenated arrays; half precision becomes float32."""
    wide = [array.astype(np.float32) if array.dtype in HALVES else array for array in arrays]
    return wide[0] if len(wide) == 1 else np.concatenate(wide)


def _spread(vector: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Write consecutive parts of a vector to arrays."""
    ends = np.cumsum([array.size for array in arrays])[:-1]
    for array, part in zip(arrays, np.split(vector, ends), strict=True):
        array[...] = part


@compressors.register("cast")
class Cast(DenseCompressor):
    """16 bits a value: "bfloat16" or "float16". Sums are taken in float32.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     gradient = np.array([1.0, 1e-8, 70000.0], np.float32)
    ...     compress.Cast("bfloat16").exchange("w", gradient, communicator)
    ...     return gradient.tolist()
    >>> comm.run_virtual_ranks(2, work)[0]
    [2.0, 2.0023435354232788e-08, 140288.0]
    """

    def __init__(
        self,
        dtype: str = "bfloat16",
        *,
        feedback: bool = False,
        **options: Unpack[CompressorOptions],
    ) -> None:
        super().__init__(**options)
        self.code: HalfPrecisionCodec
        self._use(HalfPrecisionCodec(dtype), HalfPrecisionCodec(dtype), feedback)

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        if self.feedback or self.code.scaled or communicator.size == 1:
            super()._exchange(gradients, communicator, random_stream)
            return
        # Collectives sum halves in float32 too, by the fastest way between these ranks.
        flat = _joined([gradient.reshape(-1) for gradient in gradients.values()])
        half = flat.astype(self.code.dtype)
        total = np.empty_like(half)
        communicator.Allreduce(half, total)
        total = self._scaled(total.astype(flat.dtype), communicator.size)
        _spread(total, [gradient.reshape(-1) for gradient in gradients.values()])


@compressors.register("qsgd")
class QSGD(DenseCompressor):
    """Stochastic rounding to 2, 4 or 8 bits, unbiased (Alistarh and others, 2017).

    `bucket` values share a scale. With `feedback` the rounding error is kept for the next step:
    single steps are then biased, but the total is preserved.

    >>> from caldera import compress
    >>> compress.QSGD(bits=4).code.size(1024)
    520
    """

    def __init__(
        self,
        bits: int = 4,
        *,
        bucket: int = 512,
        feedback: bool = False,
        **options: Unpack[CompressorOptions],
    ) -> None:
        super().__init__(**options)
        self._use(QsgdCodec(bits, bucket), QsgdCodec(bits, bucket), feedback)


@compressors.register("terngrad")
class TernGrad(DenseCompressor):
    """Three levels, 1.6 bits a value, clipped at `clip` deviations (Wen and others, 2017).

    A sum of n ranks has 2n + 1 levels, so sums travel in 8 bits.

    >>> from caldera import compress
    >>> compress.TernGrad().code.size(1000)
    204
    """

    def __init__(
        self, *, clip: float = 2.5, feedback: bool = False, **options: Unpack[CompressorOptions]
    ) -> None:
        super().__init__(**options)
        self._use(TernaryCodec(clip), QsgdCodec(8), feedback)


@compressors.register("one_bit")
class OneBit(DenseCompressor):
    """Signs, with two means for each `bucket` values (Seide and others, 2014).

    The errors of sent gradients and of sums are kept and added to the next gradient. They act like
    momentum, so the optimizer should have no additional momentum. A learning rate and a weight
    decay that suit dense sums without momentum are suitable.

    >>> from caldera import compress
    >>> compress.OneBit(bucket=1024).code.size(8192)
    1088
    """

    def __init__(self, *, bucket: int = 512, **options: Unpack[CompressorOptions]) -> None:
        super().__init__(**options)
        self._use(SignCodec(bucket), SignCodec(bucket), feedback=True)


@compressors.register("lossless")
class Lossless(DenseCompressor):
    """Every bit of every value, packed where many are zero or repeated: equal to a plain sum.

    Gradients of embeddings, and those behind a ReLU that never fired, are mostly zeros.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     gradient = np.zeros((1000, 64), np.float32)
    ...     gradient[communicator.rank] = 1.0
    ...     compress.Lossless().exchange("embedding", gradient, communicator)
    ...     return float(gradient.sum()), communicator.traffic.total.bytes_sent < 1000
    >>> comm.run_virtual_ranks(2, work)
    [(128.0, True), (128.0, True)]
    """

    def __init__(self, **options: Unpack[CompressorOptions]) -> None:
        super().__init__(**options)
        self._use(LosslessCodec(), LosslessCodec(), feedback=False)


class LowPrecisionWeights:
    """Weights in "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2".

    `store(name, weights)` returns the stochastically rounded array to store; `round(name, weights)`
    rounds float32 weights in place; `broadcast` sends weights from one rank to all in this format.
    Draws depend on the seed, the parameter and the number of earlier roundings, which `state()` and
    `restore` preserve.

    >>> import numpy as np
    >>> from caldera import compress
    >>> low = compress.LowPrecisionWeights("bfloat16", seed=1)
    >>> weight = np.ones(1000, np.float32)
    >>> for _ in range(100):                      # a step of 1e-4 is far below bfloat16's 2**-8
    ...     weight -= np.float32(1e-4)
    ...     low.round("w", weight)
    >>> round(float(weight.mean()), 3), low.store("w", weight).nbytes
    (0.99, 2000)
    """

    def __init__(self, dtype: str = "bfloat16", seed: int = 0) -> None:
        if dtype not in FORMATS:
            raise ConfigError.build(
                "LowPrecisionWeights",
                expected="a format of fewer bits",
                got=repr(dtype),
                hint=nearest(dtype, FORMATS),
            )
        self.name = dtype
        self.dtype = np.dtype(dtype if dtype == "float16" else getattr(ml_dtypes, dtype))
        self.seed = seed
        self._kept = CompressorState()

    def round(self, name: str, weights: np.ndarray) -> None:
        """Replace float32 weights by numbers of the format, near them and equal on average."""
        random_stream = RandomStream(self.seed, self._kept.next_step(name), name)
        weights[...] = round_stochastically(
            np.ascontiguousarray(weights), self.name, random_stream.of(rank=0)
        )

    def store(self, name: str, weights: np.ndarray) -> np.ndarray:
        """Return the weights rounded by chance, in the format's own dtype."""
        rounded = np.array(weights, np.float32)
        self.round(name, rounded)
        return rounded.astype(self.dtype)

    def broadcast(
        self, weights: Mapping[str, np.ndarray], communicator: Communicator, root: int = 0
    ) -> None:
        """Send the root's float32 weights to all ranks in the format, in place on every rank."""
        bytes_each = [array.size * self.dtype.itemsize for array in weights.values()]
        message = np.empty(sum(bytes_each), np.uint8)
        stored = [self.store(name, array) for name, array in weights.items()]
        if communicator.rank == root and stored:
            message[:] = np.concatenate([array.reshape(-1).view(np.uint8) for array in stored])
        communicator.Bcast(message, root)
        parts = np.split(message, np.cumsum(bytes_each)[:-1])
        for array, part in zip(weights.values(), parts, strict=False):
            array[...] = part.copy().view(self.dtype).astype(np.float32).reshape(array.shape)

    def state(self) -> State:
        """Return the number of roundings of each parameter, for a checkpoint."""
        return self._kept.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state()` gave."""
        self._kept.restore(state)
