"""What a user waits for first: import, help, and the first training from an empty and a warm cache.

Each line is a process of its own; processes take turns, `--rounds` times. The table has medians of
wall and processor seconds of the whole process, of the import and of the first `fit` (one epoch of
20-64-2 on 500 samples, one step of ResNet-20 on 128 images), with an empty cache and a warm one.

    python benchmarks/training/first_second.py
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
from pathlib import Path

TASKS = ("import", "help", "MLP 20-64-2", "ResNet-20")


def first_fit(task: str) -> None:
    """Import Caldera and train once; print the seconds of both as JSON."""
    start, cpu = time.perf_counter(), time.process_time()
    import caldera as cd

    imported = time.perf_counter() - start, time.process_time() - cpu
    import numpy as np

    from caldera import nn

    random = np.random.default_rng(0)
    if task == "ResNet-20":
        x = random.normal(size=(128, 3, 32, 32)).astype("float32")
        y = random.integers(0, 10, 128)
        layers, batch = nn.models.resnet20(input_shape=(3, 32, 32), classes=10), 128
    else:
        x = random.normal(size=(500, 20)).astype("float32")
        y = (x[:, 0] > 0).astype(int)
        layers = [nn.Input((20,)), nn.Dense(64, activation="relu"), nn.Dense(2)]
        batch = 32
    start, cpu = time.perf_counter(), time.process_time()
    if task != "import":
        model = cd.NeuralNetwork(layers, learning_rate=0.01, batch_size=batch, seed=1)
        model.fit((x, y), epochs=1, verbose=0)
    fitted = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"import": imported, "fit": fitted}))


def measured(task: str, cache: Path) -> dict[str, tuple[float, float]]:
    """Return wall and processor seconds of a process and of its parts."""
    command = [sys.executable, __file__, "--task", task]
    if task == "help":
        command = [sys.executable, "-m", "caldera", "--help"]
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | {"CALDERA_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    found = {"process": (wall, cpu - before.children_user - before.children_system)}
    if task != "help":
        parts = json.loads(done.stdout.splitlines()[-1])
        found |= {name: (each[0], each[1]) for name, each in parts.items()}
    return found


def main() -> None:
    """Take turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, without ResNet-20")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        first_fit(options.task)
        return
    tasks = TASKS[:-1] if options.quick else TASKS
    rows: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    load = os.getloadavg()[0]
    for _ in range(1 if options.quick else options.rounds):
        for task in tasks:
            with tempfile.TemporaryDirectory() as folder:
                for state in ("empty", "warm") if task in TASKS[2:] else ("-",):
                    for part, seconds in measured(task, Path(folder)).items():
                        rows[task, state, part].append(seconds)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {load:.1f} at the start\n\n| task | cache | part | seconds | processor seconds |\n"
        "|---|---|---|---|---|"
    )
    for (task, state, part), times in rows.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {task} | {state} | {part} | {wall:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
