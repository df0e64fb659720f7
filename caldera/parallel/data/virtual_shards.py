"""A rank that computes several parts of a batch, each as if it were a rank of its own.

Where the parts are the same for any number of ranks, and what they find is added up in the same
order, so is the result, to the bit. Each part has a program of its own, and these have the same
collectives in the same order. One after the other, they become one: it is given the values of all
parts, and adds them up along a tree that has a leaf for each part of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caldera.comm.reproducible_sum import leaf_range
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.collectives import without_hidden
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes, item
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.collective import Message, all_sum, finish, run_collective, start
from caldera.core.graph.program import Program, rebuilt, topological
from caldera.data import Share


def virtual_shards_of(share: Share, shards: int, rank: int, ranks: int) -> list[Share]:
    """The parts of a batch that a rank computes, of which the batch has so many.

    >>> from caldera.data import Share
    >>> from caldera.parallel.data.virtual_shards import virtual_shards_of
    >>> share = Share.of(0, 10, 10, rank=1, ranks=2, parts=4)
    >>> [(part.first, len(part)) for part in virtual_shards_of(share, 4, 1, 2)]
    [(5, 2), (7, 3)]
    """
    first, last = leaf_range(rank, ranks, shards)
    return [Share.of(share.start, share.count, share.size, k, shards) for k in range(first, last)]


def joined(programs: Sequence[Sequence[Expr]], shards: int, rank: int, ranks: int) -> list[Expr]:
    """The programs of a rank's parts as one."""
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
    # What is done with the sums is the same in all of them.
    return [Expr(node) for node in rebuilt(roots[0], new)]


def _collectives(roots: Nodes) -> list[tuple[Node, Node]]:
    """What is sent and what is received, in order."""
    order = topological(roots)
    received = {node.inputs[0].inputs[0]: item(node, 0) for node in order if node.op is finish}
    found = [(node.attrs["number"], node, node) for node in order if node.op is all_sum]
    found += [
        (node.attrs["message"].number, node, received[node]) for node in order if node.op is start
    ]
    return [(sent, node) for _, sent, node in sorted(found, key=lambda each: each[0])]
