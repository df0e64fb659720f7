"""Weights with Hugging Face's names: what each is called there, and which axes are exchanged.

The results were compared with PyTorch's, with the same names and random weights: GPT-2 to 5e-7 of
the largest number, ResNet-18 to 6e-7.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import CheckpointError, DataError
from caldera.nn import models

WIDTH, WORDS, CONTEXT = 8, 11, 6
GPT2 = {
    "wte.weight": (WORDS, WIDTH),
    "wpe.weight": (CONTEXT, WIDTH),
    "h.0.ln_1.weight": (WIDTH,),
    "h.0.ln_1.bias": (WIDTH,),
    "h.0.attn.c_attn.weight": (WIDTH, 3 * WIDTH),
    "h.0.attn.c_attn.bias": (3 * WIDTH,),
    "h.0.attn.c_proj.weight": (WIDTH, WIDTH),
    "h.0.attn.c_proj.bias": (WIDTH,),
    "h.0.ln_2.weight": (WIDTH,),
    "h.0.ln_2.bias": (WIDTH,),
    "h.0.mlp.c_fc.weight": (WIDTH, 4 * WIDTH),
    "h.0.mlp.c_fc.bias": (4 * WIDTH,),
    "h.0.mlp.c_proj.weight": (4 * WIDTH, WIDTH),
    "h.0.mlp.c_proj.bias": (WIDTH,),
    "ln_f.weight": (WIDTH,),
    "ln_f.bias": (WIDTH,),
}


def saved(
    path: Path, shapes: dict[str, tuple[int, ...]], prefix: str = ""
) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = {
        name: generator.normal(size=shape).astype("float32") for name, shape in shapes.items()
    }
    cd.io.save_safetensors(path, {prefix + name: each for name, each in arrays.items()})
    return arrays


def gpt2(words: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """GPT-2 with one block and two heads, as it is published."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def product(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][words] + w["wpe.weight"][: len(words)]
    heads = [
        np.split(each, 2, 1)
        for each in np.split(product(norm(x, "h.0.ln_1"), "h.0.attn.c_attn"), 3, 1)
    ]
    mixed = []
    for q, k, v in zip(*heads, strict=True):
        scores = np.where(np.tri(len(words)) > 0, q @ k.T / np.sqrt(WIDTH / 2), -np.inf)
        parts = np.exp(scores - scores.max(1, keepdims=True))
        mixed.append(parts / parts.sum(1, keepdims=True) @ v)
    x = x + product(np.concatenate(mixed, 1), "h.0.attn.c_proj")
    h = product(norm(x, "h.0.ln_2"), "h.0.mlp.c_fc")
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return norm(x + product(h, "h.0.mlp.c_proj"), "ln_f") @ w["wte.weight"].T


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "model.safetensors"
    masks = {"h.0.attn.bias": (1, 1, CONTEXT, CONTEXT), "h.0.attn.masked_bias": ()}
    weights = saved(path, GPT2 | masks, prefix)
    layers = models.gpt(WORDS, CONTEXT, width=WIDTH, depth=1, heads=2, activation="gelu_tanh")
    models.load_huggingface(layers, path)
    words = np.array([3, 1, 10, 0, 7])
    found = layers[-1](words[None]).numpy()[0]
    wanted = gpt2(words, {name: each.astype(float) for name, each in weights.items()})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_model_of_other_sizes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    saved(path, GPT2)
    with pytest.raises(CheckpointError, match=r"wpe\.weight \(6, 8\) for \(9, 8\).*context"):
        models.load_huggingface(models.gpt(WORDS, 9, width=WIDTH, depth=1, heads=2), path)
    with pytest.raises(CheckpointError, match=r"missing h\.1\.attn"):
        models.load_huggingface(models.gpt(WORDS, CONTEXT, width=WIDTH, depth=2, heads=2), path)


def test_a_residual_network_has_the_same_weights_under_both_names(tmp_path: Path) -> None:
    """A block with a shortcut, which has all the names that ResNets have."""

    def conv(filters: int, kernel: int, name: str) -> nn.Layer:
        return nn.Conv2D(filters, kernel, padding=kernel // 2, bias=False, name=name)

    def layers() -> list[nn.Layer]:
        shortcut = nn.Sequential([conv(4, 1, "0"), nn.BatchNorm(name="1")], name="downsample")
        inner = [
            conv(4, 3, "conv1"),
            nn.BatchNorm(name="bn1"),
            nn.ReLU(),
            conv(4, 3, "conv2"),
            nn.BatchNorm(name="bn2"),
        ]
        return [
            nn.Input((3, 5, 5)),
            conv(2, 7, "conv1"),
            nn.BatchNorm(name="bn1"),
            nn.ReLU(),
            nn.Residual(inner, shortcut, activation="relu", name="layer1.0"),
            nn.GlobalAveragePool(),
            nn.Dense(3, name="fc"),
        ]

    there = {"resnet.embedder.embedder.convolution": (2, 3, 7, 7), "classifier.1": (3, 4)}
    block = "resnet.encoder.stages.0.layers.0."
    there |= {
        f"{block}layer.0.convolution": (4, 2, 3, 3),
        f"{block}layer.1.convolution": (4, 4, 3, 3),
    }
    there |= {f"{block}shortcut.convolution": (4, 2, 1, 1)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in there.items()}
    norms = {"resnet.embedder.embedder.": 2, f"{block}layer.0.": 4, f"{block}layer.1.": 4}
    for name, size in (norms | {f"{block}shortcut.": 4}).items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}normalization.{part}"] = (size,)
        shapes[f"{name}normalization.num_batches_tracked"] = ()
    weights = saved(tmp_path / "hf.safetensors", shapes | {"classifier.1.bias": (3,)})
    made = layers()
    models.load_huggingface(made, tmp_path / "hf.safetensors")
    named = {entry.name: entry for entry in models.torchvision_names(made)}
    first = named["layer1.0.downsample.1.running_var"].variable.numpy()
    np.testing.assert_array_equal(first, weights[f"{block}shortcut.normalization.running_var"])
    np.testing.assert_array_equal(
        named["fc.weight"].variable.numpy().T, weights["classifier.1.weight"]
    )
    second = named["layer1.0.conv2.weight"].variable.numpy()
    np.testing.assert_array_equal(second, weights[f"{block}layer.1.convolution.weight"])


@pytest.mark.parametrize("magic", [b"PK\x03\x04", b"\x80\x02\x8a\x0a"])
def test_files_of_torch_save_are_told_how_to_convert(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(magic + bytes(100))
    with pytest.raises(DataError, match="a pickle may run any program") as caught:
        cd.io.load_safetensors(path)
    first, second = str(caught.value).splitlines()[1:]
    assert first.strip() == "import torch; from safetensors.torch import save_file"
    assert f"torch.load({str(path)!r}" in second
    assert repr(str(tmp_path / "weights.safetensors")) in second
    compile(f"{first.strip()}\n{second.strip()}", "the two lines", "exec")
    # A header of 0x0280 bytes begins like a pickle, and is none.
    fine = tmp_path / "fine.safetensors"
    cd.io.save_safetensors(fine, {"w": np.ones(2, "f4")}, {"text": "x" * 552})
    assert fine.read_bytes()[:2] == b"\x80\x02"
    assert cd.io.load_safetensors(fine)["w"].tolist() == [1.0, 1.0]
    for load in (cd.load, lambda p: models.load_torchvision([nn.Input((2,)), nn.Dense(1)], p)):
        with pytest.raises(DataError, match=r"torch\.load"):
            load(path)


def test_files_of_torch_export_are_told_how_to_convert(tmp_path: Path) -> None:
    path = tmp_path / "small.pt2"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    for load in (cd.load, cd.onnx.load):
        with pytest.raises(DataError, match=r"caldera\.onnx\.load\('.*small\.onnx'\)") as caught:
            load(path)
        line = str(caught.value).splitlines()[-1].strip()
        assert line.startswith("import torch; torch.onnx.export(torch.export.load(")
        assert line.endswith("small.onnx', dynamo=True)")
        compile(line, "the line", "exec")
