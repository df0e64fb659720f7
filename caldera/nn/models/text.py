"""Text models: classifiers of padded word sequences, and a small GPT that generates text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require, within
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.tensor import normal
from caldera.core.tensor.dtype import refuse_masked
from caldera.errors import ConfigError
from caldera.nn.attention import Embedding, PositionalEmbedding, TransformerBlock
from caldera.nn.basic import Dense, Input, check_counts, register
from caldera.nn.layer import Layer
from caldera.nn.noise import Dropout
from caldera.nn.normalisation import LayerNorm
from caldera.nn.pooling import MeanPooling
from caldera.nn.recurrent import LSTM


def lstm_classifier(
    vocabulary: int,
    length: int,
    classes: int,
    width: int = 64,
    units: int = 128,
    depth: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
) -> list[Layer]:
    """Build an embedding of `width`, `depth` LSTM layers of `units`, and a dense layer.

    Word 0 is padding and has no influence.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.lstm_classifier(vocabulary=1000, length=50, classes=2))
    163586
    """
    within("lstm_classifier", "depth", depth, 1, 10_000)
    layers: list[Layer] = [
        Input((length,), dtype="int64"),
        Embedding(vocabulary, width, mask_zero=True),
    ]
    for _ in range(depth - 1):
        layers.append(
            LSTM(units, return_sequences=True, bidirectional=bidirectional, return_mask=True)
        )
    layers.append(LSTM(units, bidirectional=bidirectional))
    if dropout:
        layers.append(Dropout(dropout))
    return [*layers, Dense(classes)]


def text_classifier(
    vocabulary: int, length: int, classes: int, width: int = 64, dropout: float = 0.3
) -> list[Layer]:
    """Return the mean of the words' vectors of `width`, and a dense layer: quick, and hard to beat
    on short texts. Word 0 is padding and has no influence.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.text_classifier(vocabulary=1000, length=50, classes=2))
    64130
    """
    return [
        Input((length,), dtype="int64"),
        Embedding(vocabulary, width, mask_zero=True),
        MeanPooling(),
        Dropout(dropout),
        Dense(classes),
    ]


MOST_WORDS = 1 << 30
MOST_READERS = 4
"""Numbers and lengths of texts whose plans and memory a model keeps."""


@register
@dataclass(eq=False)
class GPT(Layer):
    """Words (N, T), integers, to scores (N, T, vocabulary) for the word that follows each.

    T is at most `context`. Blocks are pre-norm, and the last product shares the table of words.
    Weights are initialised from a normal distribution of deviation 0.02, the last weights of a
    branch with less: as in GPT-2, whose pretrained weights need `activation="gelu_tanh"`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> cd.seed(0)
    >>> model = nn.models.GPT(vocabulary=10, context=8, width=16, depth=2, heads=2)
    >>> model(np.zeros((3, 5), "int64")).shape
    (3, 5, 10)
    >>> model.generate([1, 2, 3], count=4, seed=0).shape
    (7,)
    >>> model.generate([[1, 2, 3], [4, 5, 6]], count=20, temperature=0.0).shape
    (2, 23)
    """

    vocabulary: int
    context: int = 128
    width: int = 128
    depth: int = 4
    heads: int = 4
    dropout: float = 0.0
    activation: str = field(default="gelu", kw_only=True)

    def __post_init__(self) -> None:
        check_counts(
            "GPT",
            vocabulary=self.vocabulary,
            context=self.context,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
        )
        fill = normal(0.0, 0.02)
        # Each of the 2 depth branches adds to the same sum.
        output_fill = normal(0.0, 0.02 / math.sqrt(2 * self.depth))
        self.words = Embedding(self.vocabulary, self.width, fill=fill)
        self.positions = PositionalEmbedding(self.context)
        self.drop = Dropout(self.dropout)
        self.blocks = [
            TransformerBlock(
                self.heads,
                causal=True,
                dropout=self.dropout,
                activation=self.activation,
                fill=fill,
                output_fill=output_fill,
            )
            for _ in range(self.depth)
        ]
        self.norm = LayerNorm()
        self._readers: dict[tuple[Any, ...], Reader] = {}

    def forward(self, words: Expr) -> Expr:
        x = self.embedded(words)
        for block in self.blocks:
            x = block(x)
        return self.scores(x)

    def embedded(self, words: Expr) -> Expr:
        """Return the input of the first block."""
        return self.drop(self.positions(self.words(words)))

    def scores(self, x: Expr) -> Expr:
        """Return scores for the following words from the last block's output (N, T, width)."""
        return op.matmul(self.norm(x), self.words.weight, transpose_b=True)

    def generate(
        self,
        prompt: Sequence[int] | Sequence[Sequence[int]] | np.ndarray,
        count: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> np.ndarray:
        """Return the prompt and `count` more words, each drawn from the model's predictions.

        Several prompts with the same length, (N, T), are continued together. A `temperature` below
        1 prefers likely words; 0 always takes the likeliest. The same seed writes the same text.
        The model reads the last `context` words. While the text is no longer than that, keys and
        values of earlier words are cached, and a new word costs the work for a single word.
        Afterwards it costs the work for `context` words.
        """
        text, here = self._checked(prompt), f"{self.path}.generate"
        count = within(here, "count", count, 0, MOST_WORDS)
        seed = within(here, "seed", seed, 0, 2**63 - 1)
        require(
            isinstance(temperature, Real) and temperature >= 0,
            here,
            "temperature >= 0",
            temperature,
        )
        lines, given = text.reshape(-1, text.shape[-1]), text.shape[-1]
        text = np.concatenate([lines, np.zeros((len(lines), count), np.int64)], axis=1)
        reader = self._reader(len(lines), min(given + count, self.context))
        generator = np.random.default_rng(seed)
        for end in range(given, given + count):
            scores = reader.read(text[:, :end], is_new=end == given).astype(np.float64)
            text[:, end] = [_drawn(each, temperature, generator) for each in scores]
        return text if np.ndim(prompt) == 2 else text[0]

    def _checked(self, prompt: Any) -> np.ndarray:
        expected = f"words from 0 to {self.vocabulary - 1}"
        refuse_masked(prompt, f"{self.path}.generate")
        try:
            text = np.asarray(prompt)
        except ValueError:
            text = np.zeros(0)
            expected += ", the same number in each prompt"
        is_text = text.size and text.ndim in (1, 2) and text.dtype.kind in "iu"
        if not is_text or text.min() < 0 or text.max() >= self.vocabulary:
            raise ConfigError.build(
                f"{self.path}.generate", expected=expected, got=f"{prompt}"[:100]
            )
        return text.astype(np.int64)

    def _reader(self, count: int, length: int) -> Reader:
        if not self.built:
            self(op.input("words", (1, self.context), dtype="int64"))
        device = self.parameters()[0].symbol.value.device
        # Few lengths, so that few plans are made.
        key = (device, count, min(2 ** (length - 1).bit_length(), self.context))
        if key not in self._readers:
            while len(self._readers) >= MOST_READERS:
                del self._readers[next(iter(self._readers))]
            self._readers[key] = Reader(self, *key)
        return self._readers[key]


def _drawn(scores: np.ndarray, temperature: float, generator: np.random.Generator) -> int:
    if temperature == 0:
        return int(scores.argmax())
    weights = np.exp((scores - scores.max()) / temperature)
    return int(generator.choice(len(scores), p=weights / weights.sum()))


class Reader:
    """Prediction of the next words of texts, with cached keys and values.

    The cache has capacity for `length` words. One plan serves every new word. Further plans serve
    beginnings of texts, by their length. Once a text has more than `context` words, one plan serves
    the last `context` words: all positions then change with each word, and the cache is useless.
    """

    def __init__(self, model: GPT, device: Any, count: int, length: int) -> None:
        self._model = model
        self._count, self._length = count, length
        self._plans: dict[str | int, Plan] = {}
        dtype = model.words.weight.dtype
        self._kept = [
            tuple(
                op.var(f"{what}{i}", (count, length, model.width), dtype=dtype, device=device)
                for what in ("keys", "values")
            )
            for i in range(model.depth)
        ]

    def read(self, text: np.ndarray, is_new: bool) -> np.ndarray:
        """Return the scores (N, vocabulary) after texts (N, T), new or longer by a word."""
        end = text.shape[1]
        if end > self._model.context:
            return self._scores("last", text[:, -self._model.context :])
        if not is_new:
            return self._scores("next", text[:, -1:], end - 1)
        padded = min(2 ** (end - 1).bit_length(), self._length)
        words = np.zeros((self._count, padded), np.int64)
        words[:, :end] = text
        return self._scores(padded, words, end - 1)

    def _scores(self, which: str | int, words: np.ndarray, position: int = 0) -> np.ndarray:
        if which not in self._plans:
            given = op.input("words", words.shape, dtype="int64")
            at = op.input("position", (1,), dtype="int64")
            make = {"last": self._last, "next": self._next}.get(str(which), self._first)
            self._plans[which] = compile(make(given, at), remember=False)
        feeds = {"words": words, "position": np.array([position])}
        if which == "last":
            del feeds["position"]
        found: np.ndarray = self._plans[which].run(feeds)[0].numpy()
        return found[:, 0]

    def _first(self, words: Expr, position: Expr) -> list[Expr]:
        x = self._model.embedded(words)
        kept: list[Expr] = []
        spare = ((0, 0), (0, self._length - words.shape[1]), (0, 0))
        is_read = op.less_equal(op.arange(words.shape[1]), position)[:, None]
        for block, variables in zip(self._model.blocks, self._kept, strict=True):
            x, *new = block.remembered(x)
            kept += [
                op.assign(old, op.pad(op.where(is_read, own, 0.0), spare))
                for old, own in zip(variables, new, strict=True)
            ]
        # Words after the last one have no influence on it, so one plan serves many lengths.
        return [self._model.scores(op.gather(x, position, axis=1)), *kept]

    def _next(self, words: Expr, position: Expr) -> list[Expr]:
        model = self._model
        x = model.words(words) + op.embedding(model.positions.weight, position)
        for block, (keys, values) in zip(model.blocks, self._kept, strict=True):
            x, _, _ = block.continued(x, keys, values, position)
        return [model.scores(x)]

    def _last(self, words: Expr, position: Expr) -> list[Expr]:
        return [self._model(words)[:, -1:]]


def gpt(vocabulary: int, context: int = 128, **settings: Any) -> list[Layer]:
    """Return a small GPT for sequences of `context` words; see `nn.models.GPT` for the settings.

    `layers[-1].generate(...)` writes text.

    >>> from caldera import nn
    >>> nn.count_parameters(nn.models.gpt(65, context=64, width=128, depth=4))
    809856
    """
    return [Input((context,), dtype="int64"), GPT(vocabulary, context, **settings)]
