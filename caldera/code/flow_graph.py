"""The contextual flow graph (inst2vec): statements that depend on each other, by data or control.

A statement that reads a value is connected to the statement that writes it. A statement that reads
no earlier value of its block is connected to the jumps to this block. If the module defines the
called function, a call is connected to the function's start and to its returns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from caldera.base.arguments import require
from caldera.code.llvm_ir import Function, Statement, checked_functions
from caldera.core.tensor.dtype import array_of
from caldera.errors import DataError
from caldera.op.arguments import as_count

Edge = tuple[int, int]
MOST_STATEMENTS = 1 << 27


def flow_edges(functions: Sequence[Function]) -> list[Edge]:
    """Return the pairs of statements of a module that depend on each other, each once.

    Statements are counted through all functions.

    >>> from caldera.code import read_ir
    >>> text = "define i32 @f(i32 %x) {\\n  %y = add i32 %x, 1\\n  ret i32 %y\\n}"
    >>> flow_edges(read_ir(text))
    [(0, 1)]
    """
    functions = checked_functions("code.flow_edges", functions)
    firsts: dict[str, int] = {}
    returns: dict[str, list[int]] = {}
    found: dict[Edge, None] = {}
    start = 0
    for function in functions:
        numbered = list(enumerate(function.statements, start))
        firsts[function.name] = start
        returns[function.name] = [i for i, statement in numbered if statement.is_return]
        found.update(dict.fromkeys(_edges_of(numbered)))
        start += len(numbered)
    statements = [each for function in functions for each in function.statements]
    for i, statement in enumerate(statements):
        if statement.calls in firsts:
            others = [firsts[statement.calls], *returns[statement.calls]]
            found.update(dict.fromkeys((min(i, j), max(i, j)) for j in others if i != j))
    return sorted(found)


def _edges_of(statements: Sequence[tuple[int, Statement]]) -> Iterator[Edge]:
    writer = {each.writes: (i, each.block) for i, each in statements if each.writes is not None}
    jumps: dict[str, list[int]] = defaultdict(list)
    for i, statement in statements:
        for block in statement.jumps:
            jumps[block].append(i)
    for i, statement in statements:
        sources = [writer[name] for name in statement.reads if name in writer]
        others = [j for j, _ in sources]
        if all(block != statement.block or j > i for j, block in sources):
            others += jumps[statement.block]
        yield from ((min(i, j), max(i, j)) for j in others if i != j)


def context_pairs(
    edges: Sequence[Edge], count: int, context: int = 2, share: float = 1.0
) -> np.ndarray:
    """Return ordered pairs of statements within `context` edges, of shape (pairs, 2).

    Large contexts have many pairs. With a `share` below 1, that fraction of all statements is
    drawn, the same each time, and only pairs with a drawn statement are returned.

    >>> context_pairs([(0, 1), (1, 2)], 3, context=1).tolist()
    [[0, 1], [1, 0], [1, 2], [2, 1]]
    >>> context_pairs([(0, 1), (1, 2)], 3, context=2).tolist()
    [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    """
    context = as_count(context, "context", "code.context_pairs")
    require(0 < share <= 1, "code.context_pairs", "share= above 0, at most 1", repr(share))
    count = as_count(count, "count", "code.context_pairs", least=0)
    require(
        count <= MOST_STATEMENTS,
        "code.context_pairs",
        f"count= at most {MOST_STATEMENTS}",
        repr(count),
    )
    given = array_of(edges, "code.context_pairs")
    given = np.zeros((0, 2), np.int64) if given.size == 0 else given
    fits = given.ndim == 2 and given.shape[1] == 2 and given.dtype.kind in "iu"
    if not fits or (len(given) and not (given.min() >= 0 and given.max() < count)):
        raise DataError.build(
            "code.context_pairs",
            expected=f"edges: pairs of integers from 0 to {count - 1}",
            got=f"{given.min()} to {given.max()}" if fits else f"{given.dtype} {given.shape}",
        )
    both = np.concatenate([given, given[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    starts = np.searchsorted(both[:, 0], np.arange(count + 1))
    # A pair is encoded as a single number, so that a set is a sorted array.
    drawn = np.random.default_rng(0).random(count) < share
    begin = both[drawn[both[:, 0]]]
    reached = np.unique(begin[:, 0] * count + begin[:, 1])
    newest = reached
    for _ in range(context - 1):
        farther = _one_edge_on(newest, count, starts, both[:, 1])
        newest = np.setdiff1d(farther, reached, assume_unique=True)
        if not newest.size:
            break
        reached = np.union1d(reached, newest)
    if share < 1:
        reached = np.union1d(reached, reached % count * count + reached // count)
    return np.stack([reached // count, reached % count], axis=1).astype(np.int32)


def _one_edge_on(
    pairs: np.ndarray, count: int, starts: np.ndarray, beside: np.ndarray
) -> np.ndarray:
    """Extend each pair by one edge: pair its first statement with neighbours of its second.

    Pairs of a statement with itself are omitted.
    """
    first, second = pairs // count, pairs % count
    many = starts[second + 1] - starts[second]
    before = np.cumsum(many) - many
    places = np.arange(many.sum()) + np.repeat(starts[second] - before, many)
    owner, other = np.repeat(first, many), beside[places]
    return np.unique((owner * count + other)[owner != other])
