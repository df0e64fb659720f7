"""Vectors of words from what they stand beside: skip-gram with negative sampling (word2vec)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from caldera import op
from caldera.base.config import settings
from caldera.compiler.lazy import compile as compile_plan
from caldera.core.tensor.dtype import array_of
from caldera.errors import ConfigError, DataError, NonFiniteError
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
                feeds = {"words": words, "contexts": contexts, "rate": speed}
                total += self._run(feeds, batch)
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
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(key[0], batch)
        return float(plan.run(feeds)[0].item())

    def _plan(self, pairs: int, batch_size: int) -> Any:
        words = op.input("words", (pairs,), dtype="int32")
        contexts = op.input("contexts", (pairs, 1 + self.negatives), dtype="int32")
        speed = op.input("rate", ())
        after, losses = op.skip_gram(self._table, words, contexts, speed, batch=batch_size)
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
