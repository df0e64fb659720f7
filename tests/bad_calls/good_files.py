"""A small valid file of each format that Caldera reads, and what reads it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import data, nn
from caldera.cli.recipe import read_recipe
from caldera.train.report import run_page
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.unit.data.files import picture, write_mnist


@dataclass(frozen=True)
class Format:
    """Files below a folder, and a function of that folder that reads all of them."""

    folder: Path
    read: Callable[[Path], Any]

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


def model() -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3), nn.ReLU(), nn.Dense(2)], name="small")


def _read_run(folder: Path) -> Any:
    run = cd.RunFolder(folder)
    return run.record(), run.history(), run.graph(), run_page(run)


def _weights_of(folder: Path) -> None:
    model().load_weights(folder / "model.caldera")


def _all_samples(found: Any) -> Any:
    return found.batch(np.arange(len(found)))


def write_formats(root: Path) -> dict[str, Format]:
    """All formats, each in a folder of its own."""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    y = np.arange(8) % 2
    readers: dict[str, Callable[[Path], Any]] = {
        "csv": lambda at: cd.io.read_csv(at / "a.csv"),
        "table": lambda at: data.table(at / "a.csv"),
        "table inputs": lambda at: data.table_inputs(at / "a.csv", ignore=["colour", "label"]),
        "npy": lambda at: cd.io.load_npy(at / "a.npy"),
        "mapped npy": lambda at: data.source(at / "a.npy"),
        "npz": lambda at: cd.io.load_npz(at / "a.npz"),
        "npz data": lambda at: data.npz(at / "a.npz"),
        "safetensors": lambda at: cd.io.load_safetensors(at / "a.safetensors"),
        "metadata": lambda at: cd.io.load_safetensors_metadata(at / "a.safetensors"),
        "model": lambda at: cd.load(at / "model.caldera"),
        "weights": _weights_of,
        "checkpoints": lambda at: CheckpointFolder(at).latest(),
        "run": _read_run,
        "recipe": lambda at: read_recipe(at / "recipe.toml"),
        "mnist": lambda at: data.mnist(at, download=False),
        "images": lambda at: data.images(at),
        "image files": lambda at: _all_samples(
            data.Pipeline(data.source(at), data.Decode((8, 8))),
        ),
        "shards": lambda at: _all_samples(data.Shards(at)),
    }
    if find_spec("onnx") is not None:
        readers["onnx"] = lambda at: cd.onnx.load(at / "model.onnx")
    made = {name: Format(root / name, read) for name, read in readers.items()}
    for each in made.values():
        each.folder.mkdir()
    text = "a,b,colour,label\n" + "".join(f"{i},{i / 2},red,{i % 2}\n" for i in range(8))
    made["csv"].folder.joinpath("a.csv").write_text("a,b\n" + "1.5,2\n" * 8)
    for name in ("table", "table inputs"):
        made[name].folder.joinpath("a.csv").write_text(text)
    for name in ("npy", "mapped npy"):
        cd.io.save_npy(made[name].folder / "a.npy", x)
    cd.io.save_npz(made["npz"].folder / "a.npz", {"x": x, "y": y})
    np.savez(made["npz data"].folder / "a.npz", x=x, y=y)
    for name in ("safetensors", "metadata"):
        cd.io.save_safetensors(made[name].folder / "a.safetensors", {"x": x, "y": y}, {"by": "me"})
    for name in ("model", "weights"):
        model().save(made[name].folder / "model.caldera")
    if "onnx" in made:
        cd.onnx.export(model(), made["onnx"].folder / "model.onnx")
    saved = CheckpointFolder(made["checkpoints"].folder)
    saved.save(3, {"x": x}, {"step": 3})
    saved.wait()
    _write_run(made["run"].folder, data.arrays(x, y))
    made["recipe"].folder.joinpath("recipe.toml").write_text(
        'model = "mlp"\nhidden = [8, 8]\nepochs = 3\nlearning_rate = 1e-3\n'
    )
    write_mnist(made["mnist"].folder / "mnist")
    _write_images(made["images"].folder)
    shutil.copytree(made["images"].folder, made["image files"].folder, dirs_exist_ok=True)
    made["shards"].folder.rmdir()
    data.write_shards(made["shards"].folder, (x, y), class_names=("a", "b"))
    return made


def _write_run(folder: Path, samples: data.Dataset) -> None:
    network = model()
    history = network.fit(samples.train, verbose=0, epochs=1)
    cd.RunFolder(folder).write(network, history, samples, measured=False)


def _write_images(folder: Path) -> None:
    for number in range(6):
        path = folder / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(number * 40, (8, 8)))
