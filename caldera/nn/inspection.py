"""A list of layers as one network, and facts about it that need no weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError
from caldera.nn.basic import Input, Sequential
from caldera.nn.layer import Layer
from caldera.nn.tracing import context, trace


def network(layers: Layer | Sequence[Layer]) -> Layer:
    """Return a list of layers as one layer; the paths of the layers begin with their own names.

    >>> from caldera import nn, op
    >>> whole = nn.network([nn.Input((4,)), nn.Dense(3, name="head")])
    >>> _ = whole(op.input("x", (5, 4)))
    >>> [p.name for p in whole.parameters()]
    ['head/weight', 'head/bias']
    """
    if isinstance(layers, Layer):
        return layers
    whole = Sequential(layers)
    whole._path = ""
    return whole


def sample_input(whole: Layer, input_shape: Sequence[int] | None = None) -> Expr:
    """Return an input for a single sample, of the given shape or the shape of `nn.Input`."""
    declared = next((layer for layer in whole.walk() if isinstance(layer, Input)), None)
    if input_shape is None and declared is None:
        raise ConfigError.build(
            whole.path or "network",
            expected="the shape of a sample",
            got="none",
            hint="give input_shape=, or begin with nn.Input(shape)",
        )
    shape = declared.traced_shape if input_shape is None and declared is not None else input_shape
    dtype = None if declared is None else declared.dtype
    assert shape is not None
    return op.input("x", (1, *shape), dtype=dtype or context().dtype)


def count_parameters(
    layers: Layer | Sequence[Layer], input_shape: Sequence[int] | None = None
) -> int:
    """Return the number of trainable parameters, without allocating them.

    >>> from caldera import nn
    >>> nn.count_parameters([nn.Dense(528), nn.Dense(10)], input_shape=(784,))
    419770
    >>> nn.count_parameters(nn.models.alexnet())
    61100840
    """
    given = [layers] if isinstance(layers, Layer) else list(layers)
    # Built layers are used as they are; the remaining layers create their variables in a copy.
    kept: dict[int, Any] = {
        id(inner): inner for layer in given for inner in layer.walk() if inner.built
    }
    outline = network(copy.deepcopy(given, kept))
    x = sample_input(outline, input_shape)
    with trace(allocate=False):
        outline(x)
    return sum(parameter.size for parameter in outline.parameters())
