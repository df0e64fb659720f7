"""Layers for the rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor import uniform
from caldera.errors import ConfigError
from caldera.nn.basic import check_counts, register
from caldera.nn.layer import Layer


@register
@dataclass(eq=False)
class ColumnEmbedding(Layer):
    """A vector of at most `width` numbers for each category of a table's columns.

    `spans` says which features of a row are the categories of one column, first and last but one:
    `data.schema.category_spans` does. Each becomes its vector; the other features stay as they are,
    and come first. A category that is unknown has the vector 0.

    >>> from caldera import nn, op
    >>> nn.ColumnEmbedding([(1, 9)], width=3)(op.input("rows", (5, 10))).shape
    (5, 5)
    """

    spans: Sequence[Sequence[int]]
    width: int = 8

    def __post_init__(self) -> None:
        check_counts("ColumnEmbedding", width=self.width)
        self.spans = [[int(start), int(stop)] for start, stop in self.spans]
        ends = [0, *(place for span in self.spans for place in span)]
        if sorted(ends) != ends or any(start >= stop for start, stop in self.spans):
            raise ConfigError.build(
                "ColumnEmbedding",
                expected="spans of features, one after the other",
                got=repr(self.spans)[:80],
                hint="as in [(0, 3), (5, 9)]",
            )

    def build(self, x: Expr) -> None:
        self.weights = [
            self.parameter(
                f"weight{number}", (stop - start, self._width(start, stop)), fill=uniform(-0.5, 0.5)
            )
            for number, (start, stop) in enumerate(self.spans)
        ]

    def _width(self, start: int, stop: int) -> int:
        # More numbers than half of the categories would tell nothing more.
        return min(self.width, (stop - start + 1) // 2)

    def forward(self, x: Expr) -> Expr:
        if x.ndim != 2 or (self.spans and self.spans[-1][1] > x.shape[1]):
            raise self.refuse(
                "rows with all features of its spans",
                f"shape {x.shape}",
                "take the spans of the data that it is trained on",
            )
        others, embedded, last = [], [], 0
        for (start, stop), weight in zip(self.spans, self.weights, strict=True):
            others.append(x[:, last:start])
            embedded.append(x[:, start:stop] @ weight)
            last = stop
        parts = [each for each in (*others, x[:, last:]) if each.shape[1]]
        return op.concat([*parts, *embedded], axis=1)
