"""Attention: embedding tables, positions, heads, transformer blocks. Sequences are (N, T, C).

A mask marks the real steps: truth values (N, S) for the keys of each sample, (N, T, S) for each
query, or (N, heads, T, S). A nan or infinite value at a masked key is read as 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor import glorot_uniform, is_integer, normal, uniform
from caldera.nn.basic import Dense, check_counts, register, samples_of
from caldera.nn.few_bits import matrix
from caldera.nn.initialisers import fill_or
from caldera.nn.layer import Layer
from caldera.nn.noise import Dropout
from caldera.nn.normalisation import LayerNorm


@register
@dataclass(eq=False)
class Embedding(Layer):
    """Embedding of `count` words: a vector of `width` numbers for each, selected by index.

    With `mask_zero`, the result is (vectors, mask), which a recurrent layer accepts as its two
    inputs.

    Args:
        count: Number of words.
        width: Number of elements of each vector.
        mask_zero: True if word 0 is padding.
        fill: Initial vectors; by default uniform within 0.05.

    >>> from caldera import nn, op
    >>> nn.Embedding(100, 16)(op.input("words", (5, 10), dtype="int64")).shape
    (5, 10, 16)
    """

    count: int
    width: int
    mask_zero: bool = False
    fill: Any = None

    def __post_init__(self) -> None:
        check_counts("Embedding", count=self.count, width=self.width)

    def build(self, words: Expr) -> None:
        shape = (self.count, self.width)
        fill = fill_or(self.fill, uniform(-0.05, 0.05))
        self.weight = matrix(self, "weight", shape, fill, inputs=1)

    def forward(self, words: Expr) -> Any:
        self.require(
            is_integer(words.dtype),
            "integers",
            f"{words.dtype.name} of shape {words.shape}",
            "give the network nn.Input(shape, dtype='int64')",
        )
        vectors = op.embedding(self.weight, words)
        return (vectors, words != 0) if self.mask_zero else vectors


@register
@dataclass(eq=False)
class PositionalEmbedding(Layer):
    """x plus a learned vector for each position, for at most `length` positions.

    The vectors are initialised from a normal distribution of deviation 0.02 unless `fill` is given.

    >>> from caldera import nn, op
    >>> nn.PositionalEmbedding(128)(op.input("x", (5, 10, 16))).shape
    (5, 10, 16)
    """

    length: int
    fill: Any = None

    def __post_init__(self) -> None:
        check_counts("PositionalEmbedding", length=self.length)

    def build(self, x: Expr) -> None:
        samples_of(self, x)
        shape = (self.length, x.shape[-1])
        self.weight = self.parameter("weight", shape, fill_or(self.fill, normal(0.0, 0.02)))

    def forward(self, x: Expr) -> Expr:
        self.require(
            x.ndim == 3 and x.shape[1] <= self.length,
            f"sequences (N, T, C) of at most {self.length} steps",
            f"{x.shape}",
        )
        return x + self.weight[: x.shape[1]]


def _readable(x: Expr, mask: Expr | None) -> Expr:
    """A sequence without nan and infinity behind a mask of its steps: 0 * nan would be nan."""
    if mask is None or mask.shape != x.shape[:2]:
        return x
    return op.where(op.logical_or(op.unsqueeze(mask, 2), op.isfinite(x)), x, 0.0)


@register
@dataclass(eq=False)
class MultiHeadAttention(Layer):
    """Multi-head attention of each step to all steps of the sequence (or of `memory`).

    `layer(x)` is self-attention. `layer(x, memory)` attends to another sequence, which may have
    another width: its keys and values are computed from `memory`. Both accept a `mask` (see above).

    Args:
        heads: Number of heads, which divides the width of the sequence.
        causal: True if a step attends only to itself and to earlier steps.
        bias: True for trainable biases.
        fill: Initial weights; by default Glorot's uniform ones.
        output_fill: Initial weights of the last product.
        key_heads: Number of heads of keys and values, a divisor of `heads`: several query heads
            share them (grouped queries; one is multi-query attention).

    >>> from caldera import nn, op
    >>> layer = nn.MultiHeadAttention(4, causal=True)
    >>> layer(op.input("x", (5, 10, 16))).shape
    (5, 10, 16)
    >>> [p.shape for p in layer.parameters()]
    [(16, 48), (48,), (16, 16), (16,)]
    >>> across = nn.MultiHeadAttention(4, key_heads=2)
    >>> across(op.input("x", (5, 10, 16)), op.input("memory", (5, 7, 24))).shape
    (5, 10, 16)
    """

    heads: int
    causal: bool = False
    bias: bool = True
    fill: Any = None
    output_fill: Any = None
    key_heads: int | None = None

    def __post_init__(self) -> None:
        groups = self.heads if self.key_heads is None else self.key_heads
        check_counts("MultiHeadAttention", heads=self.heads, key_heads=groups)
        expected = f"key_heads= a divisor of {self.heads} heads"
        require(not self.heads % groups, "MultiHeadAttention", expected, self.key_heads)

    def build(self, x: Expr, memory: Expr | None = None, *rest: Any) -> None:
        self.require(
            x.ndim == 3 and not x.shape[-1] % self.heads,
            f"sequences (N, T, C) with a width that {self.heads} heads divide",
            f"{x.shape}",
        )
        width = x.shape[-1]
        # Queries, keys and values side by side: one product for the three, and Glorot's rule for
        # each of the three square matrices.
        shared = 2 * (width // self.heads) * (self.key_heads or self.heads)
        fill = fill_or(self.fill, uniform(-math.sqrt(3.0 / width), math.sqrt(3.0 / width)))
        other = width if memory is None or memory.ndim != 3 else memory.shape[2]
        self.memory_weight = None
        if other == width:
            self.weight = matrix(self, "input_weight", (width, width + shared), fill, inputs=0)
        else:
            self.weight = matrix(self, "input_weight", (width, width), fill, inputs=0)
            limit = math.sqrt(6.0 / (other + width))
            fill = fill_or(self.fill, uniform(-limit, limit))
            self.memory_weight = matrix(self, "memory_weight", (other, shared), fill, inputs=0)
        self.offset = self.parameter("input_bias", (width + shared,)) if self.bias else None
        fill = fill_or(self.output_fill, glorot_uniform())
        self.output_weight = matrix(self, "output_weight", (width, width), fill, inputs=0)
        self.output_offset = self.parameter("output_bias", (width,)) if self.bias else None

    def forward(self, x: Expr, memory: Expr | None = None, mask: Expr | None = None) -> Expr:
        width = self.weight.shape[0]
        other = width if self.memory_weight is None else self.memory_weight.shape[0]
        for each, wide in ((x, width), (memory, other)):
            if each is not None and (each.ndim != 3 or each.shape[-1] != wide):
                raise self.refuse(f"sequences (N, T, {wide})", f"shape {each.shape}")
        self.require(
            memory is not None or self.memory_weight is None,
            f"a memory (N, S, {other}), as when it was built",
            "none",
        )
        if memory is None:
            x = _readable(x, mask)
            q, k, v = self._products(x)
        else:
            q = self._product(x, self.weight[:, :width], 0, width)
            weight = self.memory_weight
            weight = self.weight[:, width:] if weight is None else weight
            end = width + weight.shape[1]
            of_memory = self._product(_readable(memory, mask), weight, width, end)
            k, v = op.split(of_memory, 2, axis=2)
        return self._attended(q, k, v, None if mask is None else self._for_heads(mask, x, k))

    def remembered(self, x: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the result of self-attention, and the keys and values of all steps, (N, T, C)."""
        q, k, v = self._products(x)
        return self._attended(q, k, v, None), k, v

    def continued(
        self, x: Expr, keys: Variable, values: Variable, position: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Compute the result for one step x (N, 1, C) that follows `position` others.

        The keys and values of earlier steps are in variables (N, L, C), with zeros from `position`
        on; those for this step are added in place.
        """
        q, *new = self._products(x)
        steps = op.arange(keys.shape[1])
        k, v = (
            op.assign(old, op.scatter_add(old, position, own, axis=1))
            for own, old in zip(new, (keys, values), strict=True)
        )
        # A single query is multiplied with the keys in their stored layout; tiles would first have
        # to be copied.
        scale = 1 / math.sqrt(x.shape[-1] // self.heads)
        scores = op.matmul(self._in_heads(q) * scale, self._in_heads(k), transpose_b=True)
        shares = op.softmax(op.where(op.less_equal(steps, position), scores, -math.inf))
        mixed = op.matmul(shares, self._in_heads(v))
        return self._joined(mixed), k, v

    def _products(self, x: Expr) -> tuple[Expr, ...]:
        width, whole = self.weight.shape
        sizes = [width, (whole - width) // 2, (whole - width) // 2]
        return tuple(op.split(op.linear(x, self.weight, self.offset), sizes, axis=2))

    def _attended(self, q: Expr, k: Expr, v: Expr, mask: Expr | None) -> Expr:
        q, k, v = self._in_heads(q), self._in_heads(k), self._in_heads(v)
        return self._joined(op.scaled_dot_product_attention(q, k, v, mask=mask, causal=self.causal))

    def _joined(self, mixed: Expr) -> Expr:
        """Join heads, (N, heads, T, C / heads) to (N, T, C), and apply the output product."""
        count, heads, steps, width = mixed.shape
        joined = op.reshape(op.transpose(mixed, (0, 2, 1, 3)), (count, steps, heads * width))
        return op.linear(joined, self.output_weight, self.output_offset)

    def _product(self, x: Expr, weight: Expr, begin: int, end: int) -> Expr:
        offset = None if self.offset is None else self.offset[begin:end]
        return op.linear(x, weight, offset)

    def _in_heads(self, x: Expr) -> Expr:
        """(N, T, C) as (N, heads, T, C / heads); shared heads of keys are repeated."""
        count, steps, width = x.shape
        each = self.weight.shape[0] // self.heads
        parts = op.transpose(op.reshape(x, (count, steps, width // each, each)), (0, 2, 1, 3))
        groups = self.heads * each // width
        return parts if groups == 1 else op.repeat(parts, groups, axis=1)

    def _for_heads(self, mask: Expr, x: Expr, keys: Expr) -> Expr:
        count, queries = x.shape[:2]
        shape = (count, queries, keys.shape[1])
        if mask.shape == (count, keys.shape[1]):
            return op.unsqueeze(mask, (1, 2))
        if mask.shape == shape:
            return op.unsqueeze(mask, 1)
        self.require(
            mask.ndim == 4,
            f"a mask of shape ({count}, {shape[2]}), {shape} or {(count, self.heads, *shape[1:])}",
            f"{mask.shape}",
            "keys and values come from memory: layer(x, memory, mask=mask)",
        )
        return mask


@register
@dataclass(eq=False)
class TransformerBlock(Layer):
    """Attention, then two dense layers, each on the normalised input and added to it (pre-norm).

    Args:
        heads: Number of heads of the attention.
        causal: True if a step attends only to itself and to earlier steps.
        ratio: Width of the hidden layer, in widths of x.
        dropout: Rate of the dropout on both branches before they are added.
        fill: Initial weights; by default Glorot's uniform ones.
        output_fill: Initial weights of the last product of each branch.
        return_mask: True to return (y, mask) where a mask is passed.
        activation: Name of the activation of the hidden layer.

    >>> from caldera import nn, op
    >>> block = nn.TransformerBlock(4, causal=True)
    >>> block(op.input("x", (5, 10, 16))).shape
    (5, 10, 16)
    >>> sum(p.size for p in block.parameters())
    3280
    """

    heads: int
    causal: bool = False
    ratio: float = 4.0
    dropout: float = 0.0
    activation: str = field(default="gelu", kw_only=True)
    fill: Any = None
    output_fill: Any = None
    return_mask: bool = False

    def __post_init__(self) -> None:
        require(0 < self.ratio < math.inf, "TransformerBlock", "ratio > 0", self.ratio)
        self.norm1 = LayerNorm()
        self.attention = MultiHeadAttention(
            self.heads, causal=self.causal, fill=self.fill, output_fill=self.output_fill
        )
        self.norm2 = LayerNorm()
        self.drop1 = Dropout(self.dropout)
        self.drop2 = Dropout(self.dropout)

    def build(self, x: Expr, *rest: Any) -> None:
        samples_of(self, x)
        width = x.shape[-1]
        self.hidden = Dense(
            max(1, round(self.ratio * width)), activation=self.activation, fill=self.fill
        )
        self.output = Dense(width, fill=self.output_fill)

    def forward(self, x: Expr, mask: Expr | None = None) -> Any:
        x = _readable(x, mask)
        y = self._rest(x, self.attention(self.norm1(x), mask=mask))
        return (y, mask) if self.return_mask and mask is not None else y

    def remembered(self, x: Expr) -> tuple[Expr, Expr, Expr]:
        """Return the result, and the keys and values of all steps; see `MultiHeadAttention`."""
        attended, keys, values = self.attention.remembered(self.norm1(x))
        return self._rest(x, attended), keys, values

    def continued(
        self, x: Expr, keys: Variable, values: Variable, position: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Return the result for one step after others that are remembered.

        See `MultiHeadAttention`.
        """
        attended, k, v = self.attention.continued(self.norm1(x), keys, values, position)
        return self._rest(x, attended), k, v

    def _rest(self, x: Expr, attended: Expr) -> Expr:
        x = x + self.drop1(attended)
        return x + self.drop2(self.output(self.hidden(self.norm2(x))))


@register
@dataclass(eq=False)
class TransformerDecoderBlock(TransformerBlock):
    """`nn.TransformerBlock` that attends to a memory as well, before its dense layers (pre-norm).

    It is called with a sequence and a memory of the same width, then a mask of the sequence and one
    of the memory if there are any. The sequence is attended to causally unless `causal` is False.

    >>> from caldera import nn, op
    >>> block = nn.TransformerDecoderBlock(4)
    >>> block(op.input("x", (5, 10, 16)), op.input("memory", (5, 7, 16))).shape
    (5, 10, 16)
    """

    causal: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.norm3 = LayerNorm()
        self.cross = MultiHeadAttention(self.heads, fill=self.fill, output_fill=self.output_fill)
        self.drop3 = Dropout(self.dropout)

    def forward(  # type: ignore[override]
        self,
        x: Expr,
        memory: Expr | None = None,
        mask: Expr | None = None,
        memory_mask: Expr | None = None,
    ) -> Any:
        if memory is None:
            raise self.refuse("a sequence and a memory", "only a sequence")
        x = x + self.drop3(self.attention(self.norm1(x), mask=mask))
        y = self._rest(x, self.cross(self.norm3(x), memory, mask=memory_mask))
        return (y, mask) if self.return_mask and mask is not None else y

    def remembered(self, x: Expr) -> tuple[Expr, Expr, Expr]:
        raise self.refuse("a block without a memory, such as nn.TransformerBlock", "one with it")
