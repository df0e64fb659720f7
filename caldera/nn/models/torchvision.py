"""Weights from files with the names of torchvision (and PyTorch) to the layers here.

The zoo's layers carry torchvision's names. A variable's name there is made of the names of the
layers on the way to it; layers without a name of their own are left out. PyTorch keeps the weights
of linear and recurrent layers as (outputs, inputs): those are transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from caldera.base.arguments import refusal
from caldera.compiler.lazy import Variable
from caldera.errors import CheckpointError
from caldera.io.safetensors_files import safetensors_arrays
from caldera.nn.attention import MultiHeadAttention
from caldera.nn.basic import Dense
from caldera.nn.inspection import network, sample_input
from caldera.nn.layer import Layer
from caldera.nn.recurrent import Recurrent

_RECURRENT = {
    f"{ours}{suffix}": f"{theirs}_l0{suffix}"
    for suffix in ("", "_reverse")
    for ours, theirs in (
        ("input_weight", "weight_ih"),
        ("state_weight", "weight_hh"),
        ("input_bias", "bias_ih"),
        ("state_bias", "bias_hh"),
    )
}
_ATTENTION = {
    "input_weight": "in_proj_weight",
    "input_bias": "in_proj_bias",
    "output_weight": "out_proj.weight",
    "output_bias": "out_proj.bias",
}
_COUNTER = "num_batches_tracked"
"""A state of PyTorch's batch normalisation that nothing depends on."""
_SHOWN = 6


class TorchName(NamedTuple):
    """A variable under its name in PyTorch, and whether its axes are exchanged there."""

    name: str
    variable: Variable
    transposed: bool


def torchvision_names(layers: Layer | Sequence[Layer]) -> list[TorchName]:
    """Every variable of the layers under the name that torchvision has for it.

    >>> from caldera import nn, op
    >>> layer = nn.Dense(3, name="fc")
    >>> _ = layer(op.input("x", (5, 2)))
    >>> [(entry.name, entry.transposed) for entry in nn.models.torchvision_names(layer)]
    [('fc.weight', True), ('fc.bias', False)]
    """
    found: list[TorchName] = []
    _collect(network(layers), "", found, set())
    return found


def _collect(layer: Layer, prefix: str, found: list[TorchName], seen: set[int]) -> None:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    inner = f"{prefix}{layer.name}." if layer.name else prefix
    is_linear = isinstance(layer, Dense | Recurrent | MultiHeadAttention)
    names = _RECURRENT if isinstance(layer, Recurrent) else {}
    names = _ATTENTION if isinstance(layer, MultiHeadAttention) else names
    for name, variable in layer.variables().items():
        transposed = is_linear and variable.ndim == 2
        found.append(TorchName(f"{inner}{names.get(name, name)}", variable, transposed))
    for _, child in layer.children():
        _collect(child, inner, found, seen)


def load_torchvision(
    layers: Layer | Sequence[Layer], path: str | PathLike[str], *, skip: Iterable[str] = ()
) -> None:
    """Give layers of the zoo the weights of a safetensors file with torchvision's names.

    Every name must be there and have the right shape, except for those that begin with one of
    `skip`: `skip=["fc."]` keeps the last layer of a network for other classes as it is. Layers that
    were never called get their parameters first, for the shape in their `nn.Input`.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> layers = [nn.Input((2,)), nn.Dense(3, name="fc")]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "weights.safetensors"
    >>> weights = {"fc.weight": np.ones((3, 2), "float32"), "fc.bias": np.zeros(3, "float32")}
    >>> cd.io.save_safetensors(path, weights)
    >>> nn.models.load_torchvision(layers, path)
    >>> layers[1].weight.numpy().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    whole = network(layers)
    if not all(layer.built for layer in whole.walk() if layer is not whole):
        whole(sample_input(whole))
    given = safetensors_arrays(path)
    assign_by_torch_names(whole, given, tuple(skip), f"load_torchvision({str(path)!r})")


def assign_by_torch_names(
    whole: Layer, given: dict[str, np.ndarray], skipped: tuple[str, ...], where: str
) -> None:
    """Give every variable of built layers the array of its name in torchvision."""
    if not all(isinstance(each, str) for each in skipped):
        raise refusal(where.partition("(")[0], "skip", "the beginnings of names", skipped)
    given = {
        name: array
        for name, array in given.items()
        if not name.startswith(skipped) and not name.endswith(_COUNTER)
    }
    wanted = {
        entry.name: entry
        for entry in torchvision_names(whole)
        if not entry.name.startswith(skipped)
    }
    compare_names(where, set(wanted), set(given))
    values = {name: given[name].T if wanted[name].transposed else given[name] for name in wanted}
    wrong = [
        f"{name} {given[name].shape} for {_shape_there(entry)}"
        for name, entry in wanted.items()
        if values[name].shape != entry.variable.shape
    ]
    if wrong:
        raise CheckpointError.build(
            where,
            expected="the shapes of the layers",
            got=listed(wrong),
            hint="name layers that differ in skip=",
        )
    for name, entry in wanted.items():
        entry.variable.assign(values[name])


def _shape_there(entry: TorchName) -> tuple[int, ...]:
    return entry.variable.shape[::-1] if entry.transposed else entry.variable.shape


def compare_names(where: str, wanted: set[str], given: set[str]) -> None:
    """Refuse a file that lacks weights, or has others."""
    missing, unexpected = sorted(wanted - given), sorted(given - wanted)
    if missing or unexpected:
        raise CheckpointError.build(
            where,
            expected="a weight for every parameter of the layers, and no other",
            got="; ".join(
                f"{what} {listed(names)}"
                for what, names in (("missing", missing), ("unexpected", unexpected))
                if names
            ),
            hint="the file is of another model; name layers that differ in skip=",
        )


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
