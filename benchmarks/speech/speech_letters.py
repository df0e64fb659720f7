"""Human recordings to train on: `python benchmarks/speech/speech_letters.py FOLDER [--out FILE]`.

FOLDER is what `speech_data.py` made. Fifteen human speakers of twelve languages say the
names of ten letters, each once. Three of them at a time are tested, and a network is trained with
the recordings of the other twelve (at five speeds, clean and in noise), with synthetic voices, or
with both; so no speaker of a test is ever trained on, and hardly one of their languages. The same
network from the same weights on the same batches is trained in PyTorch, the two taking turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import caldera as cd
from benchmarks.speech.speech import BATCH, BINS, RATE, Ours, Theirs
from caldera import audio

SECONDS, UNITS, FOLDS = 0.8, 64, 5
STEPS = 18
"""In an epoch, of whatever there is most of."""
SPEEDS = (0.8, 0.9, 1.0, 1.1, 1.25)
SETTINGS = {"humans": ("human",), "voices": ("voices",), "both": ("human", "voices")}


def trimmed(sound: np.ndarray) -> np.ndarray:
    """What is said, without the silence around it, at one loudness."""
    power = np.convolve(np.square(sound), np.ones(80) / 80, "same")
    loud = np.flatnonzero(power > 0.01 * power.max())
    part = sound[max(loud[0] - 400, 0) : loud[-1] + 800]
    return part / max(float(np.abs(part).max()), 1e-6) * 0.5


def recordings(folder: Path) -> list[tuple[str, int, np.ndarray]]:
    """(speaker, number of the letter, samples) of all files."""
    names = sorted(each.name for each in folder.iterdir())
    return [
        (
            path.name.split("_nohash_")[0],
            names.index(path.parent.name),
            trimmed(audio.read(path, RATE).samples),
        )
        for path in sorted(folder.glob("*/*"))
    ]


def features(sounds: list[np.ndarray]) -> np.ndarray:
    """Normalised filter banks, a frame every 20 ms; what is silent is a low noise."""
    x = np.random.default_rng(1).normal(0, 0.003, (len(sounds), round(RATE * SECONDS)))
    x = x.astype(np.float32)
    for row, sound in zip(x, sounds, strict=True):
        row[: len(sound)] += sound[: len(row)]
    banks = audio.fbank(cd.tensor(x * 32768), RATE, BINS, frame_shift=0.020)
    return audio.normalise(banks).numpy()


def augmented(
    given: list[tuple[str, int, np.ndarray]], speeds: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Each recording at several speeds, clean and in noise of 10 dB."""
    draws = np.random.default_rng(0)
    sounds, labels = [], []
    for _, label, sound in given:
        for speed in speeds:
            changed = audio.change_speed(sound, speed)
            noisy = audio.add_noise(changed, draws.normal(size=changed.shape), snr=10)
            sounds += [changed, noisy]
            labels += [label, label]
    return features(sounds), np.array(labels)


def trained(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    epochs: int,
    seed: int,
) -> tuple[list[int], list[list[float]]]:
    """How many of the test both have right, and CPU-seconds of their epochs."""
    x, y = train
    ours = Ours(x.shape[1], 10, seed, UNITS)
    theirs = Theirs([each.numpy() for each in ours.model.parameters()], 10, UNITS)
    seconds: list[list[float]] = []
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(x))
        order = order[: STEPS * BATCH]
        batch_x, batch_y = np.ascontiguousarray(x[order]), y[order]
        row = {}
        for each in (ours, theirs) if epoch % 2 else (theirs, ours):
            start = time.process_time()
            each.epoch(batch_x, batch_y)
            row[type(each)] = time.process_time() - start
        seconds.append([row[Ours], row[Theirs]])
    right = [round(each.accuracy(*test) * len(test[1])) for each in (ours, theirs)]
    return right, seconds


def report(found: dict[str, Any], pace: np.ndarray, epochs: int, count: int) -> str:
    """What was found, as Markdown."""
    lines = [
        f"# Names of letters, by humans ({platform.machine()})",
        "",
        "`python benchmarks/speech/speech_data.py DATA && "
        "python benchmarks/speech/speech_letters.py DATA`",
        "",
        f"Ten letters; {count} human recordings, each tested once by a network that was trained "
        f"without its speaker ({FOLDS} parts of three speakers); TDNN of {UNITS} units, {epochs} "
        f"times {STEPS} steps of Adam, batch {BATCH}. Guessing is right at 10%. PyTorch "
        f"{torch.__version__}.",
        "",
        "| trained with | right, Caldera | right, PyTorch |",
        "|---|---|---|",
    ]
    for name, pairs in found.items():
        ours, theirs = np.sum(pairs, axis=0)
        lines.append(f"| {name} | {ours} ({ours / count:.1%}) | {theirs} ({theirs / count:.1%}) |")
    lines += [
        "",
        f"Steps for each second of processor time, on one thread, best epochs: "
        f"Caldera {pace[0]:.1f}, PyTorch {pace[1]:.1f}, ratio {pace[0] / pace[1]:.2f}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Train, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("CALDERA_THREADS", "1")))
    humans = recordings(given.folder / "letters" / "human")
    voices = augmented(recordings(given.folder / "letters" / "voices"), (1.0,))
    speakers = sorted({speaker for speaker, _, _ in humans})
    found: dict[str, list[list[int]]] = {name: [] for name in SETTINGS}
    pace = np.zeros(2)
    for fold in range(FOLDS):
        tested = set(speakers[fold::FOLDS])
        test = [each for each in humans if each[0] in tested]
        test_pair = features([each[2] for each in test]), np.array([each[1] for each in test])
        own = augmented([each for each in humans if each[0] not in tested], SPEEDS)
        parts = {"human": own, "voices": voices}
        for name, used in SETTINGS.items():
            x, y = (np.concatenate([parts[part][i] for part in used]) for i in (0, 1))
            right, seconds = trained((x, y), test_pair, given.epochs, fold)
            found[name].append(right)
            pace = np.maximum(pace, STEPS / np.array(seconds[1:]).min(0))
            print(fold, name, right, len(test), flush=True)
    text = report(found, pace, given.epochs, len(humans))
    print(text)
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
