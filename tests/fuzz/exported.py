"""Exports random networks as libraries for C, and compares them with the plans they are made of.

    python -m tests.fuzz.exported --count 200

A library is equal to the plan of the same numbers of rows to the bit, and close to `predict` for
any number of rows; its adjoint and tangent belong together; its training steps are those of `fit`.
A network that cannot be exported is refused by an error that names the layer or the operation.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from caldera import settings
from caldera.errors import ConfigError
from caldera.export import c
from caldera.train.model import Model
from tests.fuzz.card import Outcome, counted
from tests.fuzz.kinds import WORDS
from tests.fuzz.networks import SMALL, RandomNetwork, random_network
from tests.fuzz.several import several_network
from tests.unit.export.loaded import Loaded, planned

TOLERANCE = {None: 1e-6, "tf32": 1e-6, "bfloat16": 4e-2, "float16": 5e-3}
"""Differences from `predict` relative to the largest result. In short dtypes a sum that is
computed in another order may be rounded to the next number, layer by layer."""
AMPLIFIED = 100
"""A norm of a few numbers that are almost alike makes differences so many times as large."""
NAMED = re.compile(r"(op\.\w+|\w*-\w+): expected")
"""What the error of a network that cannot be exported begins with."""


def network_of(seed: int) -> RandomNetwork:
    """What is drawn for a seed: one input or several, and layers of all kinds."""
    if seed % 5 == 4:
        return replace(several_network(seed), dtype="float32")
    kind: dict[str, bool] = {"blocks": seed % 5 == 3, "varied": seed % 5 in (1, 2)}
    return random_network(seed, SMALL, alone=True, **kind)


def compared(network: RandomNetwork, folder: Path) -> Outcome:
    """Export a network to an empty folder, and compare its functions."""
    random = Random(f"export of {network.seed}")
    model: Any = network.model("cpu")
    data = [_as_given(each) for each in network.data()]
    model.fit(*_pair(network, data), **{**network.options(), "epochs": 1})
    sizes = tuple({random.randint(1, 5), random.randint(6, 40)})
    trains = random.random() < 0.4
    batch = (*sizes, network.batch) if trains else sizes
    has_derivatives = all(each.dtype.kind == "f" for each in data[: network.inputs])
    try:
        made: dict[str, Any] = {"vjp": has_derivatives, "jvp": has_derivatives, "step": trains}
        threads = random.choice((1, 1, 2))
        c(model, folder, name="wing", batch=batch, threads=threads, **made)
    except ConfigError as error:
        agreed = NAMED.search(str(error))
        return Outcome(network.seed, "refused" if agreed else "difference", str(error))
    with Loaded(folder, "wing") as loaded:
        found = _predictions(network, model, loaded, random, batch, threads)
        if has_derivatives and not found:
            found = _derivatives(network, model, loaded, random)
        if trains and not found:
            found = _steps(network, model, loaded, folder)
    return Outcome(network.seed, "difference" if found else "agreed", found)


def _pair(network: RandomNetwork, data: Sequence[np.ndarray]) -> list[Any]:
    """Inputs and targets as `fit` takes them."""
    parts = data[: network.inputs], data[network.inputs :]
    return [each[0] if len(each) == 1 else tuple(each) for each in parts]


def _inputs(network: RandomNetwork, rows: int) -> list[np.ndarray]:
    """Other samples than those of the training."""
    draw = np.random.default_rng((network.seed, rows))
    like = network.data()[: network.inputs]
    return [
        draw.normal(size=(rows, *each.shape[1:])).astype("float32")
        if each.dtype.kind == "f"
        else draw.integers(0, WORDS, (rows, *each.shape[1:]))
        for each in like
    ]


def _predictions(
    network: RandomNetwork,
    model: Model,
    loaded: Loaded,
    random: Random,
    sizes: Sequence[int],
    threads: int,
) -> str:
    for rows in (*sizes, 1, random.randint(1, 2000)):
        inputs = _inputs(network, rows)
        wanted = _main(model.predict(*inputs))
        found = loaded.predict(*inputs, outputs=wanted.shape[1:])
        if rows in sizes and not np.array_equal(
            found, planned(model, *inputs, threads=threads), equal_nan=True
        ):
            return f"{rows} rows: other bits than the plan"
        off = np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max())
        if not off <= TOLERANCE[network.precision] * _amplified(network):
            return f"{rows} rows: {off:.2g} from predict"
    return ""


def _amplified(network: RandomNetwork) -> int:
    return AMPLIFIED if any(each.name.endswith("Norm") for each in network.layers) else 1


def _main(predicted: Any) -> np.ndarray:
    """The first output, which is the one of a library."""
    return np.asarray(next(iter(predicted.values())) if isinstance(predicted, dict) else predicted)


def _derivatives(network: RandomNetwork, model: Model, loaded: Loaded, random: Random) -> str:
    rows = random.randint(1, 60)
    inputs = _inputs(network, rows)
    draw = np.random.default_rng(rows)
    dx = [draw.normal(size=each.shape).astype("float32") for each in inputs]
    dy = draw.normal(size=_main(model.predict(*inputs)).shape).astype("float32")
    adjoint, tangent = [np.empty_like(each) for each in dx], np.empty_like(dy)
    codes = loaded.call("vjp", rows, *inputs, dy, *adjoint)
    codes += loaded.call("jvp", rows, *inputs, *dx, tangent)
    here = np.vdot(dy, tangent)
    there = sum(np.vdot(a, b) for a, b in zip(adjoint, dx, strict=True))
    lengths = [float(np.linalg.norm(each)) for each in (tangent, *dx)]
    # Both are 0 but for roundings where a norm is computed of one number.
    scale = np.linalg.norm(dy) * max(lengths[0], 0.1 * sum(lengths[1:]))
    off = abs(here - there) / scale
    most = (1e-5 if network.precision is None else 5e-2) * _amplified(network)
    return "" if codes == 0 and off <= most else f"adjoint and tangent differ by {off:.2g}"


def _steps(network: RandomNetwork, model: Any, loaded: Loaded, folder: Path) -> str:
    """Compare an epoch of steps with `fit`, from the trained weights."""
    data = [_as_given(each[: 3 * network.batch]) for each in network.data()]
    path = folder / "stored.safetensors"
    loss = np.zeros((), "float32")
    for begin in range(0, len(data[0]), network.batch):
        given = [each[begin : begin + network.batch] for each in data]
        if loaded.call("step", network.batch, *given, loss):
            return loaded.text("message")
    loaded.call("store", ctypes.c_char_p(str(path).encode()))
    other: Any = network.model("cpu")
    other.predict(*data[: network.inputs])
    other.load_weights(path)
    with settings.override(threads=1):
        options = {"epochs": 1, "shuffle": False, "verbose": 0, "batch_size": network.batch}
        model.fit(*_pair(network, data), **options)
    most = 1e-5 if network.precision is None else 5e-2
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        a, b = mine.numpy(), theirs.numpy()
        off = np.abs(a - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0))
        if not off <= most:
            return f"{mine.name} {off:.2g} from fit after three steps"
    return ""


def _as_given(array: np.ndarray) -> np.ndarray:
    kind = "float32" if array.dtype.kind == "f" else "int64"
    return np.ascontiguousarray(array, kind)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any network differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="networks")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    options = parser.parse_args(arguments)
    found = []
    for seed in range(options.seed, options.seed + options.count):
        network = network_of(seed)
        with tempfile.TemporaryDirectory() as folder:
            found.append(compared(network, Path(folder)))
        print(f"seed {seed}: {found[-1].what} {found[-1].detail}", flush=True)
        if found[-1].what == "difference":
            print(network.layers, network.precision, network.optimizer, flush=True)
    print(counted(found))
    return int(any(each.what == "difference" for each in found))


if __name__ == "__main__":
    sys.exit(main())
