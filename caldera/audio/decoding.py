"""From frames to labels: the best at each frame, or the best prefixes with a word n-gram model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.core.tensor.dtype import real_array_of
from caldera.errors import DataError, ShapeError

MOST_WORDS = 100
_NEVER = -math.inf


class NGram:
    """Word n-gram model for the next word, with Witten-Bell interpolation.

    >>> from caldera import audio
    >>> model = audio.NGram(["the cat sat", "the cat ran", "a dog ran"], order=2)
    >>> model.score(["the"], "cat") > model.score(["the"], "dog")
    True
    """

    def __init__(self, texts: Iterable[str], order: int = 3) -> None:
        require(
            1 <= order <= MOST_WORDS,
            "NGram",
            f"an order of at least 1, at most {MOST_WORDS}",
            order,
        )
        self.order = order
        self._counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            require(
                isinstance(text, str), "NGram", "texts", f"a {type(text).__name__}", error=DataError
            )
            words = ["<s>"] * (order - 1) + text.split() + ["</s>"]
            for place in range(order - 1, len(words)):
                for size in range(order):
                    self._counts[tuple(words[place - size : place])][words[place]] += 1
        # One more, for all words that were never seen.
        self.words = len(self._counts[()]) + 1

    def score(self, before: Sequence[str], word: str) -> float:
        """Return the logarithm of the probability that `word` follows these words of a sentence."""
        full = [*["<s>"] * (self.order - 1), *before]
        chance = 1.0 / self.words
        for size in range(self.order):
            seen = self._counts.get(tuple(full[len(full) - size :]))
            if seen is None:
                break
            total, kinds = seen.total(), len(seen)
            chance = (seen[word] + kinds * chance) / (total + kinds)
        return math.log(chance)

    def sentence(self, text: str) -> float:
        """Return the logarithm of the probability of a whole sentence, its end included."""
        words = [*text.split(), "</s>"]
        return sum(self.score(words[:i], word) for i, word in enumerate(words))


def greedy(logits: Any, blank: int = 0, *, lengths: Any = None) -> list[list[int]]:
    """Return the most likely class of each frame, without blanks and repetitions.

    `logits` is (N, frames, classes). `lengths` contains the number of valid frames of each sample;
    by default all are valid.

    >>> import numpy as np
    >>> from caldera import audio
    >>> audio.greedy(np.eye(3)[[[1, 1, 0, 1, 2, 0]]])
    [[1, 1, 2]]
    """
    best = [each.argmax(-1) for each in _counted(_frames(logits, "greedy"), lengths, "greedy")]
    return [[int(each) for each, _ in groupby(row) if each != blank] for row in best]


def beam_search(
    logits: Any,
    alphabet: Sequence[str],
    *,
    width: int = 16,
    blank: int = 0,
    language: NGram | None = None,
    weight: float = 0.5,
    bonus: float = 0.5,
    lengths: Any = None,
) -> list[str]:
    """Return the most likely text of each sample by prefix beam search.

    `logits` is (N, frames, classes). The probabilities of all alignments of a prefix are summed,
    and the `width` best prefixes are kept at each frame. `alphabet` contains the text of each
    class, with any text for the blank. With a `language` model, each whole word (up to a space)
    adds `weight` times its logarithm, and `bonus` for being a word. `lengths` contains the number
    of valid frames of each sample.

    >>> import numpy as np
    >>> from caldera import audio
    >>> frames = np.log([[[0.4, 0.6], [0.6, 0.4]]])     # "a" is likely: three ways of four
    >>> audio.beam_search(frames, ["", "a"])
    ['a']
    """
    found = _frames(logits, "beam_search")
    require(
        found.shape[-1] == len(alphabet),
        "audio.beam_search",
        f"an alphabet of {found.shape[-1]}, one for each class",
        f"{len(alphabet)}",
        error=ShapeError,
    )
    require(width >= 1, "audio.beam_search", "width >= 1", width)
    below = found - found.max(-1, keepdims=True)
    logarithms = below - np.log(np.exp(below).sum(-1, keepdims=True))
    language_score = _Language(language, weight, bonus)
    return [
        _best_text(each, alphabet, width, blank, language_score)
        for each in _counted(logarithms, lengths, "beam_search")
    ]


class _Language:
    """Cached scores of a language model for prefixes."""

    def __init__(self, model: NGram | None, weight: float, bonus: float) -> None:
        self.model, self.weight, self.bonus = model, weight, bonus
        self._known: dict[str, float] = {}

    def of(self, text: str) -> float:
        """Return the score of all whole words of a text, which end with a space."""
        if self.model is None or " " not in text:
            return 0.0
        whole = text[: text.rindex(" ")]
        if whole not in self._known:
            *before, last = whole.split() or [""]
            earlier = self.of(whole[: len(whole) - len(last)]) if before else 0.0
            own = self.weight * self.model.score(before, last) + self.bonus if last else 0.0
            self._known[whole] = earlier + own
        return self._known[whole]


def _best_text(
    frames: np.ndarray, alphabet: Sequence[str], width: int, blank: int, language: _Language
) -> str:
    # For each prefix: the log-probability of all ways that end in a blank, and in its last letter.
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, _NEVER)}
    texts: dict[tuple[int, ...], str] = {(): ""}
    for frame in frames:
        likely = np.argsort(-frame)[: max(width, 2)]
        new: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [_NEVER, _NEVER])
        for prefix, (in_blank, in_letter) in beams.items():
            either = _add(in_blank, in_letter)
            for label in map(int, likely):
                here = float(frame[label])
                if label == blank:
                    new[prefix][0] = _add(new[prefix][0], either + here)
                    continue
                longer = (*prefix, label)
                texts.setdefault(longer, texts[prefix] + alphabet[label])
                if prefix and prefix[-1] == label:
                    new[prefix][1] = _add(new[prefix][1], in_letter + here)
                    new[longer][1] = _add(new[longer][1], in_blank + here)
                else:
                    new[longer][1] = _add(new[longer][1], either + here)
        ranked = sorted(
            new.items(), key=lambda each: -(_add(*each[1]) + language.of(texts[each[0]]))
        )
        beams = {prefix: (pair[0], pair[1]) for prefix, pair in ranked[:width]}
    # The last word ends with the sound.
    best = max(beams, key=lambda each: _add(*beams[each]) + language.of(texts[each] + " "))
    return texts[best]


def _add(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    if a < b:
        a, b = b, a
    return a if b == _NEVER else a + math.log1p(math.exp(b - a))


def _frames(logits: Any, name: str) -> np.ndarray:
    found = real_array_of(logits, "audio decoding").astype(np.float64)
    if found.ndim == 2:
        found = found[None]
    require(
        found.ndim == 3,
        f"audio.{name}",
        "logits (N, frames, classes) or (frames, classes)",
        f"shape {found.shape}",
        error=ShapeError,
    )
    return found


def _counted(frames: np.ndarray, lengths: Any, name: str) -> list[np.ndarray]:
    """Return the frames of each sample that count."""
    if lengths is None:
        return list(frames)
    counts = real_array_of(lengths, f"audio.{name}")
    samples, most, _ = frames.shape
    are_counts = counts.shape == (samples,) and counts.dtype.kind in "iu"
    if not are_counts or not 0 <= counts.min(initial=0) <= counts.max(initial=0) <= most:
        kind = f"{counts.dtype} of shape {counts.shape}"
        raise DataError.build(
            f"audio.{name}",
            expected=f"lengths, {samples} integers from 0 to {most}",
            got=f"{counts.min()} to {counts.max()}" if are_counts else kind,
        )
    return [each[:count] for each, count in zip(frames, counts, strict=True)]
