"""Speech on four ranks: dense sums, 1-bit SGD, top-k and block momentum, side by side.

    python benchmarks/speech_ranks.py FOLDER [--out FILE.md]

FOLDER is what `benchmarks/speech_data.py` made. A small TDNN learns the digits of synthetic
speakers in noise louder than they are (-8 dB: without noise nothing is ever wrong), and is tested
with other speakers, for several seeds. Each way starts from the same weights with the same batches
and runs as four processes under mpiexec with one thread each; what a rank has sent is counted by
its communicator. Each has the optimizer that suits it: what a compressor sends late acts like
momentum, so there is no other and the rate is higher (dense sums are shown with both), and block
momentum is that of the common model. All have the same weight decay: without it, 1-bit SGD fits the
training set better than dense sums do, and the test speakers worse.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import audio, optim, parallel
from caldera.comm import world
from caldera.comm.launch import launch
from caldera.compress import OneBit, TopK

RATE, SECONDS, BINS, SNR = 8000, 1.0, 24, -8.0
UNITS, OFFSETS = 64, ((-2, -1, 0, 1, 2), (-2, 0, 2), (-3, 0, 3))
RANKS, BATCH = 4, 64
Way = tuple[Callable[[], Any], tuple[float, float]]
WITH, WITHOUT = (0.1, 0.9), (0.3, 0.0)
"""Learning rates with their momentum. The rate falls along half a cosine."""
WEIGHT_DECAY = 0.03


def compressed(compressor: Callable[[], Any]) -> Callable[[], Any]:
    """Data parallelism whose sums are compressed."""
    return lambda: parallel.DataParallel(compression=compressor())


WAYS: dict[str, Way] = {
    "dense, momentum 0.9": (parallel.DataParallel, WITH),
    "dense, no momentum": (parallel.DataParallel, WITHOUT),
    "1-bit SGD, means of 512": (compressed(OneBit), (0.6, 0.0)),
    "1-bit SGD, means of 64": (compressed(lambda: OneBit(bucket=64)), (0.6, 0.0)),
    "top-k, 1%": (compressed(lambda: TopK(0.01)), (0.8, 0.0)),
    "top 8 of 512, 4 bits": (compressed(lambda: TopK(8, block=512, bits=4)), WITHOUT),
    "means every 8 steps": (lambda: parallel.LocalSGD(8, state="keep"), WITH),
    "block momentum 0.75, every 8": (
        lambda: parallel.LocalSGD(8, state="keep", momentum=0.75), (0.1, 0.6),
    ),
}  # fmt: skip


def features(part: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Filter banks of what was said in noise, a frame every 20 ms; and the words."""
    draws = np.random.default_rng(seed)
    noisy = [
        audio.add_noise(each, draws.normal(size=each.shape), snr=SNR) for each in np.asarray(part.x)
    ]
    x = np.stack(noisy).astype(np.float32)
    banks = audio.fbank(cd.tensor(x * 32768), RATE, BINS, frame_shift=0.020)
    return audio.normalise(banks).numpy(), np.asarray(part.y)


def learnt(way: str, data: dict[str, np.ndarray], seed: int, epochs: int) -> dict[str, Any]:
    """One run on all ranks."""
    make_strategy, (rate, momentum) = WAYS[way]
    x, y = data["x"], data["y"]
    layers = audio.models.tdnn(x.shape[1:], int(y.max()) + 1, units=UNITS, offsets=OFFSETS,
                               pooled=True)  # fmt: skip
    steps = epochs * -(-len(x) // BATCH)
    schedule = optim.Cosine(rate, steps)
    optimizer = optim.SGD(schedule, momentum=momentum, weight_decay=data["weight_decay"].item())
    model = cd.NeuralNetwork(
        layers, optimizer=optimizer, batch_size=BATCH, epochs=epochs, seed=seed
    )
    strategy = make_strategy()
    began = time.process_time()
    model.fit((x, y), parallel=strategy, verbose=0)
    counts = strategy.plan_communicator.traffic.mark()
    sent = counts.total.bytes_sent - counts["tuning"].bytes_sent
    seconds = strategy.communicator.gather_objects(time.process_time() - began)
    loss = model.evaluate((x, y))["loss"]
    wrong = float((model.predict(data["test_x"]).argmax(1) != data["test_y"]).mean())
    return {"way": way, "seed": seed, "wrong": wrong, "loss": loss, "bytes_a_step": sent / steps,
            "cpu_seconds": sum(seconds), "steps": steps,
            "parameters": sum(each.numpy().size for each in model.parameters())}  # fmt: skip


def work(path: str, seeds: int, epochs: int, ways: list[str]) -> None:
    """What one rank does; rank 0 prints a line for each run."""
    with np.load(path) as file:
        data = dict(file)
    for seed in range(seeds):
        for way in ways:
            found = learnt(way, data, seed, epochs)
            if world().rank == 0:
                print(json.dumps(found), flush=True)


def report(runs: list[dict[str, Any]], samples: tuple[int, int], given: argparse.Namespace) -> str:
    """What was found, as Markdown."""
    first = runs[0]
    seeds = 1 + max(run["seed"] for run in runs)
    lines = [
        f"# Speech on {RANKS} ranks ({platform.machine()})", "",
        "`python benchmarks/speech_data.py DATA && python benchmarks/speech_ranks.py DATA`", "",
        f"Ten digits in noise of {SNR:g} dB, {samples[0]} recordings to train, {samples[1]} by "
        f"other speakers to test; TDNN of {first['parameters']:,} parameters, a batch of "
        f"{BATCH} in all, SGD with a weight decay of {given.weight_decay:g}, "
        f"{given.epochs} epochs, {first['steps']} steps; {RANKS} "
        f"processes of one thread; {seeds} seeds. Bytes are those that a rank sends in a step.", "",
        "| | wrong, % (seeds) | mean ± its error | training loss | bytes a step | CPU-s of all |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for way in given.only:
        own = [run for run in runs if run["way"] == way]
        wrong = 100 * np.array([run["wrong"] for run in own])
        sent = np.mean([run["bytes_a_step"] for run in own])
        spread = wrong.std(ddof=1) / np.sqrt(len(wrong)) if len(wrong) > 1 else float("nan")
        lines.append(
            f"| {way} | {', '.join(f'{each:.1f}' for each in wrong)} | {wrong.mean():.2f} ± "
            f"{spread:.2f} | {np.mean([run['loss'] for run in own]):.3f} | {sent:,.0f} | "
            f"{np.mean([run['cpu_seconds'] for run in own]):.1f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Make features, start the ranks, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--weight-decay", type=float, default=WEIGHT_DECAY)
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(str(given.folder), given.seeds, given.epochs, given.only)
        return
    voices = audio.speech_commands(given.folder / "voices", rate=RATE, seconds=SECONDS)
    (x, y), (test_x, test_y) = features(voices.train, 0), features(voices.test, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npz"
        np.savez(path, x=x, y=y, test_x=test_x, test_y=test_y, weight_decay=given.weight_decay)
        words = [__file__, str(path), "--worker", "--seeds", str(given.seeds),
                 "--epochs", str(given.epochs), "--only", *given.only]  # fmt: skip
        environment = {**os.environ, "CALDERA_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        job = launch(RANKS, words, environment=environment)
        printed = subprocess.run(job.command, env=job.environment, text=True, check=True,
                                 stdout=subprocess.PIPE).stdout  # fmt: skip
    print(printed, file=sys.stderr)
    runs = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    text = report(runs, (len(x), len(test_x)), given)
    print(text)
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
