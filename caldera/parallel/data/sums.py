"""Sums of gradients over ranks: in buckets, of virtual shards, by sufficient factors, compressed.

With virtual shards the parts of a batch, and the order of their sum, are the same for any number of
ranks; so is the result, to the bit. Each part has a program, with the same collectives in the same
order. The programs are merged into one, which receives the values of all parts and adds them along
a tree with one leaf per part of the batch.

The gradient of a weight is inputs.T @ output_gradient, a sum over samples. Where batches are small
and layers wide, the two matrices of all ranks are smaller than the gradient. Ranks then gather the
matrices and multiply them locally. The result is exact; the cost is the product over the samples of
all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from caldera import op
from caldera.base.configurable import Configurable
from caldera.comm import Communicator
from caldera.comm.reproducible_sum import leaf_range
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.passes.collectives import without_hidden
from caldera.core.graph import Node, Nodes, Program, item, rebuilt, topological
from caldera.core.graph.ops import matmul, pad, reshape
from caldera.core.graph.ops.collective import (
    Message,
    all_gather_flat,
    all_reduce,
    all_sum,
    finish,
    next_number,
    run_collective,
    start,
)
from caldera.core.tensor.dtype import float32, promote
from caldera.data import Share
from caldera.parallel.distributed_variables import PerRankVariable
from caldera.train.strategy import VariableView

LINE = 64
"""Bytes of a cache line."""
SHORT_BYTES = 1 << 15
"""Shorter messages are not split."""


def in_backward_order(loss: Expr, parameters: Sequence[Variable]) -> list[int]:
    """Return the indices of the parameters in the order in which their gradients are complete.

    The backward pass starts at the end of the graph: gradients of the last layers are ready first.

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
    """Return the numbers of the values that travel together; see `bucket_indices`."""
    sizes = [value.node.spec.nbytes for value in values]
    return bucket_indices(sizes, [value.dtype.name for value in values], order, bucket_bytes)


def bucket_indices(
    nbytes: Sequence[int], dtypes: Sequence[str], order: Sequence[int], bucket_bytes: int
) -> list[list[int]]:
    """Group values of these sizes and dtypes, in order, into messages of about `bucket_bytes`.

    A message has one dtype and is closed when it reaches the size. The remainder is sent in
    messages of decreasing length, since no computation hides the last ones. In a message, values of
    whole cache lines come first: each starts at a cache line and is written there directly by its
    kernel.

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
    """Split the remainder into parts that each contain at least half of the rest."""
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
    """Return the sums over ranks of arrays, in one message for each dtype; all ranks have to ask.

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
    """Return the means over ranks of arrays of floats, each rank counting by its weight; if none
    has any, all count the same. The same bits on every rank.

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
"""Prefix of the names of an epoch's sums."""


def mean_view(variable: Variable, communicator: Communicator) -> VariableView:
    """Return the view of an averaged variable: checkpoints and ranks receive the mean."""
    return PerRankVariable(
        variable, communicator, lambda own: mean_over_ranks(communicator, [own])[0]
    )


def sum_view(variable: Variable, communicator: Communicator) -> VariableView:
    """Return the view of a summed variable: rank 0 continues from the sum, all other ranks from
    0.
    """
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
    """Return the sums of values over the ranks along an axis, in one message.

    `alike` ranks have the same values, which count once. Values are sent as float64, in which
    counts are exact.
    """
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
    """Return the sums over the ranks along an axis of the values in `order`, in buckets.

    `how` contains fields of their `Message`s; `names`, if given, has a name for every value.
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


def virtual_shards_of(share: Share, shards: int, rank: int, ranks: int) -> list[Share]:
    """Return the parts of a batch that a rank computes, out of `shards` parts.

    >>> from caldera.data import Share
    >>> from caldera.parallel.data.sums import virtual_shards_of
    >>> share = Share.of(0, 10, 10, rank=1, ranks=2, parts=4)
    >>> [(part.first, len(part)) for part in virtual_shards_of(share, 4, 1, 2)]
    [(5, 2), (7, 3)]
    """
    first, last = leaf_range(rank, ranks, shards)
    return [Share.of(share.start, share.count, share.size, k, shards) for k in range(first, last)]


def joined(programs: Sequence[Sequence[Expr]], shards: int, rank: int, ranks: int) -> list[Expr]:
    """Join the programs of a rank's parts."""
    roots = [without_hidden(Program(tuple(e.node for e in each))).outputs for each in programs]
    leaves = (*leaf_range(rank, ranks, shards), shards)
    new: dict[Node, Node] = {}
    for alike in zip(*(_collectives(each) for each in roots), strict=True):
        values = rebuilt([value for sent, _ in alike for value in sent.inputs], new)
        first = alike[0][0]
        if first.op is all_sum:
            attrs = first.attrs
            message = Message("sum", attrs["axis"], attrs["number"], now=True, leaves=leaves)
            whole = reshape(run_collective(values, message), first.shape)
        else:
            whole = run_collective(values, replace(first.attrs["message"], leaves=leaves))
        new |= {received: whole for _, received in alike}
    # The computation that follows the sums is the same in every part.
    return [Expr(node) for node in rebuilt(roots[0], new)]


def _collectives(roots: Nodes) -> list[tuple[Node, Node]]:
    """Return the sent and received nodes of each collective, in order."""
    order = topological(roots)
    received = {node.inputs[0].inputs[0]: item(node, 0) for node in order if node.op is finish}
    found = [(node.attrs["number"], node, node) for node in order if node.op is all_sum]
    found += [
        (node.attrs["message"].number, node, received[node]) for node in order if node.op is start
    ]
    return [(sent, node) for _, sent, node in sorted(found, key=lambda each: each[0])]


def factors_are_smaller(samples: int, inputs: int, outputs: int) -> bool:
    """Return True if a rank sends fewer bytes with factors; `samples` counts all ranks' samples.

    A rank sends (n - 1) / n * samples * (inputs + outputs) values as factors, and 2 (n - 1) / n *
    inputs * outputs in a ring that sums gradients.

    >>> from caldera.parallel.data.sums import factors_are_smaller
    >>> factors_are_smaller(100, 784, 528), factors_are_smaller(800, 784, 528)
    (True, False)
    """
    return samples * (inputs + outputs) < 2 * inputs * outputs


def has_factors(gradient: Node, share: Share) -> bool:
    """Return True if a gradient is a product over samples with smaller factors.

    The answer is the same on all ranks, including ranks without samples of a batch.
    """
    if gradient.op is not matmul or not gradient.attrs["ta"] or gradient.attrs["tb"]:
        return False
    inputs, gradients = gradient.inputs
    if len(inputs.shape) != 2 or len(gradients.shape) != 2 or _has_positions(gradients):
        return False
    if inputs.shape[0] != len(share):
        return False
    return factors_are_smaller(share.count, inputs.shape[1], gradients.shape[1])


def by_factors(gradient: Node, share: Share, message: Message) -> Node:
    """Return the sum of a gradient over ranks, computed from all ranks' factors.

    Ranks with fewer samples send rows of zeros.
    """
    rows = -(-share.count // message.ranks)
    factors = [pad(each, ((0, rows - each.shape[0]), (0, 0))) for each in gradient.inputs]
    shapes = [(rows * message.ranks, factor.shape[1]) for factor in factors]
    inputs, gradients = all_gather_flat(factors, shapes, message)
    return matmul(inputs, gradients, **gradient.attrs)


def _has_positions(gradients: Node) -> bool:
    """Return True if rows are positions of sequences instead of samples."""
    if gradients.op.name != "reshape":
        return False
    before = gradients.inputs[0].shape
    return len(before) > 2 and before[-1] == gradients.shape[-1]


State = Mapping[str, np.ndarray]
_RANK = "rank"


@runtime_checkable
class Compression(Protocol):
    """Interface of gradient sums over ranks; `caldera.compress` has several implementations.

    - `mean`: True if it computes the mean, which is not suitable for gradients here.
    - `exchange_all` replaces gradients by their sums over all ranks, by parameter name; the same
      bits on every rank.
    - `state` returns the values that a rank keeps between exchanges, by "kind/parameter" (see
      `caldera.compress.redistribute`), and `restore` loads them.
    """

    mean: bool

    def exchange_all(self, gradients: Mapping[str, np.ndarray], communicator: Communicator) -> None:
        """Sum gradients over all ranks, in place and in one message."""

    def state(self) -> State:
        """Return the values that this rank keeps between exchanges."""

    def restore(self, state: State) -> None:
        """Restore the values that `state` returned."""


def owned(compression: Compression, owner: str) -> Compression:
    """Return a compression without the residual of another model's gradients."""
    if not isinstance(compression, Configurable):
        return compression
    found: Any = compression.owned_by(owner)
    return found


def described(compression: Compression | None) -> str:
    """Return the description of a compression with its arguments, if it has one.

    >>> from caldera.compress import QSGD
    >>> from caldera.parallel.data.sums import described
    >>> described(QSGD(4))
    'QSGD(4)'
    """
    if compression is None or isinstance(compression, Configurable):
        return repr(compression)
    return type(compression).__name__


def gather_states(communicator: Communicator, own: State) -> dict[str, np.ndarray]:
    """Return the arrays of all ranks, by rank and name.

    All ranks have the same names and shapes.
    """
    found: dict[str, np.ndarray] = {}
    for name in sorted(own):
        mine = np.asarray(own[name], order="C")
        everyone = np.empty((communicator.size, *mine.shape), mine.dtype)
        communicator.Allgather(mine.reshape(-1), everyone.reshape(-1))
        for rank, array in enumerate(everyone):
            found[f"{_RANK} {rank}/{name}"] = np.asarray(array)
    return found


def states_by_rank(arrays: State) -> list[dict[str, np.ndarray]]:
    """Return the arrays that `gather_states` gave, for each rank that there was.

    Others are left out.

    >>> import numpy as np
    >>> from caldera.parallel.data.sums import states_by_rank
    >>> states_by_rank({"rank 0/residual/w": np.array([1.0]), "rank 1/residual/w": np.array([2.0])})
    [{'residual/w': array([1.])}, {'residual/w': array([2.])}]
    """
    found: dict[int, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        owner, _, name = key.partition("/")
        if owner.startswith(f"{_RANK} "):
            found.setdefault(int(owner.removeprefix(f"{_RANK} ")), {})[name] = array
    return [found[rank] for rank in sorted(found)]
