"""Which gradients travel together, and in which order they become ready."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.body import topological

LINE = 64
"""Bytes of a cache line."""
SHORT_BYTES = 1 << 15
"""No message is cut in two for less."""


def in_backward_order(loss: Expr, parameters: Sequence[Variable]) -> list[int]:
    """The numbers of the parameters in the order in which the backward pass is done with them.

    It goes through the graph from its end, so what is used last for the first time is ready first.

    >>> from caldera import op
    >>> from caldera.parallel.data.buckets import in_backward_order
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

    >>> from caldera.parallel.data.buckets import bucket_indices
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
