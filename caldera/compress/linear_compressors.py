"""Linear gradient compressors, summed without decoding: PowerSGD and random-k.

PowerSGD sends a matrix as the product of two thin ones. Random-k sends elements that all ranks
select with the same random numbers, so no indices are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Unpack

import numpy as np

from caldera.base.arguments import require
from caldera.comm import Communicator
from caldera.compress.compressor import Compressor, CompressorOptions, RandomStream, compressors
from caldera.core.tensor.dtype import HALVES
from caldera.core.tensor.philox import normal, random_bits

_BLOCK_BYTES = 1 << 17
"""Bytes of the rows that PowerSGD processes at a time, so that they stay in the cache."""


@compressors.register("power_sgd")
class PowerSGD(Compressor):
    """Low-rank gradients by one step of power iteration from the previous result (Vogels, 2019).

    The remainder that `rank` columns cannot represent is kept and added to the next gradient.

    A gradient is treated as a matrix of its first axis by the remaining axes. Vectors, and matrices
    that would not become smaller, are summed uncompressed. Instead of the gradient, two factors are
    summed: rows x rank, then columns x rank.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> gradient = np.outer(np.arange(4.0), np.ones(6)).astype(np.float32)
    >>> whole = gradient.copy()
    >>> compress.PowerSGD(rank=1).exchange("w", gradient, comm.SingleProcess())
    >>> bool(np.allclose(gradient, whole, atol=1e-5))
    True
    """

    def __init__(self, rank: int = 4, **options: Unpack[CompressorOptions]) -> None:
        super().__init__(**options)
        require(rank >= 1, "PowerSGD", "a rank >= 1", repr(rank))
        self.rank = rank

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        thin = {name: g for name, g in gradients.items() if self._is_smaller(g.shape)}
        plain = [gradient for name, gradient in gradients.items() if name not in thin]
        matrices = [self._residual(name, gradient) for name, gradient in thin.items()]
        lefts = []
        for (name, gradient), matrix in zip(thin.items(), matrices, strict=True):
            right = self._right(name, matrix, random_stream)
            left = np.empty((len(matrix), self.rank), matrix.dtype)
            added = gradient.reshape(matrix.shape)
            for rows in _row_blocks(matrix):
                matrix[rows] += added[rows]
                np.matmul(matrix[rows], right, out=left[rows])
            lefts.append(left)
        sums = _sum_together([*lefts, *plain], communicator)
        for gradient, total in zip(plain, sums[len(thin) :], strict=True):
            gradient[...] = self._scaled(total, communicator.size)
        bases = [np.linalg.qr(_finite(left))[0] for left in sums[: len(thin)]]
        own = [basis.T @ m for m, basis in zip(matrices, bases, strict=True)]
        totals = _sum_together(own, communicator)
        # A matrix with an infinity or a nan makes its factors non-finite, on all ranks.
        clean = all(np.isfinite(each).all() for each in (*sums[: len(thin)], *totals))
        for name, matrix, basis, sent, total in zip(
            thin, matrices, bases, own, totals, strict=True
        ):
            self._kept.put("factor", name, _finite(total).T.copy())
            whole = thin[name].reshape(matrix.shape)
            for rows in _row_blocks(matrix):
                matrix[rows] -= basis[rows] @ sent
                whole[rows] = self._scaled(basis[rows] @ total, communicator.size)
            if not clean:
                matrix[...] = _finite(matrix)

    def summed_elements(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """Return the numbers of elements of the first and second sum for gradients of these shapes.

        >>> PowerSGD(rank=2).summed_elements([(8, 16), (16,)])
        (32, 32)
        """
        thin = [(shape[0], prod(shape[1:])) for shape in shapes if self._is_smaller(shape)]
        plain = sum(prod(shape) for shape in shapes if not self._is_smaller(shape))
        first, second = (self.rank * sum(each[side] for each in thin) for side in (0, 1))
        return first + plain, second

    def _is_smaller(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2:
            return False
        rows, columns = shape[0], prod(shape[1:])
        return (rows + columns) * self.rank < rows * columns

    def _residual(self, name: str, gradient: np.ndarray) -> np.ndarray:
        """Return the parameter's residual as a matrix."""
        residual = self._kept.like("residual", name, gradient)
        return residual.reshape(gradient.shape[0], -1)

    def _right(self, name: str, matrix: np.ndarray, random_stream: RandomStream) -> np.ndarray:
        """The factor to begin with: the last one, or chance, the same on all ranks."""

        def draw() -> np.ndarray:
            seed, step, stream, _ = replace(random_stream, name=name).of(rank=0)
            flat = normal(seed, step, stream, 0, matrix.shape[1] * self.rank, matrix.dtype)
            return flat.reshape(matrix.shape[1], self.rank)

        return self._kept.take("factor", name, draw)


def _sum_together(arrays: Sequence[np.ndarray], communicator: Communicator) -> list[np.ndarray]:
    """Return the sums over ranks of some arrays, in one message; halves are summed in float32."""
    if not arrays:
        return []
    flat = [array.reshape(-1) for array in arrays]
    wide = [each.astype(np.float32) if each.dtype in HALVES else each for each in flat]
    buffer = np.concatenate(wide)
    communicator.Allreduce(buffer, buffer)
    parts = np.split(buffer, np.cumsum([array.size for array in arrays])[:-1])
    return [part.reshape(a.shape) for part, a in zip(parts, arrays, strict=True)]


def _row_blocks(matrix: np.ndarray) -> Iterator[slice]:
    """Yield slices of rows, of `_BLOCK_BYTES` each."""
    step = max(1, _BLOCK_BYTES // max(1, matrix[0].nbytes))
    for begin in range(0, len(matrix), step):
        yield slice(begin, begin + step)


def _finite(array: np.ndarray) -> np.ndarray:
    """Return zeros in place of infinities and nans, which must not stay from step to step."""
    return np.where(np.isfinite(array), array, array.dtype.type(0))


@compressors.register("random_k")
class RandomK(Compressor):
    """Random fraction `k` of the elements, redrawn in each step from the seed, summed exactly.

    With `feedback` (the default) the remaining elements are kept for the next step. Without it, the
    selected elements are multiplied by n / count, which makes the sum unbiased.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> random_k = compress.RandomK(0.5, seed=1)
    >>> gradient = np.arange(1, 9, dtype=np.float32)
    >>> random_k.exchange("w", gradient, comm.SingleProcess())
    >>> int((gradient != 0).sum()), (gradient + random_k.state()["residual/w"]).tolist()
    (4, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    """

    def __init__(
        self, k: float = 0.01, *, feedback: bool = True, **options: Unpack[CompressorOptions]
    ) -> None:
        super().__init__(**options)
        require(0 < k <= 1, "RandomK", "k above 0, up to 1", repr(k))
        self.k = k
        self.feedback = feedback

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        sent = []
        chosen = []
        for number, (name, gradient) in enumerate(gradients.items()):
            places = self._places(gradient.size, random_stream, number)
            values = gradient.reshape(-1)
            if self.feedback:
                values = self._kept.like("residual", name, gradient)
                values += gradient.reshape(-1)
            taken = values[places]
            if self.feedback:
                values[places] = 0
            else:
                taken = taken * taken.dtype.type(gradient.size / places.size)
            sent.append(taken.astype(np.float32) if taken.dtype in HALVES else taken)
            chosen.append(places)
        buffer = np.concatenate(sent)
        communicator.Allreduce(buffer, buffer)
        buffer = self._scaled(buffer, communicator.size)
        parts = np.split(buffer, np.cumsum([places.size for places in chosen])[:-1])
        for gradient, places, part in zip(gradients.values(), chosen, parts, strict=True):
            gradient.fill(0)
            gradient.reshape(-1)[places] = part

    def count(self, size: int) -> int:
        """Return the number of elements sent out of `size`."""
        return max(ceil(self.k * size), 1)

    def _places(self, size: int, random_stream: RandomStream, number: int) -> np.ndarray:
        """Return `number` sorted indices, chosen by the smallest random words."""
        seed, step, stream, first = random_stream.of(rank=0, stage=number)
        key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        words = random_bits(key, first * 64, size, (step, stream))
        count = self.count(size)
        return np.arange(size) if count == size else np.sort(np.argpartition(words, count)[:count])
