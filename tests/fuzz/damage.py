"""Damages model files, checkpoints, studies, shards and saved arrays, and loads them again.

    python -m tests.fuzz.damage --count 1000
    python -m tests.fuzz.damage --seed 7 --count 1 --kind study

A file has a bit flipped, a few bytes changed, a part cut off or doubled. What is loaded then has to
be what was written, or a CalderaError; anything else is reported, and so is whatever takes long.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

import caldera as cd
from caldera import data, nn, search
from caldera import dmath as dm
from caldera.errors import CalderaError
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.unit.search import made_up

SECONDS = 30
X = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)


class Kind(NamedTuple):
    """What is written to a folder, and what it says when it is loaded."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _model() -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((3,)), nn.Dense(4), nn.Dense(1)], loss="mse", seed=1)


def _fitted(**named: Any) -> cd.NeuralNetwork:
    model = _model()
    model.fit((X, X[:, :1]), epochs=1, verbose=0, **named)
    return model


def _read_model(folder: Path) -> object:
    found = cd.load(folder / "a.caldera")
    weights = {name: each.tolist() for name, each in cd.io.load_safetensors(_only(folder)).items()}
    return weights, repr(found), found.seed


def _only(folder: Path) -> Path:
    return next(folder.iterdir())


def _read_checkpoint(folder: Path) -> object:
    found = CheckpointFolder(folder).latest()
    assert found is not None
    return {name: each.tolist() for name, each in found.tensors.items()}, found.state, found.step


def _read_study(folder: Path) -> object:
    study = search.load(folder)
    notes = study.record.notes(), study.record.conditions()
    return [vars(trial) for trial in study.trials], notes


def _read_shards(folder: Path) -> object:
    found = data.Shards(folder)
    return [each.tolist() for each in found.raw_batch(np.arange(len(found)))], found.class_names


def _write_arrays(folder: Path) -> None:
    with dm.spmd():
        dm.save(folder, {"a": dm.array(X), "b": dm.arange(5)})


def _read_arrays(folder: Path) -> object:
    with dm.spmd():
        return {name: each.numpy().tolist() for name, each in dm.load(folder).items()}


KINDS: Mapping[str, Kind] = {
    "model": Kind(lambda folder: _fitted().save(folder / "a.caldera"), _read_model),
    "checkpoint": Kind(lambda folder: _fitted(checkpoint=folder), _read_checkpoint),
    "study": Kind(lambda folder: made_up.study(trials=6, folder=folder), _read_study),
    "shards": Kind(lambda f: data.write_shards(f, (X, X[:, 0]), shard_bytes=100), _read_shards),
    "arrays": Kind(_write_arrays, _read_arrays),
}


def damaged(content: bytes, draw: Random) -> bytes:
    """The content with a bit flipped, a few bytes changed, a part cut off, left out or doubled."""
    changed = bytearray(content)
    place = draw.randrange(max(len(content), 1))
    kind = draw.random()
    if kind < 0.6 and content:
        changed[place] ^= 1 << draw.randrange(8)
    elif kind < 0.7 and content:
        for _ in range(4):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    elif kind < 0.85:
        del changed[place:]
    elif kind < 0.95:
        del changed[place : place + draw.randrange(1, 40)]
    else:
        changed[place:place] = changed[place : place + draw.randrange(1, 40)]
    return bytes(changed)


def _late(number: int, frame: object) -> None:
    raise TimeoutError(f"{SECONDS} s")


def outcomes(name: str, count: int, seed: int, folder: Path) -> Counter[str]:
    """Damage what one kind writes, `count` times; the number of each outcome.

    "silent" is what differs from what was written, or lost its end without a word.
    """
    kind, draw = KINDS[name], Random(seed)
    given = folder / "given"
    given.mkdir()
    kind.write(given)
    expected = repr(kind.read(given))
    files = sorted(path.relative_to(given) for path in given.rglob("*") if path.is_file())
    files = [path for path in files if not path.name.endswith((".lock", ".html", ".svg"))]
    found: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _late)
    for number in range(count):
        copy = folder / "copy"
        shutil.copytree(given, copy)
        path = copy / draw.choice(files)
        content = damaged(path.read_bytes(), draw)
        path.write_bytes(content)
        signal.alarm(SECONDS)
        try:
            said = repr(kind.read(copy))
        except CalderaError:
            outcome = "refused"
        except Exception as error:
            outcome = f"raw {type(error).__name__}: {error}"[:100]
        else:
            torn = name == "study" and (given / path.relative_to(copy)).read_bytes().startswith(
                content
            )
            outcome = "equal" if said == expected else "torn end" if torn else "silent"
        signal.alarm(0)
        if outcome not in ("refused", "equal", "torn end"):
            print(f"{name}, seed {seed}, number {number}, {path.name}: {outcome}", file=sys.stderr)
        found[outcome] += 1
        shutil.rmtree(copy)
    return found


def main() -> int:
    """Damage files of all kinds, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    bad = 0
    for name in given.kind or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found = outcomes(name, given.count, given.seed, Path(folder))
        print(name, dict(found))
        bad += sum(found.values()) - sum(found[each] for each in ("refused", "equal", "torn end"))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
