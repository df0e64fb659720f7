"""CTC as a loss of models: targets, what is refused, error rates, training, files."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import audio, data, nn, op
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
        loss="ctc",
        optimizer="adam",
        learning_rate=0.03,
        batch_size=32,
        epochs=12,
        seed=1,
    )
    history = model.fit((x, padded), verbose=0)
    assert history["cer"][-1] < 0.05 < history["cer"][0]
    again = cd.load(model.save(tmp_path / "ctc.caldera"))
    assert again.loss == nn.CTCLoss(labels=4)
    assert again.evaluate((x, padded))["cer"] == model.evaluate((x, padded))["cer"]


def _padded(count: int) -> tuple[list[np.ndarray], list[list[int]]]:
    """Sequences of one to three labels, two frames for each, and as long as that takes."""
    draws = np.random.default_rng(0)
    labels = [draws.integers(1, 4, draws.integers(1, 4)).tolist() for _ in range(count)]
    frames = []
    for each in labels:
        x = draws.normal(size=(4 * len(each), 4)) * 0.1
        for place, label in enumerate(each):
            x[4 * place : 4 * place + 2, label] += 1
        frames.append(x.astype(np.float32))
    return frames, labels


def test_lengths_hide_what_the_network_says_behind_the_end() -> None:
    """Frames of padding are full of labels: with lengths nobody sees them."""
    frames, labels = _padded(48)
    x = np.full((48, 14, 4), 5.0, np.float32)
    for row, each in zip(x, frames, strict=True):
        row[: len(each)] = each
    targets = nn.ctc_targets(labels, [len(each) for each in frames])
    model = cd.NeuralNetwork(
        [nn.Input((14, 4)), nn.Dense(16), nn.ReLU(), nn.Dense(4)],
        loss=nn.CTCLoss(lengths=True),
        optimizer="adam",
        learning_rate=0.03,
        batch_size=16,
        epochs=20,
        seed=1,
    )
    model.fit((x, targets), verbose=0)
    assert model.loss == nn.CTCLoss(labels=3, lengths=True)
    found = model.evaluate((x, targets))
    assert found["cer"] < 0.05
    logits = model.predict(x)
    alone = [
        op.ctc_loss(logits[i : i + 1, : len(frames[i])], [labels[i]]).item() for i in range(48)
    ]
    assert found["loss"] == pytest.approx(np.mean(alone), rel=1e-4)
    assert audio.greedy(logits, lengths=targets[:, 0])[:9] == [
        _said(model.predict(x[i : i + 1])[0, : len(frames[i])].argmax(-1)) for i in range(9)
    ]


def test_sequences_of_different_lengths_train_in_buckets() -> None:
    frames, labels = _padded(24)
    targets = nn.ctc_targets(labels, [len(each) for each in frames])
    model = cd.NeuralNetwork(
        audio.models.blstm((12, 4), 4, units=6, depth=2)[1:],
        loss=nn.CTCLoss(lengths=True),
        optimizer="adam",
        learning_rate=0.03,
        batch_size=8,
        epochs=2,
        seed=1,
    )
    history = model.fit(data.RaggedData(frames, targets), verbose=0)
    assert history["loss"][-1] < history["loss"][0]
    # Padding to the longest changes nothing.
    one = data.RaggedData(frames, targets, buckets=[16])
    assert model.evaluate(one)["loss"] == pytest.approx(
        model.evaluate(data.RaggedData(frames, targets))["loss"], rel=1e-4
    )


# torch 2.13: ctc_loss(log_softmax(x, -1).transpose(0, 1), labels, frames, counts), float64, of
# logits sin(1.7 i) * 2; the last sample has not the frames for its labels.
TORCH = [2.4379929091, 5.8516235948, 0.0]


def test_losses_with_lengths_are_those_of_torch() -> None:
    x = np.sin(np.arange(3 * 6 * 4) * 1.7).reshape(3, 6, 4) * 2
    counts = np.array([3, 2, 3])
    targets = nn.ctc_targets([[1, 1, 3], [2, 3, 0], [1, 1, 2]], [6, 5, 3], counts)
    loss = nn.CTCLoss(lengths=True, zero_infinity=True)
    found = loss.per_sample(cd.tensor(x, dtype="float64") * 1.0, cd.tensor(targets)).numpy()
    np.testing.assert_allclose(found * counts, TORCH, rtol=1e-9)


@pytest.mark.parametrize(
    ("labels", "frames", "counts", "said"),
    [
        ([[1], [2]], [3], None, "input_lengths, 2 numbers from 0 on, one a sample, got 1"),
        ([[1]], [-3], None, "got -3"),
        ([[1]], [2.5], None, "input_lengths, a row of integers, got float64"),
        ([[1, 2]], [3], [3], "a length of at most 2, the labels of sample 0, got 3"),
        ([[[1]]], [3], None, "labels of sample 0, a row of integers"),
    ],
)
def test_lengths_that_cannot_be_are_told(
    labels: list[object], frames: list[float], counts: list[int] | None, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        nn.ctc_targets(labels, frames, counts)


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
    with pytest.raises(DataError, match=r"lengths from 0 to 3, .* got 4 in sample 1"):
        fit([[3, 1, 2], [4, 1, 2], [3, 1, 2], [3, 1, 2]], lengths=True)
    with pytest.raises(DataError, match="labels that fit into 1 frames, got labels of sample 2"):
        fit([[3, 1, 2], [3, 1, 2], [1, 1, 2], [3, 1, 2]], lengths=True)


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
