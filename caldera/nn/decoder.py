"""The block of a transformer's decoder: attention to itself, then to the encoder's result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caldera.compiler.lazy import Expr
from caldera.nn.attention import MultiHeadAttention, TransformerBlock
from caldera.nn.basic import register
from caldera.nn.noise import Dropout
from caldera.nn.normalisation import LayerNorm


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
            raise self.refuse("a sequence and a memory", "a sequence alone")
        x = x + self.drop3(self.attention(self.norm1(x), mask=mask))
        y = self._rest(x, self.cross(self.norm3(x), memory, mask=memory_mask))
        return (y, mask) if self.return_mask and mask is not None else y

    def remembered(self, x: Expr) -> tuple[Expr, Expr, Expr]:
        raise self.refuse("a block without a memory, such as nn.TransformerBlock", "one with it")
