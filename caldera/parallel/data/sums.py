"""Sums and means over ranks, and the buckets of gradients that share a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.ops.collective import Message, all_reduce, next_number
from caldera.core.graph.program import topological
from caldera.core.tensor.dtype import float32, promote
from caldera.parallel.distributed_variables import PerRankVariable
from caldera.train.strategy import VariableView

LINE = 64
"""Bytes of a cache line."""
SHORT_BYTES = 1 << 15
"""No message is cut in two for less."""


def in_backward_order(loss: Expr, parameters: Sequence[Variable]) -> list[int]:
    """The numbers of the parameters in the order in which the backward pass is done with them.

    It goes through the graph from its end, so what is used last for the first time is ready first.

    >>> from caldera import op
    >>> from caldera.parallel.data.sums import in_backward_order
    >>> a, b = op.var("a", (2,)), op.var("b", (2,))
    >>> in_backward_order(op.sum(op.exp(a) * b), [a, b])
    [1, 0]
    """
    wanted = {parameter.node for parameter in parameters}
    first_use: dict[object, int] = {}
    for place, node in enumerate(topological([loss.node])):
        for given in node.inputs:
            if given in wanted:
                first_use.setdefault(given, place)
    return sorted(
        range(len(parameters)),
        key=lambda index: (-first_use.get(parameters[index].node, -1), -index),
    )


def buckets(values: Sequence[Expr], order: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """The numbers of the values that travel together; see `bucket_indices`."""
    sizes = [value.node.spec.nbytes for value in values]
    return bucket_indices(sizes, [value.dtype.name for value in values], order, bucket_bytes)


def bucket_indices(
    nbytes: Sequence[int], dtypes: Sequence[str], order: Sequence[int], bucket_bytes: int
) -> list[list[int]]:
    """Values of these sizes and dtypes, in this order, in messages of about so many bytes.

    A message has one dtype, and is closed when it has reached that size. What is left over after
    the last one of that size goes in messages that become shorter: who waits for the last of them
    has nothing left to do. In a message those come first that are whole cache lines: each of them
    begins at one then, and whoever computes it can write it there at once.

    >>> from caldera.parallel.data.sums import bucket_indices
    >>> bucket_indices([40] * 5, ["float32"] * 5, range(5), bucket_bytes=80)
    [[0, 1], [2, 3], [4]]
    """
    open_ones: dict[str, list[int]] = {}
    found: list[list[int]] = []
    full = False
    for index in order:
        bucket = open_ones.setdefault(dtypes[index], [])
        if not bucket:
            found.append(bucket)
        bucket.append(index)
        if sum(nbytes[each] for each in bucket) >= bucket_bytes:
            del open_ones[dtypes[index]]
            full = True
    if full:
        found = [part for bucket in found for part in _shorter(bucket, nbytes, bucket_bytes)]
    return [sorted(bucket, key=lambda index: nbytes[index] % LINE > 0) for bucket in found]


def _shorter(bucket: list[int], nbytes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """What did not fill a message, in parts that each have half of what is left or more."""
    left = sum(nbytes[index] for index in bucket)
    if left >= bucket_bytes:
        return [bucket]
    found: list[list[int]] = [[]]
    size = 0
    for index in bucket:
        found[-1].append(index)
        size += nbytes[index]
        left -= nbytes[index]
        if size >= left >= SHORT_BYTES:
            found.append([])
            size = 0
    return found


def allreduce_arrays(communicator: Communicator, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The sums over ranks of arrays, in one message for each dtype; all ranks have to ask.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.parallel.data.sums import allreduce_arrays
    >>> run_virtual_ranks(2, lambda comm: allreduce_arrays(comm, [np.eye(1), np.ones(2)]))[0]
    [array([[2.]]), array([2., 2.])]
    """
    found = [np.empty_like(array) for array in arrays]
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        chosen = [index for index, array in enumerate(arrays) if array.dtype == dtype]
        flat = np.concatenate([arrays[index].reshape(-1) for index in chosen])
        communicator.Allreduce(flat, flat)
        ends = np.cumsum([arrays[index].size for index in chosen])
        for index, part in zip(chosen, np.split(flat, ends[:-1]), strict=True):
            found[index] = part.reshape(arrays[index].shape)
    return found


def mean_over_ranks(
    communicator: Communicator, arrays: Sequence[np.ndarray], weight: float = 1.0
) -> list[np.ndarray]:
    """The means over ranks of arrays of floats, each rank counting by its weight; if none has any,
    all count the same. The same bits on every rank.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> from caldera.parallel.data.sums import mean_over_ranks
    >>> def work(comm):
    ...     return mean_over_ranks(comm, [np.array([4.0 * comm.rank])], weight=1 + 2 * comm.rank)
    >>> run_virtual_ranks(2, work)
    [[array([3.])], [array([3.])]]
    """
    (total,) = allreduce_arrays(communicator, [np.array([float(weight)])])
    own = weight if total.item() else 1.0
    every = total.item() or float(communicator.size)
    wide = [promote(array.dtype, float32) for array in arrays]
    sums = allreduce_arrays(
        communicator,
        [array.astype(w) * w.type(own) for array, w in zip(arrays, wide, strict=True)],
    )
    return [
        (each / each.dtype.type(every)).astype(array.dtype)
        for each, array in zip(sums, arrays, strict=True)
    ]


# --- what ranks have of their own, in checkpoints

EPOCH_SUMS = "run/training/"
"""What the names of an epoch's sums begin with."""


def mean_view(variable: Variable, communicator: Communicator) -> VariableView:
    """A variable that is averaged: a checkpoint has the mean, and each rank goes on with that."""
    return PerRankVariable(
        variable, communicator, lambda own: mean_over_ranks(communicator, [own])[0]
    )


def sum_view(variable: Variable, communicator: Communicator) -> VariableView:
    """A variable that is summed: a checkpoint has the sum, from which rank 0 goes on, others from
    nothing."""
    return PerRankVariable(
        variable,
        communicator,
        lambda own: allreduce_arrays(communicator, [own])[0],
        lambda value: value if communicator.rank == 0 else np.zeros_like(value),
    )


# --- in plans


def sum_over_axis(
    values: Sequence[Expr], axis: str, *, alike: int = 1, now: bool = True
) -> list[Expr]:
    """The sums of values over the ranks along an axis, in one message; so many ranks have the same
    values, which count once. In float64 all of them fit into one, and counts stay exact."""
    wide = [op.cast(value, "float64").node for value in values]
    found = [Expr(each) for each in all_reduce(wide, Message("sum", axis, next_number(), now=now))]
    once = found if alike == 1 else [total / float(alike) for total in found]
    return [op.cast(each, value.dtype) for each, value in zip(once, values, strict=True)]


def bucketed_sums(
    values: Sequence[Expr],
    order: Sequence[int],
    bucket_bytes: int,
    axis: str = "data",
    **how: Any,
) -> dict[int, Expr]:
    """The sums over the ranks along an axis of the values with these numbers, in buckets.

    `how` are fields of their `Message`s; with `names`, those of all values.
    """
    names = how.pop("names", None)
    found: dict[int, Expr] = {}
    for bucket in buckets(values, order, bucket_bytes):
        if names is not None:
            how["names"] = tuple(names[index] for index in bucket)
        message = Message("sum", axis, next_number(), **how)
        sums = all_reduce([values[index].node for index in bucket], message)
        found |= {index: Expr(node) for index, node in zip(bucket, sums, strict=True)}
    return found
