"""Lean reference schemes of distribution, each a few lines over a communicator."""

from __future__ import annotations

import numpy as np

from caldera.bench.parts import Array, CompressionPart, Scheme
from caldera.comm import Communicator


class AllReduce(Scheme):
    """Synchronous data parallelism: gradients are summed in one message.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, lambda c: AllReduce().gradients(c, [np.ones(1)])[0].tolist())
    [[2.0], [2.0]]
    """

    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        return summed(communicator, gradients)


class CentralServer(Scheme):
    """A central server: rank 0 sums the gradients and sends them back.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, lambda c: CentralServer().gradients(c, [np.ones(1)])[0].tolist())
    [[2.0], [2.0]]
    """

    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        packed = joined(gradients)
        total = np.empty_like(packed)
        communicator.Reduce(packed, total if communicator.rank == 0 else None, root=0)
        communicator.Bcast(total, root=0)
        return parted(total, gradients)


class Averaging(Scheme):
    """Local steps: every rank goes its own way, and weights are averaged every `period` steps.

    >>> Averaging(4).equals_one_process
    False
    """

    equals_one_process = False

    def __init__(self, period: int = 4) -> None:
        self.period = period

    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        # This rank's part of the mean, as if its samples were the whole batch.
        return [each * communicator.size for each in gradients]

    def weights(self, communicator: Communicator, weights: list[Array], step: int) -> list[Array]:
        if step % self.period:
            return weights
        return summed(communicator, [each / communicator.size for each in weights])


class Compressed(Scheme):
    """Messages of a compression instead of gradients; each rank adds up those of all.

    >>> from caldera.bench.levels.reference import ReferenceTopK
    >>> Compressed(ReferenceTopK(0.01)).equals_one_process
    False
    """

    equals_one_process = False

    def __init__(self, compression: CompressionPart) -> None:
        self.compression = compression
        self._left: Array | None = None

    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        packed = joined(gradients)
        if self._left is not None:
            packed = packed + self._left
        message = np.ascontiguousarray(self.compression.encode(packed))
        if self.compression.feedback:
            self._left = packed - self.compression.decode(message, packed.size)
        total = np.zeros_like(packed)
        for each in exchanged(communicator, message):
            total += self.compression.decode(each, packed.size)
        return parted(total, gradients)


def summed(communicator: Communicator, arrays: list[Array]) -> list[Array]:
    """Return the sums of arrays over all ranks, reduced in one message.

    >>> from caldera.comm import SingleProcess
    >>> summed(SingleProcess(), [np.ones(2)])
    [array([1., 1.])]
    """
    packed = joined(arrays)
    total = np.empty_like(packed)
    communicator.Allreduce(packed, total)
    return parted(total, arrays)


def exchanged(communicator: Communicator, message: Array) -> list[Array]:
    """The messages of all ranks, which may differ in length.

    >>> from caldera.comm import SingleProcess
    >>> exchanged(SingleProcess(), np.array([1, 2]))
    [array([1, 2])]
    """
    sizes = np.empty(communicator.size, np.int64)
    communicator.Allgather(np.array([message.nbytes], np.int64), sizes)
    received = np.empty(int(sizes.sum()), np.uint8)
    communicator.Allgather(message.view(np.uint8), received, counts=sizes.tolist())
    ends = np.cumsum(sizes)[:-1].tolist()
    return [each.copy().view(message.dtype) for each in np.split(received, ends)]


def joined(arrays: list[Array]) -> Array:
    """All numbers as one row.

    >>> joined([np.ones(2), np.zeros((1, 2))])
    array([1., 1., 0., 0.])
    """
    return np.concatenate([each.reshape(-1) for each in arrays])


def parted(row: Array, like: list[Array]) -> list[Array]:
    """A row as arrays of these shapes.

    >>> parted(np.arange(3.0), [np.ones(1), np.ones((2, 1))])
    [array([0.]), array([[1.],
           [2.]])]
    """
    pieces = np.split(row, np.cumsum([each.size for each in like])[:-1].tolist())
    return [piece.reshape(each.shape) for piece, each in zip(pieces, like, strict=True)]


Server = CentralServer
"""Public names."""
