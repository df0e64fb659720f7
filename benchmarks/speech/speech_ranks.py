"""Speech on four ranks: dense sums, 1-bit SGD, top-k and block momentum, side by side.

    python benchmarks/speech/speech_ranks.py FOLDER [--out FILE.md]

FOLDER is what `benchmarks/speech/speech_data.py` made. A small TDNN learns the digits of synthetic
speakers in noise louder than they are (-8 dB: without noise nothing is ever wrong), and is tested
with other speakers, for several seeds. Each way starts from the same weights with the same batches
and runs as four processes under mpiexec with one thread each; what a rank has sent is counted by
its communicator. Each has the optimizer that suits it: what a compressor sends late acts like
momentum, so there is no other (dense sums are shown with both), and block momentum is that of the
common model. Each way is given the learning rate and the weight decay, out of several, with which
it is wrong the least with speakers held out of training and test, and only then tested: a rate or a
decay that was chosen for one way is no fair one for another.
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
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import caldera as cd
from caldera import audio, optim, parallel
from caldera.comm import world
from caldera.comm.supervision import launch
from caldera.compress import OneBit, TopK

RATE, SECONDS, BINS, SNR = 8000, 1.0, 24, -8.0
UNITS, OFFSETS = 64, ((-2, -1, 0, 1, 2), (-2, 0, 2), (-3, 0, 3))
RANKS, BATCH = 4, 64


class Way(NamedTuple):
    """A strategy, the learning rates to choose from, its momentum, and for how many epochs sums are
    dense before it."""

    strategy: Callable[[], Any]
    rates: tuple[float, ...]
    momentum: float = 0.0
    dense: int = 0


RATES = (0.3, 0.6)
RATES_WITH_MOMENTUM = (0.1, 0.2)
DECAYS = (0.0, 0.01, 0.03, 0.1)
"""Of weights: what is chosen from. The learning rate falls along half a cosine."""


def compressed(compressor: Callable[[], Any]) -> Callable[[], Any]:
    """Data parallelism whose sums are compressed."""
    return lambda: parallel.DataParallel(compression=compressor())


WAYS: dict[str, Way] = {
    "dense, momentum 0.9": Way(parallel.DataParallel, RATES_WITH_MOMENTUM, 0.9),
    "dense, no momentum": Way(parallel.DataParallel, RATES),
    "1-bit SGD, means of 512": Way(compressed(OneBit), RATES),
    "1-bit SGD after 6 dense epochs": Way(compressed(OneBit), (0.3,), dense=6),
    "1-bit SGD, means of 64": Way(compressed(lambda: OneBit(bucket=64)), RATES),
    "top-k, 1%": Way(compressed(lambda: TopK(0.01)), (*RATES, 0.8)),
    "top-k, 5%": Way(compressed(lambda: TopK(0.05)), RATES),
    "top 8 of 512, 4 bits": Way(compressed(lambda: TopK(8, block=512, bits=4)), RATES),
    "means every 8 steps": Way(
        lambda: parallel.LocalSGD(8, state="keep"), RATES_WITH_MOMENTUM, 0.9
    ),
    "block momentum 0.75, every 8": Way(
        lambda: parallel.LocalSGD(8, state="keep", momentum=0.75), RATES_WITH_MOMENTUM, 0.6
    ),
}


def features(part: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Filter banks of what was said in noise, a frame every 20 ms; and the words."""
    draws = np.random.default_rng(seed)
    noisy = [
        audio.add_noise(each, draws.normal(size=each.shape), snr=SNR) for each in np.asarray(part.x)
    ]
    x = np.stack(noisy).astype(np.float32)
    banks = audio.fbank(cd.tensor(x * 32768), RATE, BINS, frame_shift=0.020)
    return audio.normalise(banks).numpy(), np.asarray(part.y)


def learnt(
    way: str, data: dict[str, np.ndarray], seed: int, epochs: int, rate: float, decay: float
) -> dict[str, Any]:
    """One run on all ranks."""
    make_strategy, _, momentum, dense = WAYS[way]
    x, y = data["x"], data["y"]
    layers = audio.models.tdnn(
        x.shape[1:], int(y.max()) + 1, units=UNITS, offsets=OFFSETS, pooled=True
    )
    steps = epochs * -(-len(x) // BATCH)
    schedule = optim.Cosine(rate, steps)
    optimizer = optim.SGD(schedule, momentum=momentum, weight_decay=decay)
    model = cd.NeuralNetwork(
        layers, optimizer=optimizer, batch_size=BATCH, epochs=epochs, seed=seed
    )
    sent, began = 0, time.process_time()
    # Steps, batches and the falling rate go on from one call to the next.
    for make, count in ((parallel.DataParallel, dense), (make_strategy, epochs - dense)):
        if count:
            strategy = make()
            model.fit((x, y), epochs=count, parallel=strategy, verbose=0)
            counts = strategy.plan_communicator.traffic.mark()
            sent += counts.total.bytes_sent - counts["tuning"].bytes_sent
    seconds = world().gather_objects(time.process_time() - began)
    loss = model.evaluate((x, y))["loss"]
    wrong = {
        part: float((model.predict(data[f"{part}_x"]).argmax(1) != data[f"{part}_y"]).mean())
        for part in ("held", "test")
    }
    return {
        "way": way,
        "seed": seed,
        "rate": rate,
        "decay": decay,
        "held": wrong["held"],
        "wrong": wrong["test"],
        "loss": loss,
        "bytes_a_step": sent / steps,
        "cpu_seconds": sum(seconds),
        "steps": steps,
        "parameters": sum(each.numpy().size for each in model.parameters()),
    }


def work(given: argparse.Namespace) -> None:
    """What one rank does; rank 0 prints a line for each run."""
    with np.load(given.folder) as file:
        data = dict(file)
    for seed, way in product(range(given.seeds), given.only):
        for rate, decay in product(WAYS[way].rates, given.weight_decay):
            found = learnt(way, data, seed, given.epochs, rate, decay)
            if world().rank == 0:
                print(json.dumps(found), flush=True)


def report(runs: list[dict[str, Any]], samples: list[int], given: argparse.Namespace) -> str:
    """What was found, as Markdown: errors of the test are those with the rate and the decay that
    were chosen."""
    first = runs[0]
    seeds = 1 + max(run["seed"] for run in runs)
    decays = ", ".join(f"{each:g}" for each in given.weight_decay)
    lines = [
        f"# Speech on {RANKS} ranks ({platform.machine()})",
        "",
        "`python benchmarks/speech/speech_data.py DATA && "
        "python benchmarks/speech/speech_ranks.py DATA`",
        "",
        f"Ten digits in noise of {SNR:g} dB, {samples[0]} recordings to train, {samples[1]} by "
        f"other speakers to choose the rate and the weight decay by (out of {decays}), "
        f"{samples[2]} by others still to test; TDNN of {first['parameters']:,} parameters, a "
        f"batch of {BATCH} in all, SGD, {given.epochs} epochs, {first['steps']} steps; {RANKS} "
        f"processes of one thread; {seeds} seeds. Bytes are those that a rank sends in a step.",
        "",
        "| | held out, % wrong, by decay | chosen | test, % wrong (seeds) | mean ± its error "
        "| training loss | bytes a step | CPU-s of all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in given.only:
        grid = list(product(WAYS[way].rates, given.weight_decay))
        of = {
            each: [run for run in runs if (run["way"], run["rate"], run["decay"]) == (way, *each)]
            for each in grid
        }
        held = {each: 100 * np.mean([run["held"] for run in own]) for each, own in of.items()}
        chosen = min(held, key=held.__getitem__)
        by_rate = "; ".join(
            f"{rate:g}: " + ", ".join(f"{held[rate, decay]:.2f}" for decay in given.weight_decay)
            for rate in WAYS[way].rates
        )
        own = of[chosen]
        wrong = 100 * np.array([run["wrong"] for run in own])
        sent = np.mean([run["bytes_a_step"] for run in own])
        spread = wrong.std(ddof=1) / np.sqrt(len(wrong)) if len(wrong) > 1 else float("nan")
        lines.append(
            f"| {way} | {by_rate} | {chosen[0]:g}, {chosen[1]:g} "
            f"| {', '.join(f'{each:.1f}' for each in wrong)} | {wrong.mean():.2f} ± {spread:.2f} "
            f"| {np.mean([run['loss'] for run in own]):.3f} | {sent:,.0f} "
            f"| {np.mean([run['cpu_seconds'] for run in own]):.1f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Make features, start the ranks, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--weight-decay", type=float, nargs="+", default=DECAYS)
    parser.add_argument("--only", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", type=Path, help="FILE.md, beside which FILE.json has every run")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    voices = audio.speech_commands(given.folder / "voices", rate=RATE, seconds=SECONDS)
    assert voices.validation is not None
    parts = {"": voices.train, "test_": voices.test, "held_": voices.validation}
    arrays: dict[str, np.ndarray] = {}
    for seed, (name, part) in enumerate(parts.items()):
        arrays[f"{name}x"], arrays[f"{name}y"] = features(part, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npz"
        np.savez(path, **arrays)
        words = [
            __file__,
            str(path),
            "--worker",
            "--seeds",
            str(given.seeds),
            "--epochs",
            str(given.epochs),
            "--only",
            *given.only,
            "--weight-decay",
            *map(str, given.weight_decay),
        ]
        environment = {**os.environ, "CALDERA_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        job = launch(RANKS, words, environment=environment)
        runs = []
        with subprocess.Popen(
            job.command, env=job.environment, text=True, stdout=subprocess.PIPE
        ) as ranks:
            assert ranks.stdout is not None
            for line in ranks.stdout:
                print(line, end="", file=sys.stderr, flush=True)
                runs += [json.loads(line)] if line.startswith("{") else []
    if ranks.returncode:
        raise SystemExit(f"{RANKS} ranks ended with status {ranks.returncode}")
    text = report(runs, [len(arrays[f"{part}y"]) for part in ("", "held_", "test_")], given)
    print(text)
    if given.out is not None:
        given.out.write_text(text)
        text = json.dumps({"trained": runs}, indent=1)
        given.out.with_suffix(".json").write_text(text + "\n")


if __name__ == "__main__":
    main()
