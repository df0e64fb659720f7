"""Sums and means over ranks, several in one message: of arrays on the host, and in plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.ops.collective import Message, all_reduce, next_number
from caldera.core.tensor.dtype import float32, promote
from caldera.parallel.data.buckets import buckets
from caldera.parallel.distributed_variable import PerRankVariable
from caldera.train.strategy import VariableView


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
