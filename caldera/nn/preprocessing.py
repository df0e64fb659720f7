"""Preprocessing layers: rescaling of inputs and outputs, and embeddings of table columns.

`Rescale` lets a network accept and return values in their own units and compute on one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from caldera import op
from caldera.base.arguments import refusal, require, within
from caldera.compiler.lazy import Expr
from caldera.core.tensor import uniform
from caldera.core.tensor.dtype import real_array_of, refuse_masked
from caldera.errors import ConfigError, DataError
from caldera.nn.basic import activation_function, check_counts, register
from caldera.nn.layer import Layer

_MOST_SAMPLES = 10_000
"""Maximum number of samples from which mean and deviation are estimated."""


@register
@dataclass(eq=False)
class Rescale(Layer):
    """x * scale + offset; each is a number, or one for each place along the last axis.

    >>> from caldera import nn
    >>> nn.Rescale([1.0, 10.0], 0.5)([[1.0, 2.0]]).tolist()
    [[1.5, 20.5]]

    `nn.Rescale.fit(samples)` brings inputs to mean 0 and deviation 1.
    """

    scale: float | Sequence[float] = 1.0
    offset: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "offset"):
            refuse_masked(getattr(self, name), f"Rescale {name}=")
            given = np.asarray(getattr(self, name))
            if given.ndim > 1 or given.dtype.kind not in "iuf" or not np.isfinite(given).all():
                raise ConfigError.build(
                    "Rescale",
                    expected=f"{name}= a finite number, or a list of finite numbers",
                    got=repr(getattr(self, name))[:80],
                )
            setattr(self, name, given.astype(float).tolist())

    @classmethod
    def fit(cls, samples: Any, name: str = "") -> Self:
        """Return a layer that rescales inputs like `samples` to mean 0 and deviation 1.

        Each position along the last axis is rescaled separately. A network that begins with this
        layer accepts inputs in their own units. `samples` are data such as
        `data.windows(...).train`, or an array.

        >>> import numpy as np
        >>> from caldera import nn
        >>> heights = np.array([[150.0], [190.0]])
        >>> nn.Rescale.fit(heights)(heights).numpy().round().tolist()
        [[-1.0], [1.0]]
        """
        x = _inputs(samples)
        require(
            x.dtype.kind in "biuf" and np.isfinite(x).all(),
            "nn.Rescale.fit",
            "finite numbers",
            x.dtype,
            error=DataError,
        )
        mean, deviation = _moments(x)
        return cls((1 / deviation).tolist(), (-mean / deviation).tolist(), name=name)

    def forward(self, x: Expr) -> Expr:
        for name in ("scale", "offset"):
            given = getattr(self, name)
            if isinstance(given, list) and len(given) != (x.shape[-1] if x.ndim else 1):
                raise self.refuse(f"{len(given)} numbers along the last axis", f"shape {x.shape}")
        scale, offset = (np.asarray(each, x.dtype) for each in (self.scale, self.offset))
        return x * scale + offset


def _inputs(samples: Any, where: str = "nn.Rescale.fit") -> np.ndarray:
    """Return the inputs of some samples, evenly among all."""
    is_data = hasattr(samples, "batch")
    if not is_data:
        samples = np.atleast_1d(real_array_of(samples, where))
    require(len(samples) if is_data else samples.size, where, "samples", error=DataError)
    rows = np.unique(np.linspace(0, len(samples) - 1, min(len(samples), _MOST_SAMPLES)).astype(int))
    return samples.batch(rows)[0] if is_data else samples[rows]


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each column; constant columns have a deviation of 1."""
    axes = tuple(range(values.ndim - 1)) if values.ndim > 1 else None
    exact = values.astype(np.float64)
    mean, deviation = exact.mean(axis=axes), exact.std(axis=axes)
    varies = deviation > 1e-7 * np.maximum(np.abs(mean), 1e-30)
    return mean, np.where(varies, deviation, 1.0)


@register
@dataclass(eq=False)
class ColumnEmbedding(Layer):
    """Embedding of a table's columns: a vector of at most `width` numbers for each category.

    Without a width, a column of n categories has vectors of round(6 * n ** 0.25) numbers.

    `spans` has the range of features (start, stop) with the categories of each column, as returned
    by `data.schema.category_spans`. Each span is replaced by its vector; the remaining features are
    unchanged and come first. An unknown category has the vector 0. With `members` the output is
    (N, members, features), with separate vectors of each member; the input may have that form too.

    >>> from caldera import nn, op
    >>> nn.ColumnEmbedding([(1, 9)], width=3)(op.input("rows", (5, 10))).shape
    (5, 5)
    """

    spans: Sequence[Sequence[int]]
    width: int | None = 8
    members: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        given = {"width": self.width, "members": self.members}
        check_counts("ColumnEmbedding", **{k: v for k, v in given.items() if v is not None})
        self.spans = [[int(start), int(stop)] for start, stop in self.spans]
        ends = [0, *(place for span in self.spans for place in span)]
        if sorted(ends) != ends or any(start >= stop for start, stop in self.spans):
            raise ConfigError.build(
                "ColumnEmbedding",
                expected="spans of features, ordered and without overlap",
                got=repr(self.spans)[:80],
                hint="for example [(0, 3), (5, 9)]",
            )

    def build(self, x: Expr) -> None:
        several = () if self.members is None else (self.members,)
        self.weights = [
            self.parameter(
                f"weight{number}",
                (*several, stop - start, self._width(start, stop)),
                fill=uniform(-0.5, 0.5),
            )
            for number, (start, stop) in enumerate(self.spans)
        ]

    def _width(self, start: int, stop: int) -> int:
        # Widths above half the number of categories would add no information.
        count = stop - start
        return min(self.width or round(6 * count**0.25), (count + 1) // 2)

    def forward(self, x: Expr) -> Expr:
        known = (2,) if self.members is None else (2, 3)
        self.require(
            x.ndim in known and (not self.spans or self.spans[-1][1] <= x.shape[-1]),
            "rows with all features of its spans",
            f"shape {x.shape}",
            "use the spans of the training data",
        )
        if self.members is not None:
            # Products are over the rows of each member.
            rows = x if x.ndim == 3 else op.unsqueeze(x, 1)
            rows = op.broadcast(rows, (len(x), self.members, x.shape[-1]))
            return op.transpose(self._embedded(op.transpose(rows, (1, 0, 2))), (1, 0, 2))
        return self._embedded(x)

    def _embedded(self, x: Expr) -> Expr:
        others, embedded, last = [], [], 0
        for (start, stop), weight in zip(self.spans, self.weights, strict=True):
            others.append(x[..., last:start])
            embedded.append(x[..., start:stop] @ weight)
            last = stop
        parts = [each for each in (*others, x[..., last:]) if each.shape[-1]]
        return op.concat([*parts, *embedded], axis=-1)


@register
@dataclass(eq=False)
class NumberEmbedding(Layer):
    """Embedding of numbers: a vector of `width` numbers for each, from its position among bins.

    The encoding of x is piecewise linear in T bins with the edges b: (x - b[t-1]) / (b[t] - b[t-1])
    for each bin t. It is clipped to at least 0 except in the first bin, and to at most 1 except in
    the last one. Each number has a separate matrix for its encoding, followed by `activation`
    (PLE-LR of Gorishniy, Rubachev and Babenko, 2022).

    `edges` has the edges of each number, ascending, at `columns` of a row (by default the first
    columns). The remaining features of the row come first, unchanged. With `members` the output is
    (N, members, features), with separate weights of each member.

    >>> from caldera import nn, op
    >>> layer = nn.NumberEmbedding([[0.0, 1.0, 4.0], [0.0, 1.0]], width=3)
    >>> layer(op.input("rows", (5, 4))).shape
    (5, 8)

    `nn.NumberEmbedding.fit(samples)` takes quantiles of the samples for edges.
    """

    edges: Sequence[Sequence[float]]
    width: int = 8
    columns: Sequence[int] | None = None
    activation: str | None = field(default="relu", kw_only=True)
    members: int | None = None

    def __post_init__(self) -> None:
        members = 1 if self.members is None else self.members
        check_counts("NumberEmbedding", width=self.width, members=members)
        activation_function(self.activation)  # Refused now, not when it is first called.
        self.edges = [np.asarray(each, float).reshape(-1).tolist() for each in self.edges]
        known = [each for each in self.edges if len(each) > 1]
        if len(known) < max(len(self.edges), 1) or not all(
            np.isfinite(each).all() and (np.diff(each) > 0).all() for each in known
        ):
            raise ConfigError.build(
                "NumberEmbedding",
                expected="edges= two or more ascending numbers for each number of a row",
                got=repr(self.edges)[:80],
                hint="for example [[0.0, 1.0, 4.0], [0.0, 1.0]]",
            )
        places = range(len(self.edges)) if self.columns is None else self.columns
        self.columns = [int(each) for each in places]
        if len(set(self.columns)) != len(self.edges) or min(self.columns) < 0:
            raise ConfigError.build(
                "NumberEmbedding",
                expected=f"columns= {len(self.edges)} distinct column indices, one per list of "
                "edges",
                got=repr(self.columns)[:80],
            )

    @classmethod
    def fit(
        cls,
        samples: Any,
        width: int = 8,
        *,
        columns: Sequence[int] | None = None,
        bins: int = 16,
        activation: str | None = "relu",
        members: int | None = None,
    ) -> Self:
        """Return the layer with quantiles of `samples` for edges; columns that do not vary are
        left as they are.

        >>> from caldera import nn
        >>> nn.NumberEmbedding.fit([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]], bins=2).edges
        [[0.0, 1.0, 2.0]]
        """
        check_counts("nn.NumberEmbedding.fit", bins=bins)
        x = _inputs(samples, "nn.NumberEmbedding.fit")
        if x.ndim != 2 or x.dtype.kind not in "biuf" or not np.isfinite(x).all():
            got = f"{x.dtype} of shape {x.shape}"
            raise DataError.build(
                "nn.NumberEmbedding.fit", expected="rows (N, features) of finite numbers", got=got
            )
        if not isinstance(columns, Sequence | None) or isinstance(columns, str | bytes):
            expected = "a list of column numbers, or None"
            raise refusal("nn.NumberEmbedding.fit", "columns", expected, columns)
        last, found = x.shape[1] - 1, {}
        for each in range(x.shape[1]) if columns is None else columns:
            place = within("nn.NumberEmbedding.fit", "columns", each, 0, last)
            edges = np.unique(
                np.quantile(x[:, place].astype(np.float64), np.linspace(0, 1, bins + 1))
            )
            # Edges that are equal in float32 would cause a division by zero.
            far = np.append(True, np.diff(edges) > 1e-6 * max(np.abs(edges).max(), 1e-30))
            if far.sum() > 1:
                found[place] = edges[far].tolist()
        kept = list(found.values())
        return cls(kept, width, list(found), activation=activation, members=members)

    def build(self, x: Expr) -> None:
        members, bins = self.members or 1, max(map(len, self.edges)) - 1
        shape = (members, len(self.edges), bins, self.width)
        self.weight = self.parameter("weight", shape, fill=uniform(-0.25, 0.25))
        self.offset = self.parameter("bias", (members, len(self.edges), self.width))
        # Numbers with fewer bins have some in which every value is 0.
        low, scale = np.zeros((2, len(self.edges), bins))
        least, most = np.zeros_like(low), np.ones_like(low)
        for row, edges in enumerate(self.edges):
            count = len(edges) - 1
            low[row, :count] = edges[:-1]
            scale[row, :count] = 1 / np.diff(edges)
            least[row, 0], most[row, count - 1] = -np.inf, np.inf
        self._bins = low, scale, least, most

    def _encode(self, x: Expr) -> Expr:
        """Return the piecewise-linear encoding of rows, (N, numbers, bins)."""
        low, scale, least, most = (np.asarray(each, self.weight.dtype) for each in self._bins)
        numbers = op.unsqueeze(op.gather(x, np.asarray(self.columns), axis=1), 2)
        return op.minimum(op.maximum((numbers - low) * scale, least), most)

    def forward(self, x: Expr) -> Expr:
        self.require(
            x.ndim == 2 and x.shape[1] > max(self.columns or (), default=0),
            "rows with all features of its columns",
            f"shape {x.shape}",
            "use the columns of the training data",
        )
        h = op.einsum("nft,mftd->nmfd", self._encode(x), self.weight) + self.offset
        h = activation_function(self.activation)(h)
        count, members = h.shape[:2]
        h = op.reshape(h, (count, members, -1))
        others = sorted(set(range(x.shape[1])) - set(self.columns or ()))
        if others:
            rest = op.unsqueeze(op.gather(x, np.asarray(others), axis=1), 1)
            h = op.concat([op.broadcast(rest, (count, members, len(others))), h], axis=2)
        return h if self.members else op.reshape(h, (count, -1))
