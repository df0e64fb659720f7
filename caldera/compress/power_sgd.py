"""Gradients of matrices as products of two thin ones: PowerSGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Unpack

import numpy as np

from caldera.comm import Communicator
from caldera.compress._base import Compressor, Options, compressors
from caldera.compress.random_stream import RandomStream
from caldera.core.tensor.dtype import HALVES
from caldera.core.tensor.philox import normal
from caldera.errors import ConfigError


@compressors.register("power_sgd")
class PowerSGD(Compressor):
    """One step of power iteration a gradient, from where the last one ended (Vogels and others,
    2019). What `rank` columns cannot hold is kept and added to the next gradient.

    A gradient is a matrix of its first axis by all others; vectors, and matrices that would not
    become smaller, are summed as they are. Sums of the two factors take the place of the gradient:
    rows x rank, then columns x rank.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> gradient = np.outer(np.arange(4.0), np.ones(6)).astype(np.float32)
    >>> whole = gradient.copy()
    >>> compress.PowerSGD(rank=1).exchange("w", gradient, comm.SingleProcess())
    >>> bool(np.allclose(gradient, whole, atol=1e-5))
    True
    """

    def __init__(self, rank: int = 4, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if rank < 1:
            raise ConfigError.build("PowerSGD", expected="a rank of 1 or more", got=repr(rank))
        self.rank = rank

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        thin = {name: g for name, g in gradients.items() if self._is_smaller(g.shape)}
        plain = [gradient for name, gradient in gradients.items() if name not in thin]
        matrices = [self._accumulated(name, gradient) for name, gradient in thin.items()]
        rights = [self._right(n, m, random_stream) for n, m in zip(thin, matrices, strict=True)]
        lefts = [m @ right for m, right in zip(matrices, rights, strict=True)]
        sums = _sum_together([*lefts, *plain], communicator)
        for gradient, total in zip(plain, sums[len(thin) :], strict=True):
            gradient[...] = self._scaled(total, communicator.size)
        bases = [np.linalg.qr(_finite(left))[0] for left in sums[: len(thin)]]
        own = [m.T @ basis for m, basis in zip(matrices, bases, strict=True)]
        for name, matrix, basis, sent, total in zip(
            thin, matrices, bases, own, _sum_together(own, communicator), strict=True
        ):
            matrix -= basis @ sent.T
            matrix[...] = _finite(matrix)
            self._kept.put("factor", name, _finite(total))
            whole = self._scaled(basis @ total.T, communicator.size)
            thin[name][...] = whole.reshape(thin[name].shape)

    def summed_elements(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """How many elements of gradients of these shapes are summed first, and how many then.

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

    def _accumulated(self, name: str, gradient: np.ndarray) -> np.ndarray:
        """The parameter's residual with this gradient added, as a matrix."""
        residual = self._kept.like("residual", name, gradient)
        residual += gradient.reshape(-1)
        return residual.reshape(gradient.shape[0], -1)

    def _right(self, name: str, matrix: np.ndarray, random_stream: RandomStream) -> np.ndarray:
        """The factor to begin with: the last one, or chance, the same on all ranks."""

        def draw() -> np.ndarray:
            seed, step, stream, _ = replace(random_stream, name=name).of(rank=0)
            flat = normal(seed, step, stream, 0, matrix.shape[1] * self.rank, matrix.dtype)
            return flat.reshape(matrix.shape[1], self.rank)

        return self._kept.take("factor", name, draw)


def _sum_together(arrays: Sequence[np.ndarray], communicator: Communicator) -> list[np.ndarray]:
    """The sums over ranks of some arrays, in one message; halves are summed in float32."""
    if not arrays:
        return []
    flat = [array.reshape(-1) for array in arrays]
    wide = [each.astype(np.float32) if each.dtype in HALVES else each for each in flat]
    buffer = np.concatenate(wide)
    communicator.Allreduce(buffer, buffer)
    edges = np.cumsum([array.size for array in arrays])[:-1]
    parts = np.split(buffer, edges)
    return [part.reshape(a.shape) for part, a in zip(parts, arrays, strict=True)]


def _finite(array: np.ndarray) -> np.ndarray:
    """Zeros in place of infinities and nans, which must not stay from step to step."""
    return np.where(np.isfinite(array), array, array.dtype.type(0))
