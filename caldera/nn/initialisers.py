"""Initialisers of weights by name: fillers as layers and model files write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from caldera.base.arguments import require
from caldera.base.registry import Registry
from caldera.core.tensor import (
    Filler,
    constant,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    identity,
    normal,
    one,
    orthogonal,
    uniform,
    zero,
)
from caldera.core.tensor.fillers import (
    Constant,
    IdentityMatrix,
    Normal,
    Orthogonal,
    Scaled,
    UniformFiller,
)
from caldera.errors import ConfigError

fillers: Registry[Callable[..., Filler]] = Registry("filler")
"""Fillers by name: the valid names for a layer's `fill`."""

for _make in (
    constant,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    identity,
    normal,
    one,
    orthogonal,
    uniform,
    zero,
):
    fillers.add(_make.__name__, _make)

_NAMES: dict[type[Filler], str] = {
    Constant: "constant",
    UniformFiller: "uniform",
    Normal: "normal",
    Orthogonal: "orthogonal",
    IdentityMatrix: "identity",
}


def fill_or(fill: Any, default: Filler) -> Any:
    """Return the filler of a layer: the one given (or named), else the layer's own choice."""
    if fill is None:
        return default
    return fillers[fill]() if isinstance(fill, str) else fill


def fill_to_config(fill: Filler) -> dict[str, Any]:
    """Return the configuration of a filler for model files."""
    if isinstance(fill, Scaled):
        return {"filler": f"{fill.rule}_{fill.distribution}"}
    require(
        type(fill) in _NAMES,
        "to_config",
        "a registered filler: " + ", ".join(fillers),
        type(fill).__name__,
        hint="give the layer no fill=, and assign the values to its parameters",
    )
    numbers = {each.name: getattr(fill, each.name) for each in fields(fill)}  # type: ignore[arg-type]
    return {"filler": _NAMES[type(fill)], **numbers}


def fill_from_config(config: Mapping[str, Any]) -> Filler:
    """Return the filler that a model file names."""
    arguments = {key: value for key, value in config.items() if key != "filler"}
    try:
        return fillers[config["filler"]](**arguments)
    except TypeError as error:
        raise ConfigError.build(
            f"filler {config['filler']!r}", expected="its own arguments", got=str(error)
        ) from None
