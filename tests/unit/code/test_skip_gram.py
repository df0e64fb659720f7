"""`nn.SkipGram`: words that stand together get vectors that are alike; bad input is named."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import CalderaError

_ZEROS = np.zeros((2, 3, 4))


def _two_topics(count: int = 6000) -> np.ndarray:
    """Pairs of words of which 0 to 4 stand with each other, and 5 to 9 do."""
    random = np.random.default_rng(0)
    topics = random.integers(0, 2, count)[:, None] * 5
    return random.integers(0, 5, (count, 2)) + topics


def _model(width: int = 16) -> nn.SkipGram:
    return nn.SkipGram(np.full(10, 600), width, negatives=4, sample=0, seed=3)


def test_words_of_a_topic_are_alike() -> None:
    model = _model()
    losses = model.fit(_two_topics(), epochs=6, rate=0.1)
    directions = model.vectors / np.linalg.norm(model.vectors, axis=1, keepdims=True)
    alike = directions @ directions.T
    same = np.kron(np.eye(2, dtype=bool), np.ones((5, 5), bool))
    assert alike[same].min() > alike[~same].max()
    assert losses[-1] < 0.9 * losses[0]


def test_the_same_seed_gives_the_same_vectors_on_any_number_of_threads() -> None:
    found = []
    for threads in (1, 2, 3):
        with cd.settings.override(threads=threads):
            # So wide that columns are shared out, and no whole number of vectors.
            model = _model(width=155)
            model.fit(_two_topics(10_100), epochs=2, batch_size=500)
            found.append(model.vectors)
    assert found[0].shape == (10, 155)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_pairs_are_given_to_plans_of_few_sizes() -> None:
    """Each size has a plan, which takes longer to make than a small one to run."""
    model = _model()
    sizes = [len(words) for words, _, _ in model._parts(_two_topics(99_999).astype(np.int32), 100)]
    assert sum(sizes) == 99_999
    assert len(sizes) < 20
    assert all(size % 100 == 0 for size in sizes[:-1])


def test_frequent_words_are_left_out_of_some_pairs() -> None:
    pairs = np.zeros((20_000, 2), np.int64)
    kept = nn.SkipGram([10_000, 10], width=4, sample=1e-3)
    number = sum(len(words) for words, _, _ in kept._parts(pairs.astype(np.int32), 64))
    share = (np.sqrt(1e-3) + 1e-3) ** 2
    assert abs(number - 20_000 * share) < 5 * np.sqrt(20_000 * share)


def test_only_rows_that_are_named_change() -> None:
    start = np.random.default_rng(0).normal(size=(2, 50, 24)).astype(np.float32)
    after, _ = op.skip_gram(start, [3, 4], [[5, 6], [7, 8]], rate=0.1)
    changed = np.argwhere((after.numpy() != start).any(axis=2)).tolist()
    assert changed == [[0, 3], [0, 4], [1, 5], [1, 6], [1, 7], [1, 8]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: nn.SkipGram([]), "one a word"),
        (lambda: nn.SkipGram([0, 0]), "counts of 0"),
        (lambda: nn.SkipGram([np.inf, 1]), "counts of inf"),
        (lambda: nn.SkipGram([1, 2], width=0), "width= an integer"),
        (lambda: nn.SkipGram([1, 2], sample=-1), "sample="),
        (lambda: _model().fit([0, 1]), r"shape \(pairs, 2\)"),
        (lambda: _model().fit([[0.5, 1.0]]), "integers"),
        (lambda: _model().fit([[0, 10]]), "words from 0 to 9"),
        (lambda: _model().fit(_two_topics(), rate=1e30), "lower rate="),
        (lambda: op.skip_gram(_ZEROS, [0], [[3]], 0.1)[0].eval(), "-3 to 2"),
        (lambda: op.skip_gram(np.zeros((3, 4)), [0], [[1]], 0.1), r"\(2, words, width\)"),
        (lambda: op.skip_gram(_ZEROS, [0, 1], [[1]], 0.1), r"\(pairs, 1 \+ negatives\)"),
        (lambda: op.skip_gram(_ZEROS, [0.0], [[1]], 0.1), "integers"),
        (lambda: op.skip_gram(_ZEROS, [0], [[1]], 0.1, batch=0), "batch="),
    ],
)
def test_bad_input_is_named(call: object, said: str) -> None:
    with pytest.raises(CalderaError, match=said):
        call()


def test_public_names_load_it_on_first_use() -> None:
    code = (
        "import sys, caldera as cd; "
        "print('caldera.code' in sys.modules, cd.nn.SkipGram.__name__, cd.op.skip_gram.__name__, "
        "hasattr(cd.nn, 'nothing'))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.split() == ["False", "SkipGram", "skip_gram", "False"]
