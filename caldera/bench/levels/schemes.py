"""Distribution schemes (level 3): lean references over a communicator, and their validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from caldera.bench.levels.learner import PROBLEM, REFERENCE, Learner, learner
from caldera.bench.levels.reference import ReferenceAdam, ReferenceSGD
from caldera.bench.levels.validation import Difference, PartValidation
from caldera.bench.parts import Array, CompressionPart, OptimizerPart, Scheme
from caldera.comm import Communicator, SingleProcess, run_virtual_ranks

SCHEME = 1e-9
SCHEME_STEPS = 8
RANKS = 3
LEARNS = 0.9
"""The share of the first loss below which a scheme that is not exact must come."""


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
    """Sends compressed messages instead of gradients; each rank sums the messages of all ranks.

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
    """Return the messages of all ranks, which may differ in length.

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
    """Concatenate arrays to a vector.

    >>> joined([np.ones(2), np.zeros((1, 2))])
    array([1., 1., 0., 0.])
    """
    return np.concatenate([each.reshape(-1) for each in arrays])


def parted(row: Array, like: list[Array]) -> list[Array]:
    """Split a vector into arrays of these shapes.

    >>> parted(np.arange(3.0), [np.ones(1), np.ones((2, 1))])
    [array([0.]), array([[1.],
           [2.]])]
    """
    pieces = np.split(row, np.cumsum([each.size for each in like])[:-1].tolist())
    return [piece.reshape(each.shape) for piece, each in zip(pieces, like, strict=True)]


Server = CentralServer
"""Public names."""


class Alone(Scheme):
    """A single process, without communication."""

    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        return gradients


def stepped(
    network: Learner,
    weights: list[Array],
    optimizer: OptimizerPart,
    scheme: Scheme,
    ranks: Communicator,
    batch: tuple[Array, Array],
    part: float,
    number: int,
) -> tuple[float, list[Array]]:
    """Return the loss and the weights after a step on a rank's part of a batch."""
    network.load(weights)
    loss, gradients = network.gradients_at(*batch)
    slopes = scheme.gradients(ranks, [part * each for each in gradients])
    new = [
        np.asarray(optimizer.update(place, weight, slope, number))
        for place, (weight, slope) in enumerate(zip(weights, slopes, strict=True))
    ]
    return loss, scheme.weights(ranks, new, number)


def distributed_weights(
    communicator: Communicator,
    network: Learner,
    scheme: Scheme,
    optimizer: OptimizerPart,
    batches: Sequence[tuple[Array, Array]],
    steps: int,
) -> list[Array]:
    """Return the weights after some steps, and this rank's losses; ranks have unequal shares."""
    weights = network.weights()
    for step in range(1, steps + 1):
        x, y = batches[(step - 1) % len(batches)]
        mine = shares(len(x), communicator.size)[communicator.rank]
        batch, part = (x[mine], y[mine]), (mine.stop - mine.start) / len(x)
        _, weights = stepped(network, weights, optimizer, scheme, communicator, batch, part, step)
    return weights


def shares(count: int, ranks: int) -> list[slice]:
    """Return each rank's slice of a batch; the first ranks get a sample more if it does not divide.

    >>> shares(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    sizes = [count // ranks + (rank < count % ranks) for rank in range(ranks)]
    ends = np.cumsum(sizes)
    return [slice(int(end - size), int(end)) for size, end in zip(sizes, ends, strict=True)]


def validate_scheme(
    make: Callable[[], Scheme],
    *,
    framework: str = REFERENCE,
    ranks: int = RANKS,
    steps: int = SCHEME_STEPS,
    tolerance: float = SCHEME,
) -> PartValidation:
    """Level 3: compare the weights of all ranks with one process training on the whole batch.

    A scheme that is not exact must bring the ranks together, and reduce the loss as one process
    does.

    >>> from caldera.bench.levels.schemes import AllReduce
    >>> validate_scheme(AllReduce).passes
    True
    """
    scheme = make()
    found = PartValidation(type(scheme).__name__, framework)
    with found.running():
        # 23 samples: no number of ranks divides them, so a mean of means is found out.
        cut = PROBLEM.batch - 1 if scheme.equals_one_process else PROBLEM.batch
        batches = [(x[:cut], y[:cut]) for x, y in PROBLEM.data("float64")]
        networks = [learner(framework) for _ in range(ranks)]
        before = networks[0].weights()
        rule: Callable[[], OptimizerPart] = lambda: ReferenceAdam(0.01)  # noqa: E731
        if not scheme.equals_one_process:
            rule = lambda: ReferenceSGD(0.2)  # noqa: E731

        def work(communicator: Communicator) -> tuple[list[Array], int]:
            weights = distributed_weights(
                communicator, networks[communicator.rank], make(), rule(), batches, steps
            )
            return weights, communicator.traffic.total.bytes_sent

        _check_agreement(found, make, before, ranks)
        results = run_virtual_ranks(ranks, work)
        for rank, (weights, _) in enumerate(results[1:], start=1):
            found.add_difference(
                f"rank {rank} has the weights of rank 0", weights, results[0][0], 1e-12
            )
        alone = networks[0]
        alone.load(before)
        expected = distributed_weights(SingleProcess(), alone, Alone(), rule(), batches, steps)
        if scheme.equals_one_process:
            found.add_difference("weights of one process", results[0][0], expected, tolerance)
        else:
            _check_learning(found, alone, before, results[0][0], expected, batches)
        found.add("ranks that sent nothing", sum(not sent for _, sent in results), 0)
    return found


def _check_agreement(
    found: PartValidation, make: Callable[[], Scheme], weights: list[Array], ranks: int
) -> None:
    """Weights in which all ranks agree stay as they are."""

    def work(communicator: Communicator) -> float:
        scheme = make()
        kept = [scheme.weights(communicator, weights, step) for step in range(1, SCHEME_STEPS + 1)]
        return max(Difference.of(each, weights).largest for each in kept)

    found.add("equal weights stay as they are", max(run_virtual_ranks(ranks, work)), 1e-12)


def _check_learning(
    found: PartValidation,
    network: Learner,
    before: list[Array],
    after: list[Array],
    expected: list[Array],
    batches: Sequence[tuple[Array, Array]],
) -> None:
    def loss(weights: list[Array]) -> float:
        network.load(weights)
        return float(np.mean([network.gradients_at(x, y)[0] for x, y in batches]))

    first, last, wanted = loss(before), loss(after), loss(expected)
    fallen = (first - last) / max(first - wanted, 1e-12)
    moved = joined(after) - joined(before)
    true = joined(expected) - joined(before)
    cosine = float(moved @ true / max(np.linalg.norm(moved) * np.linalg.norm(true), 1e-30))
    found.add_all(
        ("loss beside the first", last / first, LEARNS),
        ("fall of the loss relative to one process", abs(fallen - 1.0), 0.5),
        ("angle to the way of one process (1 - cosine)", 1.0 - cosine, 0.5),
    )
