"""Weights of layers in 8 or 4 bits, decoded for each product; `Model.quantise` makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.ops.few_bits import GROUPS, dequantise, padded, quantised
from caldera.core.tensor.dtype import canonical
from caldera.nn.tracing import context

if TYPE_CHECKING:
    from caldera.nn.layer import Layer

LEAST_INPUTS = 32
"""Matrices of fewer inputs stay as they are: padding would fill their rows."""


@dataclass(frozen=True)
class WeightFormat:
    """Numbers of bits of weights, and of weights of 4 bits that share a scale.

    >>> WeightFormat(4).to_config()
    [4, 64]
    >>> WeightFormat(4, 50)
    Traceback (most recent call last):
    caldera.errors.ConfigError: quantise: expected group= 32, 64 or 128, got 50
    """

    bits: int
    group: int = 64

    def __post_init__(self) -> None:
        require(self.bits in (4, 8), "quantise", "weights of 4 or 8 bits", self.bits)
        require(self.group in GROUPS, "quantise", "group= 32, 64 or 128", self.group)

    def to_config(self) -> list[int]:
        """Return the format as a list for a file."""
        return [self.bits, self.group]

    @classmethod
    def from_config(cls, config: Any) -> WeightFormat:
        """Return the format that `to_config` wrote."""
        is_pair = isinstance(config, list) and [type(each) for each in config] == [int, int]
        require(is_pair, "layer", "weights= two integers", repr(config)[:100])
        return cls(*config)


def weight_format_of(layer: Layer) -> WeightFormat | None:
    """Return the format of packed weights of a layer and the layers inside; None for floats."""
    return vars(layer).get("_weight_format")


def set_weight_format(layer: Layer, how: WeightFormat) -> None:
    """Set the format in which a layer and the layers inside will create their matrices."""
    layer._weight_format = how


_current: ContextVar[WeightFormat | None] = ContextVar("weight format", default=None)


@contextmanager
def weights_in(layer: Layer) -> Iterator[None]:
    """Context manager for a call of a layer: matrices made inside have its weight format."""
    how = weight_format_of(layer)
    if how is None:
        yield
        return
    require(
        not context().training,
        layer.path,
        "inference",
        "training",
        hint="train the float model, and quantise it again",
    )
    token = _current.set(how)
    try:
        yield
    finally:
        _current.reset(token)


class FewBitsWeight(Expr):
    """A matrix of floats whose integers and scales are states of a layer.

    >>> from caldera import op
    >>> codes, scale = op.var("codes", (3, 64), dtype="int8"), op.var("scale", (3, 1))
    >>> weight = FewBitsWeight(codes, scale, (40, 3), 0, "float32", "weight")
    >>> weight.assign(np.eye(40, 3))
    >>> weight.shape, bool(np.abs(weight.numpy() - np.eye(40, 3)).max() < 1e-6)
    ((40, 3), True)
    """

    __slots__ = ("codes", "given", "name", "scale")

    def __new__(cls, *_: Any) -> FewBitsWeight:
        """Create an expression whose node `__init__` makes."""
        return object.__new__(cls)

    def __init__(
        self, codes: Variable, scale: Variable, shape: Sequence[int], inputs: int, *rest: str
    ) -> None:
        dtype, self.name = rest
        self.codes, self.scale, self.given = codes, scale, (tuple(shape), inputs, dtype, self.name)
        found = Expr(dequantise(codes.node, scale.node, columns=shape[inputs]))
        super().__init__(op.cast(found if inputs == 1 else op.transpose(found), dtype).node)

    def assign(self, value: Any) -> None:
        """Round values to the integers of the format, and set these."""
        shape, inputs, *_ = self.given
        array = np.broadcast_to(np.asarray(value, np.float32), shape)
        bits = 8 if self.codes.dtype == np.int8 else 4
        rows = np.ascontiguousarray(array if inputs == 1 else array.T)
        group = padded(shape[inputs], bits) // self.scale.shape[1]
        codes, scale = quantised(rows, bits, group)
        self.codes.assign(codes)
        self.scale.assign(scale)

    def __reduce__(self) -> tuple[Any, ...]:
        shape, inputs, *rest = self.given
        return FewBitsWeight, (self.codes, self.scale, shape, inputs, *rest)


def matrix(layer: Layer, name: str, shape: Sequence[int], fill: Any, inputs: int) -> Any:
    """Create a matrix in `build`, of floats or packed; products sum over axis `inputs`."""
    how = _current.get()
    if how is None or shape[inputs] < LEAST_INPUTS:
        return layer.parameter(name, shape, fill)
    wide = padded(shape[inputs], how.bits)
    rows, groups = shape[1 - inputs], 1 if how.bits == 8 else wide // how.group
    dtype = "int8" if how.bits == 8 else "uint8"
    codes = layer.state(f"{name}_codes", (rows, wide * how.bits // 8), dtype=dtype)
    scale = layer.state(f"{name}_scale", (rows, groups), dtype="float32")
    return FewBitsWeight(codes, scale, shape, inputs, canonical(context().dtype).name, name)
