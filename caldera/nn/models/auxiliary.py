"""What GoogLeNet and Inception v3 share: normalised convolutions, auxiliary heads, input scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr
from caldera.nn.activations import ReLU
from caldera.nn.basic import Sequential
from caldera.nn.convolution import Conv2D
from caldera.nn.layer import Layer
from caldera.nn.normalisation import BatchNorm
from caldera.nn.tracing import context

# The means and deviations of ImageNet's channels, and those with which Google's weights were made.
_MEANS, _DEVIATIONS = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
_CENTRE, _SPREAD = 0.5, 0.5


def normalised_conv(
    filters: int,
    kernel: int | Sequence[int],
    stride: int = 1,
    padding: int | Sequence[int] = 0,
    *,
    name: str,
) -> Layer:
    """Convolution, batch normalisation, ReLU."""
    conv = Conv2D(filters, kernel, stride, padding, bias=False, fill="he_normal", name="conv")
    return Sequential([conv, BatchNorm(eps=1e-3, name="bn"), ReLU()], name=name)


def rescaled(x: Expr) -> Expr:
    """Images normalised by ImageNet's statistics, as they look normalised by 0.5 and 0.5."""
    scale = (_DEVIATIONS / _SPREAD).reshape(1, 3, 1, 1).astype(x.dtype)
    shift = ((_MEANS - _CENTRE) / _SPREAD).reshape(1, 3, 1, 1).astype(x.dtype)
    return x * scale + shift


def run(
    layers: Sequence[Layer], x: Expr, heads: dict[str, tuple[Layer, Layer]]
) -> tuple[Expr, dict[str, Expr]]:
    """Layers one after the other; each auxiliary head (layer it follows, head) on the way.

    The heads are used while training only, but always get their parameters.
    """
    found: dict[str, Expr] = {}
    for layer in layers:
        x = layer(x)
        for name, (follows, head) in heads.items():
            if layer is not follows:
                continue
            if context().training:
                found[name] = head(x)
            else:
                head.make_parameters(x)
    return x, found


def outputs(main: Expr, auxiliary: dict[str, Expr], has_heads: bool) -> Any:
    """The result of the network: the main output alone, or by name if there are heads."""
    return {"main": main, **auxiliary} if has_heads else main
