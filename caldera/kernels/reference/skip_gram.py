"""Skip-gram with negative sampling in NumPy."""

from __future__ import annotations

import numpy as np

from caldera.kernels.reference.indexing import check_range
from caldera.kernels.reference.registry import reference


@reference("skip_gram")
def _skip_gram(
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
        losses[part] = _step(after, words[part], contexts[part], speed)
    return after.astype(vectors.dtype), losses.astype(vectors.dtype)


def _step(
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
