"""Cases for skip-gram with negative sampling."""

from __future__ import annotations

import numpy as np

from caldera import op
from tests.unit.ops.case import Case, numbers

_WORDS = np.array([0, 3, 0, -1, 2])
# Contexts that repeat, that are the pair's own again, and that count from the end.
_CONTEXTS = np.array([[1, 2, 2], [0, 0, 4], [3, -1, 1], [2, 4, 2], [1, 3, -5]])


def _by_loops(vectors: np.ndarray, batch: int, rate: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    after, losses = vectors.copy(), np.zeros(len(_WORDS))
    for first in range(0, len(_WORDS), batch):
        before = after.copy()
        for pair in range(first, min(first + batch, len(_WORDS))):
            word, own = _WORDS[pair], _CONTEXTS[pair, 0]
            for number, context in enumerate(_CONTEXTS[pair]):
                if number and context == own:
                    continue
                wrong = (before[0, word] @ before[1, context]) * (1 if number else -1)
                losses[pair] += np.logaddexp(0, wrong)
                slope = rate / (1 + np.exp(-wrong)) * (-1 if number else 1)
                after[0, word] += slope * before[1, context]
                after[1, context] += slope * before[0, word]
    return after, losses


CASES = [
    Case(
        "skip_gram",
        lambda v, b=batch, w=which: op.skip_gram(v, _WORDS, _CONTEXTS, 0.3, b)[w],
        (numbers(2, 5, width),),
        lambda v, b=batch, w=which: _by_loops(v, b)[w],
        name=name,
        # Longer vectors are for the kernel's lanes; derivatives of hundreds of numbers take long.
        differentiable=width < 10,
    )
    for width, batch in ((3, 8), (37, 2))
    for which, name in enumerate((f"vectors, {batch} at once", f"losses, {batch} at once"))
]
