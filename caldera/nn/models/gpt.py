"""A small GPT: a transformer that predicts the next word (or letter), and writes text with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.errors import ConfigError
from caldera.lazy import Expr, compile
from caldera.nn.attention import Embedding, PositionalEmbedding, TransformerBlock
from caldera.nn.basic import Dropout, Input, check_counts, register
from caldera.nn.layer import Layer
from caldera.nn.normalisation import LayerNorm
from caldera.plan.plan import Plan
from caldera.tensor import normal


@register
@dataclass(eq=False)
class GPT(Layer):
    """Words (N, T), whole numbers, to scores (N, T, vocabulary) for the word that follows each.

    T is at most `context`. Blocks are pre-norm, the last product shares the table of words, weights
    begin with normal numbers of deviation 0.02, those that end a branch with less: as in GPT-2.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> cd.seed(0)
    >>> model = nn.models.GPT(vocabulary=10, context=8, width=16, depth=2, heads=2)
    >>> model(np.zeros((3, 5), "int64")).shape
    (3, 5, 10)
    >>> model.generate([1, 2, 3], count=4, seed=0).shape
    (7,)
    """

    vocabulary: int
    context: int = 128
    width: int = 128
    depth: int = 4
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_counts(
            "GPT", vocabulary=self.vocabulary, context=self.context, width=self.width,
            depth=self.depth, heads=self.heads,
        )  # fmt: skip
        fill = normal(0.0, 0.02)
        # Each of the 2 depth branches adds to the same sum.
        output_fill = normal(0.0, 0.02 / math.sqrt(2 * self.depth))
        self.words = Embedding(self.vocabulary, self.width, fill=fill)
        self.positions = PositionalEmbedding(self.context)
        self.drop = Dropout(self.dropout)
        self.blocks = [
            TransformerBlock(
                self.heads, causal=True, dropout=self.dropout, fill=fill, output_fill=output_fill
            )
            for _ in range(self.depth)
        ]
        self.norm = LayerNorm()
        self._plan: Plan | None = None

    def forward(self, words: Expr) -> Expr:
        x = self.drop(self.positions(self.words(words)))
        for block in self.blocks:
            x = block(x)
        return op.matmul(self.norm(x), self.words.weight, transpose_b=True)

    def generate(
        self, prompt: Sequence[int], count: int, *, temperature: float = 1.0, seed: int = 0
    ) -> np.ndarray:
        """The prompt and `count` more words, each drawn from the model's own predictions.

        A `temperature` below 1 prefers likely words; 0 always takes the likeliest. The same seed
        writes the same text. The model sees the last `context` words.
        """
        text = [int(word) for word in prompt]
        if not text or not all(0 <= word < self.vocabulary for word in text):
            raise ConfigError.build(
                f"{self.path}.generate", expected=f"words from 0 to {self.vocabulary - 1}",
                got=f"{text}"[:100],
            )  # fmt: skip
        if temperature < 0:
            raise ConfigError.build(
                f"{self.path}.generate", expected="temperature >= 0", got=f"{temperature}"
            )
        generator = np.random.default_rng(seed)
        for _ in range(count):
            text.append(self._next(text[-self.context :], temperature, generator))
        return np.array(text)

    def _next(self, seen: list[int], temperature: float, generator: np.random.Generator) -> int:
        if self._plan is None:
            self._plan = compile(self(op.input("words", (1, self.context), dtype="int64")))
        # What stands after the last word has no influence on it, so one plan serves all lengths.
        words = np.zeros((1, self.context), np.int64)
        words[0, : len(seen)] = seen
        scores = self._plan.run({"words": words})[0].numpy()[0, len(seen) - 1].astype(np.float64)
        if temperature == 0:
            return int(scores.argmax())
        weights = np.exp((scores - scores.max()) / temperature)
        return int(generator.choice(self.vocabulary, p=weights / weights.sum()))


def gpt(vocabulary: int, context: int = 128, **settings: Any) -> list[Layer]:
    """A small GPT for sequences of `context` words; see `nn.models.GPT` for the settings.

    `layers[-1].generate(...)` writes text.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.gpt(65, context=64, width=128, depth=4))
    809856
    """
    return [Input((context,), dtype="int64"), GPT(vocabulary, context, **settings)]
