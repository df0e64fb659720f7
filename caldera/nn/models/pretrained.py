"""Pretrained weights in the formats of torchvision and Hugging Face's transformers.

The layers of the zoo have torchvision's names. The name of a variable there consists of the names
of the enclosing layers; layers without a name are left out. PyTorch stores the weights of linear
and recurrent layers as (outputs, inputs): those are transposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from caldera.base.arguments import refusal, require
from caldera.compiler.lazy import Variable
from caldera.errors import CheckpointError
from caldera.io.safetensors_files import safetensors_arrays
from caldera.nn.attention import MultiHeadAttention
from caldera.nn.basic import Dense
from caldera.nn.config import network, sample_input
from caldera.nn.layer import Layer
from caldera.nn.models.text import GPT
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
"""State of PyTorch's batch normalisation that does not affect results."""
_SHOWN = 6


class TorchName(NamedTuple):
    """A variable under its name in PyTorch, and whether its axes are exchanged there."""

    name: str
    variable: Variable
    transposed: bool


def torchvision_names(layers: Layer | Sequence[Layer]) -> list[TorchName]:
    """Return the variables of the layers by their names in torchvision.

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
    """Load the weights of a safetensors file with torchvision's names into layers of the zoo.

    Every name must be in the file and have the right shape, except for names that begin with one of
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
    whole = _built(layers)
    given = safetensors_arrays(path)
    assign_by_torch_names(whole, given, tuple(skip), f"load_torchvision({str(path)!r})")


def _built(layers: Layer | Sequence[Layer]) -> Layer:
    whole = network(layers)
    if not all(layer.built for layer in whole.walk() if layer is not whole):
        whole(sample_input(whole))
    return whole


def assign_by_torch_names(
    whole: Layer, given: dict[str, np.ndarray], skipped: tuple[str, ...], where: str
) -> None:
    """Give every variable of built layers the array of its name in torchvision."""
    if not all(isinstance(each, str) for each in skipped):
        raise refusal(where.partition("(")[0], "skip", "prefixes of names", skipped)
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
    assign_entries(wanted, given, where, "list the differing layers in skip=")


def assign_entries(
    wanted: dict[str, TorchName], given: dict[str, np.ndarray], where: str, hint: str
) -> None:
    """Assign arrays to the variables of entries; raise if names or shapes differ."""
    compare_names(where, set(wanted), set(given))
    values = {name: given[name].T if wanted[name].transposed else given[name] for name in wanted}
    wrong = [
        f"{name} {given[name].shape} for {_shape_there(entry)}"
        for name, entry in wanted.items()
        if values[name].shape != entry.variable.shape
    ]
    require(
        not wrong, where, "the shapes of the layers", listed(wrong), hint, error=CheckpointError
    )
    for name, entry in wanted.items():
        entry.variable.assign(values[name])


def _shape_there(entry: TorchName) -> tuple[int, ...]:
    return entry.variable.shape[::-1] if entry.transposed else entry.variable.shape


def compare_names(where: str, wanted: set[str], given: set[str]) -> None:
    """Refuse a file that lacks weights, or has others."""
    missing, unexpected = sorted(wanted - given), sorted(given - wanted)
    require(
        not missing and not unexpected,
        where,
        "a weight for every parameter of the layers, and no other",
        "; ".join(
            f"{what} {listed(names)}"
            for what, names in (("missing", missing), ("unexpected", unexpected))
            if names
        ),
        "the file belongs to a different model; list the differing layers in skip=",
        CheckpointError,
    )


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


_RESNET = (
    (r"^resnet\.", ""),
    (r"^embedder\.embedder\.convolution\.", "conv1."),
    (r"^embedder\.embedder\.normalization\.", "bn1."),
    (r"^encoder\.stages\.(\d+)\.layers\.", lambda found: f"layer{int(found[1]) + 1}."),
    (r"\.layer\.(\d+)\.convolution\.", lambda found: f".conv{int(found[1]) + 1}."),
    (r"\.layer\.(\d+)\.normalization\.", lambda found: f".bn{int(found[1]) + 1}."),
    (r"\.shortcut\.convolution\.", ".downsample.0."),
    (r"\.shortcut\.normalization\.", ".downsample.1."),
    (r"^classifier\.1\.", "fc."),
)
"""From transformers' names of a ResNet to torchvision's, which the zoo's layers have."""
# Masks that older files store with the weights, and an output table that equals the word table.
_NOT_WEIGHTS = re.compile(r"(^|\.)attn\.(masked_)?bias$|^lm_head\.weight$")


def load_huggingface(
    layers: Layer | Sequence[Layer], path: str | PathLike[str], *, skip: Iterable[str] = ()
) -> None:
    """Load the weights of a safetensors file with Hugging Face's names into layers of the zoo.

    Supported are ResNets (`model.safetensors` of microsoft/resnet-18 to -50) for
    `nn.models.resnet18`, `resnet34` and `resnet50`, and GPT-2 (gpt2, distilgpt2) for
    `nn.models.gpt` of the same sizes with `activation="gelu_tanh"`. Every name must be in the file
    and have the right shape, except for names that begin with one of `skip`. These are
    torchvision's names: `skip=["fc."]` keeps the last layer.

    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> layers = [nn.Input((2,)), nn.Dense(3, name="fc")]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> weights = {"classifier.1.weight": np.ones((3, 2), "float32")}
    >>> cd.io.save_safetensors(path, weights | {"classifier.1.bias": np.zeros(3, "float32")})
    >>> nn.models.load_huggingface(layers, path)
    >>> layers[1].weight.numpy().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    whole = _built(layers)
    where = f"load_huggingface({str(path)!r})"
    given = safetensors_arrays(path)
    gpt = next((layer for layer in whole.walk() if isinstance(layer, GPT)), None)
    if gpt is not None:
        _assign_gpt(gpt, given, where)
        return
    assign_by_torch_names(
        whole, {_resnet_name(name): each for name, each in given.items()}, tuple(skip), where
    )


def _resnet_name(name: str) -> str:
    """Return the name in torchvision.

    >>> _resnet_name("resnet.encoder.stages.0.layers.1.layer.0.convolution.weight")
    'layer1.1.conv1.weight'
    """
    for pattern, to in _RESNET:
        name = re.sub(pattern, to, name)
    return name


def _assign_gpt(gpt: GPT, given: dict[str, np.ndarray], where: str) -> None:
    """Products are kept as (inputs, outputs) there as well: GPT-2 was not made with PyTorch."""
    found = {
        name.removeprefix("transformer."): each
        for name, each in given.items()
        if not _NOT_WEIGHTS.search(name)
    }
    wanted = {name: TorchName(name, each, False) for name, each in _gpt_names(gpt).items()}
    hint = "build the model with the sizes of the file: vocabulary, context, width and depth"
    assign_entries(wanted, found, where, hint)


def _gpt_names(gpt: GPT) -> dict[str, Any]:
    names: dict[str, Any] = {"wte.weight": gpt.words.weight, "wpe.weight": gpt.positions.weight}
    for number, block in enumerate(gpt.blocks):
        attention, before = block.attention, f"h.{number}."
        parts: dict[str, tuple[Any, Any]] = {
            "ln_1": (block.norm1.weight, block.norm1.bias),
            "attn.c_attn": (attention.weight, attention.offset),
            "attn.c_proj": (attention.output_weight, attention.output_offset),
            "ln_2": (block.norm2.weight, block.norm2.bias),
            "mlp.c_fc": (block.hidden.weight, block.hidden.offset),
            "mlp.c_proj": (block.output.weight, block.output.offset),
        }
        for part, (weight, bias) in parts.items():
            names |= {f"{before}{part}.weight": weight, f"{before}{part}.bias": bias}
    return names | {"ln_f.weight": gpt.norm.weight, "ln_f.bias": gpt.norm.bias}
