"""Learning vectors of words from pairs of words that stand together."""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.ops import skip_gram as node_of
from caldera.core.graph.ops.base import cast
from caldera.op.arguments import as_count


def skip_gram(
    vectors: Any, words: Any, contexts: Any, rate: Any, batch: int = 256
) -> tuple[Expr, Expr]:
    """Steps of stochastic gradient descent on the skip-gram model with negative sampling.

    `vectors` has shape (2, words, width): the vectors of words, and those of contexts. `words` are
    rows of the first, one for each pair; `contexts` rows of the second, (pairs, 1 + negatives): the
    context that was seen, then those that were drawn. Pairs are taken `batch` at a time, one step
    of `rate` after the other; gradients of a batch are added up, as in word2vec, not averaged.
    Gives the vectors after that, and the loss of each pair before its step: -log s(w . c) of its
    own context c, and -log s(-w . n) of each n that was drawn, with s the logistic function. One
    that was drawn and is the pair's own says nothing, and is left out.

    Only rows that are named change, so the time of a step does not depend on how many there are.
    `nn.SkipGram` trains with it.

    >>> import numpy as np, caldera as cd
    >>> from caldera import op
    >>> vectors = cd.tensor(np.full((2, 4, 3), 0.5, "float32"))
    >>> after, losses = op.skip_gram(vectors, [0], [[1, 2]], rate=0.1)
    >>> after.numpy()[:, :, 0].astype("float64").round(3).tolist(), round(losses.item(), 4)
    ([[0.482, 0.5, 0.5, 0.5], [0.5, 0.516, 0.466, 0.5]], 1.5237)
    """
    table = as_float(lift(vectors))
    speed = cast(lift(rate, table.dtype), table.dtype)
    at_once = as_count(batch, "batch", "skip_gram")
    after, losses = node_of.skip_gram.outputs(
        table, lift(words), lift(contexts), speed, batch=at_once
    )
    return Expr(after), Expr(losses)
