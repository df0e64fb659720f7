"""Weights from files with the names of Hugging Face's transformers to the layers here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

import numpy as np

from caldera.errors import CheckpointError
from caldera.io.safetensors_files import safetensors_arrays
from caldera.nn.inspection import network, sample_input
from caldera.nn.layer import Layer
from caldera.nn.models.gpt import GPT
from caldera.nn.models.torchvision import assign_by_torch_names, compare_names, listed

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
# Masks that older files have beside the weights, and a table that is that of the words.
_NOT_WEIGHTS = re.compile(r"(^|\.)attn\.(masked_)?bias$|^lm_head\.weight$")


def load_huggingface(
    layers: Layer | Sequence[Layer], path: str | PathLike[str], *, skip: Iterable[str] = ()
) -> None:
    """Give layers of the zoo the weights of a safetensors file with Hugging Face's names.

    Known are ResNets (`model.safetensors` of microsoft/resnet-18 to -50) for `nn.models.resnet18`,
    `resnet34` and `resnet50`, and GPT-2 (gpt2, distilgpt2) for `nn.models.gpt` of the same sizes
    with `activation="gelu_tanh"`. Every name must be there and have the right shape, except for
    those that begin with one of `skip`, by torchvision's names: `skip=["fc."]` keeps the last.

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
    whole = network(layers)
    if not all(layer.built for layer in whole.walk() if layer is not whole):
        whole(sample_input(whole))
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
    """The name in torchvision.

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
    wanted = _gpt_names(gpt)
    compare_names(where, set(wanted), set(found))
    wrong = [
        f"{name} {found[name].shape} for {variable.shape}"
        for name, variable in wanted.items()
        if found[name].shape != variable.shape
    ]
    if wrong:
        raise CheckpointError.build(
            where,
            expected="the shapes of the layers",
            got=listed(wrong),
            hint="make the model of the file's sizes: vocabulary, context, width and depth",
        )
    for name, variable in wanted.items():
        variable.assign(found[name])


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
