"""Skip-gram with negative sampling (Mikolov et al., 2013): one step of descent as one op.

The two tables, of words and of contexts, are the halves of one array. Only the rows of words that
are in the batch change, and none of the differences of rows has to be written down: a native kernel
reads a row for each word and writes it, where the ops below make an array of all of them.
"""

from __future__ import annotations

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import op, refuse_dtype, refuse_shape
from caldera.core.graph.ops.activation import softplus
from caldera.core.graph.ops.base import constant, full, iota, reshape, sum_
from caldera.core.graph.ops.elementwise import (
    equal,
    logical_and,
    logical_not,
    mul,
    neg,
    sigmoid,
    where,
)
from caldera.core.graph.ops.indexing import gather, scatter_add
from caldera.core.graph.ops.movement import concat, narrow
from caldera.core.tensor.dtype import int64, is_float, is_integer


@op("skip_gram")
def skip_gram(
    vectors: Spec, words: Spec, contexts: Spec, rate: Spec, *, batch: int
) -> tuple[Spec, Spec]:
    """The vectors after a step for each `batch` of these pairs, and each pair's loss before its.

    The first context of a pair is its own, the others are drawn; one of them that is the first
    says nothing, and is left out.
    """
    if len(vectors.shape) != 3 or vectors.shape[0] != 2:
        refuse_shape("vectors of shape (2, words, width): those of words, and those of contexts")
    if len(words.shape) != 1 or len(contexts.shape) != 2 or contexts.shape[0] != words.shape[0]:
        refuse_shape("words of shape (pairs,) and contexts of shape (pairs, 1 + negatives)")
    if contexts.shape[1] < 1:
        refuse_shape("contexts of shape (pairs, 1 + negatives), the true one first")
    if rate.shape != ():
        refuse_shape("one learning rate")
    if not is_float(vectors.dtype) or rate.dtype != vectors.dtype:
        refuse_dtype("vectors and a learning rate of one floating-point dtype")
    if not (is_integer(words.dtype) and is_integer(contexts.dtype)):
        refuse_dtype("words and contexts that are integers: rows of the vectors")
    return Spec(vectors.shape, vectors.dtype), Spec(words.shape, vectors.dtype)


@skip_gram.flops
def _flops(node: Node) -> int:
    """A score, a word's step and a context's for each context of a pair. The parts would say the
    same, but a thousand batches have twenty thousand of them."""
    vectors, _, contexts, _ = node.inputs
    return 6 * contexts.spec.size * vectors.shape[2]


def _decomposed(
    vectors: Node, words: Node, contexts: Node, rate: Node, *, batch: int
) -> tuple[Node, Node]:
    count, width = vectors.shape[1:]
    pairs = words.shape[0]
    of_words, of_contexts = (
        reshape(narrow(vectors, 0, half, 1), (count, width)) for half in (0, 1)
    )
    losses = []
    for first in range(0, pairs, batch):
        size = min(batch, pairs - first)
        here = narrow(words, 0, first, size), narrow(contexts, 0, first, size)
        of_words, of_contexts, loss = _step(of_words, of_contexts, *here, rate)
        losses.append(loss)
    halves = tuple(reshape(table, (1, count, width)) for table in (of_words, of_contexts))
    after = concat(halves, 0)
    return after, concat(tuple(losses), 0) if losses else full((0,), 0, vectors.dtype)


skip_gram.decompose = _decomposed


def _step(
    of_words: Node, of_contexts: Node, words: Node, contexts: Node, rate: Node
) -> tuple[Node, Node, Node]:
    """Both tables after the step of a batch, and its losses."""
    pairs, many = contexts.shape
    context = gather(of_contexts, contexts, axis=0)
    word = reshape(gather(of_words, words, axis=0), (pairs, 1, of_words.shape[1]))
    scores = sum_(mul(word, context), (2,))

    number = iota(shape=contexts.shape, axis=1, dtype=int64)
    is_own = equal(number, constant(0, int64))
    says_nothing = logical_and(logical_not(is_own), equal(contexts, narrow(contexts, 1, 0, 1)))
    zero, one = constant(0, scores.dtype), constant(1, scores.dtype)
    sign = where(is_own, one, neg(one))
    wrong = neg(mul(sign, scores))
    losses = sum_(where(says_nothing, zero, softplus(wrong)), (1,))
    slope = where(says_nothing, zero, mul(rate, mul(sign, sigmoid(wrong))))

    slopes = reshape(slope, (pairs, many, 1))
    words_after = scatter_add(of_words, words, sum_(mul(slopes, context), (1,)), axis=0)
    contexts_after = scatter_add(of_contexts, contexts, mul(slopes, word), axis=0)
    return words_after, contexts_after, losses
