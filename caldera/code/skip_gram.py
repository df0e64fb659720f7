"""Skip-gram with negative sampling (word2vec; Mikolov et al., 2013): its op, reference and model.

A step of descent is one op. The two tables, of words and of contexts, are the halves of one array.
Only the rows of words that are in the batch change, and none of the differences of rows has to be
written down: a native kernel reads a row for each word and writes it, where the decomposition makes
an array of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import caldera.code.skip_gram_kernel  # noqa: F401 - it registers a kernel
from caldera import op
from caldera.base.arguments import checked, guarded
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
from caldera.errors import ConfigError, DataError, NonFiniteError
from caldera.kernels.reference.arrays import check_range
from caldera.kernels.reference.evaluation import reference
from caldera.op.arguments import as_count

_AT_ONCE = 1 << 16
"""Pairs that one run of the plan is given."""
_MOST_PLANS = 32
_MOST_NEGATIVES = 1000
_PLACES, _MOST_PLACES = 256, 1 << 22
"""Of the table that negatives are drawn from: so many for each word, and in all. A small table is
read from a cache."""
_LINE = 16
"""Numbers of a cache line, in whole ones of which vectors lie: what is added stays 0."""


@opdef.op("skip_gram")
def step(
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


@step.flops
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
        of_words, of_contexts, loss = _decomposed_step(of_words, of_contexts, *here, rate)
        losses.append(loss)
    halves = tuple(reshape(table, (1, count, width)) for table in (of_words, of_contexts))
    after = concat(halves, 0)
    return after, concat(tuple(losses), 0) if losses else full((0,), 0, vectors.dtype)


step.decompose = _decomposed


def _decomposed_step(
    of_words: Node, of_contexts: Node, words: Node, contexts: Node, rate: Node
) -> tuple[Node, Node, Node]:
    """Both tables after the step of a batch, and its losses."""
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
    # The logistic function, by the half of it that cannot overflow.
    small = np.exp(-np.abs(wrong))
    likely = np.where(wrong > 0, 1, small) / (1 + small)
    slope = (np.where(counts, likely, 0) * sign * rate)[:, :, None]
    np.add.at(vectors[0], words, (slope * context).sum(axis=1))
    np.add.at(vectors[1], contexts, slope * word[:, None])
    return losses


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
    after, losses = step.outputs(table, lift(words), lift(contexts), speed, batch=at_once)
    return Expr(after), Expr(losses)


skip_gram = checked(skip_gram, location)


@guarded
class SkipGram:
    """Vectors for words, trained so that those of words which stand together are alike.

    `counts` has how often each word occurs: negatives are drawn in proportion to their 3/4th power,
    and words so frequent that they say little are left out of some pairs (`sample`, the share from
    which on; 0 keeps all).

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
        if not fits:
            raise DataError.build(
                "nn.SkipGram",
                expected="counts= of words: numbers of at least 0, one a word",
                got=f"{given.dtype} of shape {given.shape}",
            )
        self.counts = given.astype(np.float64)
        if not 0 < self.counts.sum() < np.inf:
            raise DataError.build(
                "nn.SkipGram",
                expected="a word that occurs, and a number of all of them",
                got=f"counts of {self.counts.sum():g} in all",
            )
        self.width = as_count(width, "width", "nn.SkipGram")
        self.negatives = as_count(negatives, "negatives", "nn.SkipGram")
        if self.negatives > _MOST_NEGATIVES:
            raise ConfigError.build(
                "nn.SkipGram", expected=f"at most {_MOST_NEGATIVES} negatives", got=repr(negatives)
            )
        if not sample >= 0:
            raise ConfigError.build(
                "nn.SkipGram", expected="sample= a number of at least 0", got=repr(sample)
            )
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
        """Those of the words, (words, width)."""
        return self._table.numpy()[0, :, : self.width].copy()

    def fit(
        self, pairs: Any, epochs: int = 1, rate: float = 0.025, batch_size: int | None = None
    ) -> list[float]:
        """Train on pairs of words (a word, and one beside it), (pairs, 2); each epoch's mean loss.

        The learning rate falls from `rate` to a hundredth of it over all epochs, as in word2vec.
        Gradients of a batch are added up, so a word must not be in it too often: `batch_size` is by
        default so large that the most frequent one is there about four times.
        """
        given = self._checked(pairs)
        epochs = as_count(epochs, "epochs", "nn.SkipGram.fit", least=0)
        batch = self._usual_batch() if batch_size is None else batch_size
        batch = as_count(batch, "batch_size", "nn.SkipGram.fit")
        if not isinstance(rate, int | float | np.number) or not 0 < rate < np.inf:
            raise ConfigError.build(
                "nn.SkipGram.fit", expected="rate= a number above 0", got=repr(rate)
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
        if not fits or not len(given):
            raise DataError.build(
                "nn.SkipGram.fit",
                expected="pairs of words: integers of shape (pairs, 2)",
                got=f"{given.dtype} of shape {given.shape}",
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
        """The words of all pairs that are kept in this epoch, in its order; their contexts, with
        those that are drawn behind them; and how far it has come."""
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
    """Pairs that are given to a plan at once: whole batches, and of few sizes, as each has a plan
    of its own."""
    at_once = _AT_ONCE
    while at_once > batch:
        size = at_once // batch * batch
        if size <= left:
            return size
        at_once //= 4
    return min(batch, left)
