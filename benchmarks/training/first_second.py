"""Seconds before a first result: import, help, and training from an empty and a warm cache.

Each line is a process of its own; processes take turns, `--rounds` times. The table has medians of
wall and processor seconds of the whole process and of its parts:

- `import`: `import caldera`, or `import torch`,
- `import of packages`: `from caldera import nn, optim`,
- `first fit`: the model and its training, one epoch of 20-64-2 on 500 samples, or one step of
  ResNet-20 on 128 images,
- `later step`: a step of the epochs after it, the fastest of seven epochs.

Rows that miss their aim come first.

    python benchmarks/training/first_second.py --torch-python venv/bin/python
    python benchmarks/training/first_second.py --quick
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

MLP, RESNET = "MLP 20-64-2", "ResNet-20"
TASKS = ("import", "help", MLP, RESNET)
AIMS = {
    ("import", "-", "import"): 0.4,
    ("help", "-", "process"): 0.6,
    (MLP, "empty", "first fit"): 1.2,
    (MLP, "warm", "first fit"): 0.25,
    (RESNET, "empty", "first fit"): 4.0,
}
"""Seconds on two quiet cores."""
FITS = (MLP, RESNET)
EPOCHS = 7


class Parts:
    """Wall and processor seconds of the parts of this process."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, float]] = {}
        self.skip()

    def skip(self) -> None:
        """Leave the time since the last part out."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def note(self, name: str, count: int = 1) -> None:
        """End a part of `count` steps; of several parts of this name the fastest counts."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.found[name] = min((wall / count, cpu / count), self.found.get(name, (1e9, 1e9)))
        self.skip()


def first_fit(task: str) -> Parts:
    """Import Caldera and train."""
    parts = Parts()
    import caldera as cd

    parts.note("import")
    from caldera import nn, optim

    parts.note("import of packages")
    import numpy as np

    if task == "import":
        return parts
    random = np.random.default_rng(0)
    if task == RESNET:
        x = random.normal(size=(128, 3, 32, 32)).astype("float32")
        y = random.integers(0, 10, 128)
        batch = 128
    else:
        x = random.normal(size=(500, 20)).astype("float32")
        y = (x[:, 0] > 0).astype(int)
        batch = 32
    parts.skip()
    if task == RESNET:
        layers = nn.models.resnet20(input_shape=(3, 32, 32), classes=10)
    else:
        layers = [nn.Input((20,)), nn.Dense(64, activation="relu"), nn.Dense(2)]
    steps = -(-len(x) // batch)
    model = cd.NeuralNetwork(layers, optimizer=optim.Adam(1e-3), batch_size=batch, seed=1)
    model.fit((x, y), epochs=1, verbose=0)
    parts.note("first fit")
    for _ in range(EPOCHS):
        model.fit((x, y), epochs=1, verbose=0)
        parts.note("later step", steps)
    return parts


def measured(command: list[str], environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return wall and processor seconds of a process and of its parts."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    found = {"process": (wall, cpu - before.children_user - before.children_system)}
    if "--task" in command:
        parts = json.loads(done.stdout.splitlines()[-1])
        found |= {name: (each[0], each[1]) for name, each in parts.items()}
    return found


Rows = dict[tuple[str, str, str], list[tuple[float, float]]]


def one_round(tasks: tuple[str, ...], torch_python: str | None, rows: Rows) -> None:
    """Run every task once; `rows` receive the times."""
    for task in tasks:
        command = [sys.executable, __file__, "--task", task]
        if task == "help":
            command = [sys.executable, "-m", "caldera", "--help"]
        with tempfile.TemporaryDirectory() as folder:
            for state in ("empty", "warm") if task in FITS else ("-",):
                for part, times in measured(command, {"CALDERA_CACHE": folder}).items():
                    rows[task, state, part].append(times)
        if torch_python and task in FITS:
            worker = str(Path(__file__).with_name("first_second_torch.py"))
            for part, times in measured([torch_python, worker, "--task", task], {}).items():
                rows[f"PyTorch, {task}", "-", part].append(times)


def table(rows: Rows) -> list[str]:
    """Return the lines of the table, missed aims first."""
    lines: list[tuple[bool, str]] = []
    for key, times in rows.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        low, high = min(times)[0], max(times)[0]
        aim = AIMS.get(key)
        result = "" if aim is None else f"{aim} s: {'met' if wall <= aim else '**missed**'}"
        spread = f"{low:.3g} to {high:.3g}"
        line = f"| {' | '.join(key)} | {wall:.3g} | {spread} | {cpu:.3g} | {result} |"
        lines.append((aim is None or wall <= aim, line))
    return [line for _, line in sorted(lines, key=lambda each: each[0])]


def main() -> None:
    """Take turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, without ResNet-20")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--torch-python", help="Python that has PyTorch, to be measured as well")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(first_fit(options.task).found))
        return
    tasks = TASKS[:-1] if options.quick else TASKS
    rounds = 1 if options.quick else options.rounds
    rows: Rows = defaultdict(list)
    # Bytecode is written by the installation, or by the first process.
    measured([sys.executable, __file__, "--task", "import"], {})
    load = os.getloadavg()[0]
    for _ in range(rounds):
        one_round(tasks, options.torch_python, rows)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{datetime.now(UTC):%d %B %Y}, load {load:.1f} at the start and "
        f"{os.getloadavg()[0]:.1f} at the end, rounds: {rounds}\n\n"
        "| task | cache | part | seconds | fastest to slowest | processor seconds | aim |\n"
        "|---|---|---|--:|---|--:|---|"
    )
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
