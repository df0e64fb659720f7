"""Skip-gram with negative sampling (word2vec; Mikolov et al., 2013): its op, reference and model.

A step of gradient descent is a single op. The tables of words and of contexts are the halves of an
array. Only rows of words in the batch change, and differences of rows are not stored: a native
kernel reads and writes a row per word. The decomposition would materialise all differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import caldera.code.skip_gram_kernel  # noqa: F401 - it registers a kernel
from caldera import op
from caldera.base.arguments import checked, guarded, require
from caldera.base.config import settings
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.compiler.lazy import compile as compile_plan
from caldera.core.graph import Node, Spec, location, opdef, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    cast,
    concat,
    constant,
    equal,
    full,
    iota,
    logical_and,
    logical_not,
    mul,
    narrow,
    neg,
    reshape,
    sigmoid,
    sum_,
    where,
)
from caldera.core.graph.ops.activation import softplus
from caldera.core.graph.ops.indexing import gather, scatter_add
from caldera.core.tensor.dtype import array_of, int64, is_float, is_integer
from caldera.errors import DataError, NonFiniteError
from caldera.kernels.reference.arrays import check_range
from caldera.kernels.reference.evaluation import reference
from caldera.op.arguments import as_count

_AT_ONCE = 1 << 16
"""Number of pairs per run of the plan."""
_MOST_PLANS = 32
_MOST_NEGATIVES = 1000
_PLACES, _MOST_PLACES = 256, 1 << 22
"""Entries per word, and in all, of the table that negatives are drawn from.

A small table is read from a cache.
"""
_LINE = 16
"""Numbers per cache line. Vectors are padded to whole lines with values that stay 0."""


@opdef.op("skip_gram")
def step(
    vectors: Spec, words: Spec, contexts: Spec, rate: Spec, *, batch: int
) -> tuple[Spec, Spec]:
    """Return the vectors after one step per `batch` of pairs, and each pair's prior loss.

    The first context of a pair is the true one, and the rest are drawn. A drawn context that equals
    the true one is ignored.
    """
    if len(vectors.shape) != 3 or vectors.shape[0] != 2:
        refuse_shape(
            "vectors of shape (2, words, width): vectors of words, and vectors of contexts"
        )
    if len(words.shape) != 1 or len(contexts.shape) != 2 or contexts.shape[0] != words.shape[0]:
        refuse_shape("words of shape (pairs,) and contexts of shape (pairs, 1 + negatives)")
    if contexts.shape[1] < 1:
        refuse_shape("contexts of shape (pairs, 1 + negatives), the true one first")
    if rate.shape != ():
        refuse_shape("one learning rate")
    if not is_float(vectors.dtype) or rate.dtype != vectors.dtype:
        refuse_dtype("vectors and a learning rate of the same floating-point dtype")
    if not (is_integer(words.dtype) and is_integer(contexts.dtype)):
        refuse_dtype("words and contexts that are integers: rows of the vectors")
    return Spec(vectors.shape, vectors.dtype), Spec(words.shape, vectors.dtype)


@step.flops
def _flops(node: Node) -> int:
    """Count a score, a word update and a context update for each context of a pair.

    The decomposition has the same count, but twenty thousand nodes for a thousand batches.
    """
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
        of_words, of_contexts, loss = _decomposed_step(of_words, of_contexts, *here, rate)
        losses.append(loss)
    halves = tuple(reshape(table, (1, count, width)) for table in (of_words, of_contexts))
    after = concat(halves, 0)
    return after, concat(tuple(losses), 0) if losses else full((0,), 0, vectors.dtype)


step.decompose = _decomposed


def _decomposed_step(
    of_words: Node, of_contexts: Node, words: Node, contexts: Node, rate: Node
) -> tuple[Node, Node, Node]:
    """Return both tables after the step of a batch, and its losses."""
    pairs, many = contexts.shape
    context = gather(of_contexts, contexts, axis=0)
    word = reshape(gather(of_words, words, axis=0), (pairs, 1, of_words.shape[1]))
    scores = sum_(mul(word, context), (2,))

    is_own = equal(iota(shape=contexts.shape, axis=1, dtype=int64), constant(0, int64))
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


@reference("skip_gram")
def _reference(
    vectors: np.ndarray, words: np.ndarray, contexts: np.ndarray, rate: np.ndarray, *, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    for rows in (words, contexts):
        check_range("skip_gram", rows, vectors.shape[1])
    computed = np.result_type(vectors.dtype, np.float32)
    after = vectors.astype(computed)
    losses = np.zeros(len(words), computed)
    speed = rate.astype(computed)
    for first in range(0, len(words), batch):
        part = slice(first, first + batch)
        losses[part] = _reference_step(after, words[part], contexts[part], speed)
    return after.astype(vectors.dtype), losses.astype(vectors.dtype)


def _reference_step(
    vectors: np.ndarray, words: np.ndarray, contexts: np.ndarray, rate: np.ndarray
) -> np.ndarray:
    """Move the vectors by the gradients of a batch; its losses before that."""
    word, context = vectors[0, words], vectors[1, contexts]
    sign = np.where(np.arange(contexts.shape[1]) == 0, 1, -1).astype(vectors.dtype)
    counts = contexts != contexts[:, :1]
    counts[:, 0] = True
    wrong = -sign * np.einsum("pw,pcw->pc", word, context)
    losses: np.ndarray = np.where(counts, np.logaddexp(0, wrong), 0).sum(axis=1)
    # The logistic function in the form that cannot overflow for this sign.
    small = np.exp(-np.abs(wrong))
    likely = np.where(wrong > 0, 1, small) / (1 + small)
    slope = (np.where(counts, likely, 0) * sign * rate)[:, :, None]
    np.add.at(vectors[0], words, (slope * context).sum(axis=1))
    np.add.at(vectors[1], contexts, slope * word[:, None])
    return losses


def skip_gram(
    vectors: Any, words: Any, contexts: Any, rate: Any, batch: int = 256
) -> tuple[Expr, Expr]:
    """Apply steps of stochastic gradient descent to the skip-gram model with negative sampling.

    `vectors` has shape (2, words, width): the vectors of words, and the vectors of contexts.
    `words` has a row index for each pair. `contexts` has shape (pairs, 1 + negatives): the observed
    context, then the drawn ones. Pairs are processed in batches of `batch`, with a step of `rate`
    after each. Gradients of a batch are summed, as in word2vec, not averaged.

    Return the vectors after all steps, and the loss of each pair before its step. The loss is -log
    s(w . c) of the true context c, plus -log s(-w . n) of each drawn context n, with s the logistic
    function. A drawn context that equals the true one is ignored.

    Only the named rows change, so the time of a step does not depend on the size of the vocabulary.
    `nn.SkipGram` trains with this function.

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
    after, losses = step.outputs(table, lift(words), lift(contexts), speed, batch=at_once)
    return Expr(after), Expr(losses)


skip_gram = checked(skip_gram, location)


@guarded
class SkipGram:
    """Word vectors, trained so that words of the same contexts have similar vectors.

    `counts` is the number of occurrences of each word. Negatives are drawn in proportion to the
    3/4th power of the counts. Very frequent words carry little information and are omitted from
    some pairs: `sample` is the share of all words from which on this applies; 0 keeps all pairs.

    >>> import numpy as np
    >>> from caldera import nn
    >>> pairs = np.random.default_rng(0).permutation([(0, 1), (1, 0), (2, 3), (3, 2)] * 200)
    >>> model = nn.SkipGram(counts=[200] * 4, width=8, negatives=2, sample=0, seed=1)
    >>> losses = model.fit(pairs, epochs=5, rate=0.1, batch_size=16)
    >>> losses[-1] < losses[0]
    True
    >>> model.vectors.shape
    (4, 8)
    """

    def __init__(
        self,
        counts: Any,
        width: int = 200,
        negatives: int = 5,
        sample: float = 1e-3,
        seed: int = 0,
    ) -> None:
        given = array_of(counts, "nn.SkipGram")
        fits = given.ndim == 1 and len(given) and given.dtype.kind in "iuf" and (given >= 0).all()
        require(
            fits,
            "nn.SkipGram",
            "counts= of words: numbers of at least 0, one a word",
            f"{given.dtype} of shape {given.shape}",
            error=DataError,
        )
        self.counts = given.astype(np.float64)
        if not 0 < self.counts.sum() < np.inf:
            raise DataError.build(
                "nn.SkipGram",
                expected="a word that occurs, and a total count",
                got=f"counts of {self.counts.sum():g} in all",
            )
        self.width = as_count(width, "width", "nn.SkipGram")
        self.negatives = as_count(negatives, "negatives", "nn.SkipGram")
        require(
            self.negatives <= _MOST_NEGATIVES,
            "nn.SkipGram",
            f"at most {_MOST_NEGATIVES} negatives",
            repr(negatives),
        )
        require(sample >= 0, "nn.SkipGram", "sample= a number of at least 0", repr(sample))
        self.sample, self.epoch = float(sample), 0
        self.seed = as_count(seed, "seed", "nn.SkipGram", least=0)
        columns = -(-self.width // _LINE) * _LINE if self.width > _LINE else self.width
        start = np.zeros((2, len(self.counts), columns), np.float32)
        draws = np.random.default_rng(seed).random((len(self.counts), self.width))
        start[0, :, : self.width] = (draws - 0.5) / self.width
        self._table = op.var("vectors", start.shape, fill=start)
        # By pairs, batch and threads.
        self._plans: dict[tuple[int, int, int], Any] = {}
        odds = self.counts**0.75
        places = min(1 << (_PLACES * len(odds) - 1).bit_length(), _MOST_PLACES)
        edges = np.cumsum(odds / odds.sum()) * places
        self._draws = np.searchsorted(edges, np.arange(places) + 0.5).astype(np.int32)

    @property
    def vectors(self) -> np.ndarray:
        """Vectors of the words, of shape (words, width)."""
        return self._table.numpy()[0, :, : self.width].copy()

    def fit(
        self, pairs: Any, epochs: int = 1, rate: float = 0.025, batch_size: int | None = None
    ) -> list[float]:
        """Train on pairs (word, neighbouring word) of shape (pairs, 2); return each epoch's mean
        loss.

        The learning rate falls linearly from `rate` to a hundredth of `rate` over all epochs, as in
        word2vec. Gradients of a batch are summed, so a word must not occur too often in a batch. By
        default `batch_size` is chosen so that the most frequent word occurs about four times.
        """
        given = self._checked(pairs)
        epochs = as_count(epochs, "epochs", "nn.SkipGram.fit", least=0)
        batch = self._usual_batch() if batch_size is None else batch_size
        batch = as_count(batch, "batch_size", "nn.SkipGram.fit")
        require(
            isinstance(rate, int | float | np.number) and 0 < rate < np.inf,
            "nn.SkipGram.fit",
            "rate= a number above 0",
            repr(rate),
        )
        losses: list[float] = []
        for epoch in range(epochs):
            total, seen = 0.0, 0
            for words, contexts, done in self._parts(given, batch):
                speed = np.float32(rate * max(0.01, 1 - (epoch + done) / epochs))
                total += self._run({"words": words, "contexts": contexts, "rate": speed}, batch)
                seen += len(words)
            losses.append(total / max(seen, 1))
            self.epoch += 1
            if not np.isfinite(losses[-1]):
                raise NonFiniteError.build(
                    "nn.SkipGram.fit",
                    expected="a finite loss",
                    got=f"{losses[-1]}",
                    hint=f"lower rate={rate} or batch_size={batch}: gradients of a batch are "
                    "added up",
                )
        return losses

    def _checked(self, pairs: Any) -> np.ndarray:
        given = array_of(pairs, "nn.SkipGram.fit")
        fits = given.ndim == 2 and given.shape[1] == 2 and given.dtype.kind in "iu"
        require(
            fits and len(given),
            "nn.SkipGram.fit",
            "pairs of words: integers of shape (pairs, 2)",
            f"{given.dtype} of shape {given.shape}",
            error=DataError,
        )
        if given.min() < 0 or given.max() >= len(self.counts):
            raise DataError.build(
                "nn.SkipGram.fit",
                expected=f"words from 0 to {len(self.counts) - 1}",
                got=f"{given.min()} to {given.max()}",
                hint="counts= has one number for each word",
            )
        return given.astype(np.int32, copy=False)

    def _parts(
        self, pairs: np.ndarray, batch: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        """Yield parts of an epoch: words, contexts, and the fraction of the epoch completed.

        The pairs are shuffled and thinned. A row of contexts is the true context followed by the
        drawn ones.
        """
        random = np.random.default_rng((self.seed, self.epoch))
        # A pair is one number here, so that it is moved once.
        whole = np.ascontiguousarray(pairs).view(np.int64)[:, 0]
        kept = random.permutation(whole).view(np.int32).reshape(-1, 2)
        if self.sample:
            odds = self._kept
            kept = kept[random.random(len(kept)) < odds[kept[:, 0]] * odds[kept[:, 1]]]
        first = 0
        while first < len(kept):
            part = kept[first : first + _part_size(batch, len(kept) - first)]
            contexts = np.empty((len(part), 1 + self.negatives), np.int32)
            contexts[:, 0] = part[:, 1]
            places = random.integers(0, len(self._draws), contexts[:, 1:].shape, np.uint32)
            contexts[:, 1:] = self._draws.take(places)
            yield np.ascontiguousarray(part[:, 0]), contexts, first / len(kept)
            first += len(part)

    def _usual_batch(self) -> int:
        often = self.counts * self._kept
        return int(np.clip(4 * often.sum() / often.max(), 8, 1024))

    @property
    def _kept(self) -> np.ndarray:
        """With which probability a word is kept, as in word2vec."""
        if not self.sample:
            return np.ones(len(self.counts))
        share = np.maximum(self.counts / self.counts.sum(), 1e-12)
        return np.minimum(1.0, np.sqrt(self.sample / share) + self.sample / share)

    def _run(self, feeds: dict[str, Any], batch: int) -> float:
        """Train on a part, and its loss."""
        key = (len(feeds["words"]), batch, settings.threads)
        if key not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = self._plan(key[0], batch)
        return float(self._plans[key].run(feeds)[0].item())

    def _plan(self, pairs: int, batch_size: int) -> Any:
        words = op.input("words", (pairs,), dtype="int32")
        contexts = op.input("contexts", (pairs, 1 + self.negatives), dtype="int32")
        speed = op.input("rate", ())
        after, losses = skip_gram(self._table, words, contexts, speed, batch=batch_size)
        return compile_plan([op.sum(losses), op.assign(self._table, after)], remember=False)


def _part_size(batch: int, left: int) -> int:
    """Return the number of pairs per run: whole batches, and few sizes, since each needs a plan."""
    at_once = _AT_ONCE
    while at_once > batch:
        size = at_once // batch * batch
        if size <= left:
            return size
        at_once //= 4
    return min(batch, left)
