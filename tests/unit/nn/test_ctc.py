"""CTC as a loss of models: targets, what is refused, error rates, training, files."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError, DataError
from caldera.nn.metrics import CharacterErrorRate, WordErrorRate, edit_distance


def _rate(metric: nn.metrics.Metric, frames: np.ndarray, targets: np.ndarray) -> float:
    sums = metric.sums(cd.tensor(frames), cd.tensor(targets))
    return float(metric.result({name: value.numpy() for name, value in sums.items()}))


def _said(row: np.ndarray) -> list[int]:
    return [int(each) for each, _ in groupby(row) if each != 0]


def _split(labels: list[int]) -> list[str]:
    return "".join(chr(96 + each) for each in labels).replace("a", " ").split()


def test_error_rates_are_edits_over_what_was_wanted() -> None:
    draws = np.random.default_rng(3)
    best = draws.integers(0, 4, (40, 9))
    targets = draws.integers(1, 4, (40, 6))
    for row, count in zip(targets, draws.integers(1, 7, 40), strict=True):
        row[count:] = -1
    frames = np.eye(4, dtype=np.float32)[best]
    pairs = [(_said(a), [int(x) for x in b if x >= 0]) for a, b in zip(best, targets, strict=True)]
    edits = sum(edit_distance(a, b) for a, b in pairs)
    assert _rate(CharacterErrorRate(), frames, targets) == edits / sum(len(b) for _, b in pairs)
    words = [(_split(a), _split(b)) for a, b in pairs]
    edits = sum(edit_distance(a, b) for a, b in words)
    assert _rate(WordErrorRate(1), frames, targets) == edits / sum(len(b) for _, b in words)


def _sequences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Three labels in 12 noisy frames, each for a few of them."""
    draws = np.random.default_rng(0)
    labels = draws.integers(1, 4, (count, 3))
    x = draws.normal(size=(count, 12, 4)) * 0.1
    for row, label in zip(x, labels, strict=True):
        for place, each in enumerate(label):
            start = 4 * place + draws.integers(0, 2)
            row[start : start + 2, each] += 1
    return x.astype(np.float32), labels


def test_fit_learns_and_a_file_keeps_the_loss(tmp_path: Path) -> None:
    x, labels = _sequences(128)
    padded = np.pad(labels, ((0, 0), (0, 1)), constant_values=-1)
    model = cd.NeuralNetwork(
        [nn.Input((12, 4)), nn.Dense(16), nn.ReLU(), nn.Dense(4)],
        loss="ctc", optimizer="adam", learning_rate=0.03, batch_size=32, epochs=12, seed=1,
    )  # fmt: skip
    history = model.fit((x, padded), verbose=0)
    assert history["cer"][-1] < 0.05 < history["cer"][0]
    again = cd.load(model.save(tmp_path / "ctc.caldera"))
    assert again.loss == nn.CTCLoss(labels=4)
    assert again.evaluate((x, padded))["cer"] == model.evaluate((x, padded))["cer"]


def test_targets_that_cannot_be_are_told_before_the_first_step() -> None:
    x = np.zeros((4, 3, 3), np.float32)

    def fit(y: list[list[int]], **options: object) -> None:
        layers = [nn.Input((3, 3)), nn.Dense(3)]
        model = cd.NeuralNetwork(layers, loss=nn.CTCLoss(**options), batch_size=4, epochs=1)
        model.fit((x, np.array(y)), verbose=0)

    with pytest.raises(DataError, match="need 4"):
        fit([[1, 1, 2], [1, 1, 1], [1, 2, 1], [2, 1, 2]][:1] * 4)
    with pytest.raises(DataError, match="labels below 3"):
        fit([[1, 3]] * 4)
    with pytest.raises(DataError, match="labels that are not the blank, 0"):
        fit([[1, 0]] * 4)
    with pytest.raises(DataError, match=r"\[-1, 2\] in sample 2"):
        fit([[1, 2], [1, -1], [-1, 2], [1, 2]])
    fit([[1, 1, 1]] * 2 + [[1, 2, 1]] * 2, zero_infinity=True)


def test_metrics_and_losses_that_do_not_fit() -> None:
    layers = [nn.Input((3, 3)), nn.Dense(3)]
    with pytest.raises(ConfigError, match="sequences"):
        cd.NeuralNetwork(layers, loss="ctc", metrics=["accuracy"]).fit(
            (np.zeros((2, 3, 3), np.float32), np.ones((2, 1), np.int64)), verbose=0
        )
    with pytest.raises(ConfigError, match="a loss of sequences"):
        CharacterErrorRate().for_task(nn.losses.CrossEntropy().task())
    with pytest.raises(ConfigError, match=r"nn.CTCLoss\(labels="):
        nn.CTCLoss().target_spec((2, 3, 3))


def test_the_blank_may_be_any_class() -> None:
    frames = np.eye(3, dtype=np.float32)[[[0, 2, 0, 1]]]
    metric = CharacterErrorRate().for_task(nn.CTCLoss(blank=2).task())
    assert _rate(metric, frames, np.array([[0, 0, 1]])) == 0
    loss = nn.CTCLoss(blank=2)(cd.tensor(frames * 100), cd.tensor([[0, 0, 1]]))
    assert op.abs(loss).item() < 1e-6
