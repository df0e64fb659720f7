"""`python -m tools.attack [WHAT ...]`: damage of which the tests have samples, in large numbers.

- kills: training that writes checkpoints is killed at random moments and resumed, again and again;
  what it ends with has to be the same, bit for bit, as without.
- bits: single bits of checkpoints are flipped, and every bit of a model file's header. What is read
  then has to be what was written, or refused.
- files: damaged files of every format that Caldera reads. Each is refused in words, or read.
- reports: folders of runs in which a file holds something else, among it what a browser would run.

A table is printed in Markdown. "silent" counts wrong contents that were read as if right, "raw"
exceptions that are none of Caldera's, "hung" what took longer than five seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn
from caldera.errors import CalderaError
from caldera.train.report import run_page
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.bad_calls.good_files import model, write_formats
from tests.bad_calls.outcome import Hung, alarm
from tests.bad_calls.test_files import damaged_files

Outcome = Counter[str]


def outcome_of(read: Callable[[], bool]) -> str:
    """What became of reading something damaged; `read` says whether it is what it had been."""
    try:
        with alarm():
            return "read" if read() else "silent"
    except CalderaError:
        return "refused"
    except Hung:
        return "hung"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        print(f"raw: {type(error).__name__}: {error} ({last})", file=sys.stderr)
        return "raw"


# --- kills


def _network() -> cd.NeuralNetwork:
    layers = [
        nn.Input((16,)),
        nn.Dense(32, activation="relu"),
        nn.Dropout(0.2),
        nn.BatchNorm(),
        nn.Dense(4),
    ]
    return cd.NeuralNetwork(layers, learning_rate=0.01, batch_size=16, seed=3)


def _train(folder: Path | None) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(480, 16)).astype("float32")
    network = _network()
    how: dict[str, Any] = {}
    if folder is not None:
        how = {"checkpoint": folder, "resume": True}
    network.fit((x, (x[:, 0] > 0) * 2 + (x[:, 1] > 0)), epochs=40, verbose=0, **how)
    return [each.numpy() for each in (*network.parameters(), *network.states())]


def _in_child(work: Callable[[], None]) -> int:
    """Run something in a copy of this process, which has imported all but started no thread."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0 if sys.exception() is None else 1)
    return child


def kills(count: int, root: Path, draw: random.Random) -> Outcome:
    """Kill and resume until `count` runs have been killed; each that ends is compared."""

    def reference() -> None:
        np.savez(root / "right.npz", *_train(None))

    def run() -> None:
        np.savez(root / "found.npz", *_train(root / "checkpoints"))

    begin = time.perf_counter()
    if os.waitstatus_to_exitcode(os.waitpid(_in_child(reference), 0)[1]):
        raise SystemExit("training failed without being killed")
    whole = time.perf_counter() - begin
    with np.load(root / "right.npz") as arrays:
        right = [arrays[name] for name in arrays]
    found: Outcome = Counter()
    while True:
        child = _in_child(run)
        if found["killed"] < count:
            time.sleep(draw.uniform(0.1, 0.6) * whole)
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                found["killed"] += 1
                continue
        else:
            status = os.waitpid(child, 0)[1]
        same = os.waitstatus_to_exitcode(status) == 0 and _same(right, root / "found.npz")
        found["ended with the same bits" if same else "silent"] += 1
        if found["killed"] >= count:
            return found
        shutil.rmtree(root / "checkpoints")


def _same(right: list[np.ndarray], path: Path) -> bool:
    with np.load(path) as arrays:
        found = [arrays[name] for name in arrays]
    path.unlink()
    return len(found) == len(right) and all(map(np.array_equal, found, right))


# --- bits


def _same_checkpoint(folder: Path, right: Any) -> bool:
    found = CheckpointFolder(folder).latest()
    if found is None:
        return True  # nothing is believed
    same = all(np.array_equal(found.tensors[name], a) for name, a in right.tensors.items())
    return found.step == right.step and found.state == right.state and same


def checkpoint_bits(count: int, root: Path, draw: random.Random) -> Outcome:
    """Flip single bits of the only checkpoint there is."""
    good = CheckpointFolder(root / "good")
    x = np.random.default_rng(0).normal(size=(50, 8))
    good.save(3, {"x": x, "y": x[0]}, {"step": 3, "name": "good", "rates": [0.5, 0.25]})
    good.wait()
    right = good.latest()
    files = [path for path in (root / "good").rglob("*") if path.is_file()]
    found: Outcome = Counter()
    for _ in range(count):
        shutil.rmtree(root / "bad", ignore_errors=True)
        shutil.copytree(root / "good", root / "bad")
        path = root / "bad" / draw.choice(files).relative_to(root / "good")
        _flip(path, draw.randrange(8 * path.stat().st_size))
        found[outcome_of(lambda: _same_checkpoint(root / "bad", right))] += 1
    return found


def _flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def header_bits(root: Path) -> Outcome:
    """Flip every bit of the header of a model file, one at a time."""
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    made = model()
    path = Path(made.save(root / "model.caldera"))
    good, right = path.read_bytes(), made.predict(x)
    length = 8 + int.from_bytes(good[:8], "little")
    found: Outcome = Counter()
    for bit in range(8 * length):
        path.write_bytes(good)
        _flip(path, bit)
        found[outcome_of(lambda: np.array_equal(cd.load(path).predict(x), right))] += 1
    return found


# --- files and reports


def files(count: int, root: Path, draw: random.Random) -> dict[str, Outcome]:
    """Damaged files of each format. Models and checkpoints have sums to check their contents by:
    what is read of them has to be what was written."""
    formats = write_formats(root)
    right = {name: form.read(form.folder) for name, form in formats.items() if name in _SAME}
    others = [path for form in formats.values() for path in form.files]
    found: dict[str, Outcome] = {}
    for name, form in formats.items():
        found[name] = Counter()
        for _ in range(count):
            how = damaged_files(form, others, root / "damaged", draw)
            found[name][
                outcome_of(
                    # Another valid file in its place is read as what it is.
                    lambda name=name, form=form, how=how: (
                        _SAME.get(name, lambda *_: True)(
                            form.read(root / "damaged"), right.get(name)
                        )
                        or " is " in how
                    )
                )
            ] += 1
    return found


_SAME: dict[str, Callable[[Any, Any], bool]] = {
    "model": lambda found, right: all(
        np.array_equal(a.numpy(), b.numpy())
        for a, b in zip(found.parameters(), right.parameters(), strict=True)
    ),
    "checkpoints": lambda found, right: (
        found is None or np.array_equal(found.tensors["x"], right.tensors["x"])
    ),
}

HOSTILE = (
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "../../../etc/passwd",
    "\0",
    "[" * 2000,
    "{}",
    "nan",
    "-1",
    "9" * 400,
    "\ud83d\ude00" * 50,
)


def reports(count: int, root: Path, draw: random.Random) -> Outcome:
    """Folders of runs in which names and numbers were replaced by what may be harmful."""
    folder = write_formats(root)["run"].folder
    texts = [path for path in folder.rglob("*") if path.suffix in (".json", ".csv", ".txt")]
    found: Outcome = Counter()
    for _ in range(count):
        shutil.rmtree(root / "bad", ignore_errors=True)
        shutil.copytree(folder, root / "bad")
        path = root / "bad" / draw.choice(texts).relative_to(folder)
        content = path.read_text()
        words = [word for word in content.replace('"', " ").split() if len(word) > 2]
        path.write_text(
            content.replace(draw.choice(words), draw.choice(HOSTILE), draw.choice((1, -1))),
            errors="surrogatepass",
        )

        def harmless() -> bool:
            page = str(run_page(cd.RunFolder(root / "bad")))
            return "<script>alert" not in page and "<img src=x" not in page

        found[outcome_of(harmless)] += 1
    return found


def main(arguments: list[str]) -> int:
    """Run what was asked for and print the tables; 1 if anything was silent, raw or hung."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["kills", "bits", "files", "reports"])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--bits", type=int, default=200)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--reports", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    draw = random.Random(given.seed)
    warnings.simplefilter("ignore")
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as name:
        folders = {each: Path(name) / each for each in ("kills", "bits", "files", "reports")}
        for each in given.what:
            folders[each].mkdir()
        if "kills" in given.what:
            found["training, killed and resumed"] = kills(given.kills, folders["kills"], draw)
        if "bits" in given.what:
            found["bits of a checkpoint"] = checkpoint_bits(given.bits, folders["bits"], draw)
            found["bits of a model's header"] = header_bits(folders["bits"])
        if "files" in given.what:
            for form, count in files(given.files, folders["files"], draw).items():
                found[f"files: {form}"] = count
        if "reports" in given.what:
            found["folders of runs"] = reports(given.reports, folders["reports"], draw)
    print("| what | found |\n|---|---|")
    for what, counts in found.items():
        print(f"| {what} | {', '.join(f'{n} {word}' for word, n in sorted(counts.items()))} |")
    return int(any(count[bad] for count in found.values() for bad in ("silent", "raw", "hung")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
