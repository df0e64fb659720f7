"""Spoken words beside PyTorch: `python benchmarks/speech/speech.py FOLDER [--out FILE.md]`.

FOLDER is what `speech_data.py` made. The same TDNN, from the same weights, on the same
features in the same batches, is trained by Caldera and by PyTorch. Reported are the accuracy on
synthetic speakers and on a human, none of whom was trained on, for a few seeds, and steps a second,
for which the two take turns. CTC alone is compared as well: the loss with its gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import caldera as cd
from caldera import audio, nn, op, optim
from caldera.bench.timing import Stopwatch, best_in_turns

RATE, SECONDS, BINS, UNITS, BATCH = 8000, 1.0, 40, 128, 64
OFFSETS = ((-2, -1, 0, 1, 2), (-2, 0, 2), (-3, 0, 3), (0,))
LEARNING_RATE = 1e-3


def features(x: np.ndarray) -> np.ndarray:
    """Kaldi's filter banks, normalised."""
    given = op.input("x", (len(x), x.shape[1]))
    return audio.normalise(audio.fbank(given * 32768.0, RATE, BINS)).eval(x=x).numpy()


def human_recordings(folder: Path, words: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The human's samples and what was said."""
    paths = sorted(folder.glob("*/*.wav"))
    x = np.zeros((len(paths), round(RATE * SECONDS)), np.float32)
    for row, path in zip(x, paths, strict=True):
        sound = audio.read(path, RATE).samples[: x.shape[1]]
        row[: len(sound)] = sound
    return x, np.array([words.index(path.parent.name) for path in paths])


class Torch(torch.nn.Module):
    """`audio.models.tdnn` in PyTorch."""

    def __init__(self, classes: int, units: int) -> None:
        super().__init__()
        widths = [BINS, *[units] * len(OFFSETS)]
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width * len(each), units)
            for width, each in zip(widths, OFFSETS, strict=False)
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(units) for _ in OFFSETS)
        self.head = torch.nn.Linear(2 * units, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x.shape[1] - 1
        for layer, norm, offsets in zip(self.layers, self.norms, OFFSETS, strict=True):
            places = [torch.arange(last + 1).add(each).clamp(0, last) for each in offsets]
            x = norm(torch.relu(layer(torch.cat([x[:, each] for each in places], dim=-1))))
        mean = x.mean(1)
        spread = torch.clamp(x.square().mean(1) - mean.square(), min=0)
        return self.head(torch.cat([mean, torch.sqrt(spread + 1e-5)], dim=-1))

    def take(self, parameters: list[np.ndarray]) -> None:
        """The weights of the other network: dense ones are (inputs, units) there."""
        own = [
            p
            for pair in zip(self.layers, self.norms, strict=True)
            for m in pair
            for p in (m.weight, m.bias)
        ]
        own += [self.head.weight, self.head.bias]
        with torch.no_grad():
            for mine, given in zip(own, parameters, strict=True):
                value = torch.tensor(given)
                mine.copy_(value if value.shape == mine.shape and value.ndim < 2 else value.T)


class Ours:
    """The network and its training step in Caldera."""

    def __init__(self, frames: int, classes: int, seed: int, units: int = UNITS) -> None:
        layers = audio.models.tdnn(
            (frames, BINS), classes, units=units, offsets=OFFSETS, pooled=True
        )
        self.model = cd.NeuralNetwork(
            layers, optimizer=optim.Adam(LEARNING_RATE), batch_size=BATCH, seed=seed
        )
        self.model.predict(np.zeros((1, frames, BINS), np.float32))

    def epoch(self, x: np.ndarray, y: np.ndarray) -> None:
        """One epoch in the order given."""
        self.model.fit((x, y), epochs=1, shuffle=False, verbose=0)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """The part that is right."""
        return float((self.model.predict(x).argmax(1) == y).mean())


class Theirs:
    """The same in PyTorch."""

    def __init__(self, parameters: list[np.ndarray], classes: int, units: int = UNITS) -> None:
        self.model = Torch(classes, units)
        self.model.take(parameters)
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATE)

    def epoch(self, x: np.ndarray, y: np.ndarray) -> None:
        """One epoch in the order given."""
        for start in range(0, len(x), BATCH):
            given = torch.from_numpy(x[start : start + BATCH])
            wanted = torch.from_numpy(y[start : start + BATCH])
            self.optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(self.model(given), wanted).backward()
            self.optimizer.step()

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """The part that is right."""
        with torch.no_grad():
            return float((self.model(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def train(data: dict[str, Any], epochs: int, seed: int) -> tuple[dict[str, Any], list[list[float]]]:
    """Both trained on the same batches: accuracies, and seconds of each epoch in turn."""
    x, y = data["train"]
    ours = Ours(x.shape[1], data["classes"], seed)
    theirs = Theirs([each.numpy() for each in ours.model.parameters()], data["classes"])
    seconds: list[list[float]] = []
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(x))
        order = order[: len(x) // BATCH * BATCH]
        batch_x, batch_y = np.ascontiguousarray(x[order]), y[order]
        row = []
        for each in (ours, theirs) if epoch % 2 else (theirs, ours):
            start = Stopwatch()
            each.epoch(batch_x, batch_y)
            row.append(start.wall)
        seconds.append(row if epoch % 2 else row[::-1])
    found = {
        name: (ours.accuracy(*data[name]), theirs.accuracy(*data[name]))
        for name in ("test", "human")
    }
    return found, seconds


def ctc(rounds: int = 7) -> list[tuple[str, float, float]]:
    """Seconds of the CTC loss with its gradient, ours and theirs, the best of turns."""
    rows = []
    for samples, frames, classes, labels in ((16, 200, 30, 30), (32, 400, 30, 60)):
        draws = np.random.default_rng(0)
        x = draws.normal(size=(samples, frames, classes)).astype(np.float32)
        wanted = draws.integers(1, classes, (samples, labels))
        given = op.input("x", x.shape)
        loss = op.ctc_loss(given, wanted, reduction="sum")
        plan = cd.compile([loss, op.grad(loss, given)])
        tensor, targets = torch.tensor(x, requires_grad=True), torch.tensor(wanted)
        lengths = torch.full((samples,), frames), torch.full((samples,), labels)

        def theirs(tensor: Any = tensor, targets: Any = targets, lengths: Any = lengths) -> Any:
            tensor.grad = None
            logarithms = torch.log_softmax(tensor, -1).transpose(0, 1)
            value = functional.ctc_loss(logarithms, targets, *lengths, reduction="sum")
            value.backward()
            return value

        def ours(plan: Any = plan, x: Any = x) -> Any:
            return plan.run({"x": x})[0].numpy()

        np.testing.assert_allclose(ours(), theirs().item(), rtol=1e-5)
        best = best_in_turns({"ours": ours, "theirs": theirs}, rounds)
        problem = f"{samples} x {frames} frames, {labels} labels"
        rows.append((problem, best["ours"], best["theirs"]))
    return rows


def report(data: dict[str, Any], runs: list[Any], epochs: int, rows: list[Any]) -> str:
    """What was found, as Markdown."""
    steps = len(data["train"][0]) // BATCH
    speeds = steps / np.array([row for _, seconds in runs for row in seconds[1:]])
    best, median = speeds.max(0), np.median(speeds, 0)
    lines = [
        f"# Spoken words ({platform.machine()}, {len(os.sched_getaffinity(0))} cores)",
        "",
        "`python benchmarks/speech/speech_data.py DATA && python benchmarks/speech/speech.py DATA`",
        "",
        f"Ten digits, {len(data['train'][0])} recordings by {data['speakers']} synthetic speakers "
        f"to train, {len(data['test'][0])} by others to test, {len(data['human'][0])} by a human; "
        f"TDNN of {data['parameters']:,} parameters on {BINS} filter banks, batch {BATCH}, Adam, "
        f"{epochs} epochs, from the same weights on the same batches; PyTorch {torch.__version__} "
        f"with {torch.get_num_threads()} threads. No speaker of a test was trained on.",
        "",
        "| seed | test, Caldera | test, PyTorch | human, Caldera | human, PyTorch |",
        "|---|---|---|---|---|",
    ]
    for seed, (found, _) in enumerate(runs):
        numbers = [*found["test"], *found["human"]]
        lines.append(f"| {seed} | " + " | ".join(f"{each:.1%}" for each in numbers) + " |")
    lines += [
        "",
        "Steps a second, epochs taking turns:",
        "",
        "| | Caldera | PyTorch | ratio |",
        "|---|---|---|---|",
        *(
            f"| {name} epoch | {one:.1f} | {other:.1f} | {one / other:.2f} |"
            for name, (one, other) in (("best", best), ("median", median))
        ),
        "",
        "CTC loss with its gradient, ms (the best of turns):",
        "",
        "| | Caldera | PyTorch | ratio |",
        "|---|---|---|---|",
    ]
    for name, mine, other in rows:
        lines.append(f"| {name} | {mine * 1e3:.2f} | {other * 1e3:.2f} | {other / mine:.2f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Train, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="FILE.md, beside which FILE.json has every sample")
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    voices = audio.speech_commands(arguments.folder / "voices", rate=RATE, seconds=SECONDS)
    human = human_recordings(arguments.folder / "human", voices.class_names)
    names = (arguments.folder / "voices").glob("*/*.wav")
    apart = set()
    for part in ("testing", "validation"):
        listed = (arguments.folder / "voices" / f"{part}_list.txt").read_text().split()
        apart |= {Path(each).name.split("_nohash_")[0] for each in listed}
    speakers = {path.name.split("_nohash_")[0] for path in names} - apart
    data: dict[str, Any] = {
        name: (features(part.x), np.asarray(part.y))
        for name, part in (("train", voices.train), ("test", voices.test))
    }
    data |= {"human": (features(human[0]), human[1]), "classes": voices.classes}
    layers = audio.models.tdnn(
        data["train"][0].shape[1:], voices.classes, units=UNITS, offsets=OFFSETS, pooled=True
    )
    data |= {"speakers": len(speakers), "parameters": nn.count_parameters(layers)}
    runs = [train(data, arguments.epochs, seed) for seed in range(arguments.seeds)]
    losses = ctc()
    text = report(data, runs, arguments.epochs, losses)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)
        samples = {
            "trained": [{"accuracies": found, "epoch_seconds": seconds} for found, seconds in runs],
            "ctc_seconds": losses,
        }
        arguments.out.with_suffix(".json").write_text(json.dumps(samples, indent=1) + "\n")


if __name__ == "__main__":
    main()
