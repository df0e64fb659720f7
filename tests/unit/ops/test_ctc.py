"""CTC: PyTorch's numbers, lengths, labels that have no room or are none, certain frames."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError

LOGITS = np.sin(np.arange(2 * 6 * 4) * 1.7).reshape(2, 6, 4) * 2
LABELS, COUNTS, FRAMES = np.array([[1, 1, 3], [2, 3, 0]]), np.array([3, 2]), np.array([6, 5])
# torch 2.13: ctc_loss(log_softmax(x, -1).transpose(0, 1), labels, frames, counts), in float64.
TORCH = {"none": [2.4379929091, 5.8516235948], "mean": 1.8692380502, "sum": 8.2896165039}
TORCH_GRADIENT = [0.0341160126, -0.0511866298, 0.0028088741, 0.0142617431]


def _loss(**options: object) -> op.Expr:
    x = op.var("x", LOGITS.shape, fill=LOGITS, dtype="float64")
    return op.ctc_loss(x, LABELS, FRAMES, COUNTS, **options)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_are_those_of_torch(reduction: str) -> None:
    np.testing.assert_allclose(_loss(reduction=reduction).numpy(), TORCH[reduction], rtol=1e-9)


def test_the_gradient_is_that_of_torch_and_ends_with_the_frames() -> None:
    x = op.var("x", LOGITS.shape, fill=LOGITS, dtype="float64")
    gradient = op.grad(op.ctc_loss(x, LABELS, FRAMES, COUNTS), x).numpy()
    np.testing.assert_allclose(gradient[0, 2], TORCH_GRADIENT, atol=1e-9)
    assert not gradient[1, 5].any()
    np.testing.assert_allclose(gradient.sum(2), 0, atol=1e-12)


def test_single_precision_is_as_good_over_a_thousand_frames() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1000, 5)).astype(np.float32)
    labels = np.arange(60)[None] % 4 + 1
    gradients = []
    for dtype in ("float32", "float64"):
        v = op.var("x", x.shape, fill=x, dtype=dtype)
        gradients.append(op.grad(op.ctc_loss(v, labels, reduction="sum"), v).numpy())
    np.testing.assert_allclose(*gradients, atol=2e-6)


def test_labels_without_room_are_told_or_infinite_or_nothing() -> None:
    x = op.var("x", (2, 2, 3), fill=np.zeros((2, 2, 3)))
    with pytest.raises(DataError, match=r"at least 3 frames for the labels of sample 1 \(2, and 1"):
        op.ctc_loss(x, [[1, 2], [1, 1]])
    labels = op.input("labels", (2, 2), dtype="int64")
    losses = op.ctc_loss(x, labels, reduction="none")
    result, gradient = cd.compile([losses, op.grad(op.sum(losses), x)]).run(
        {"labels": np.array([[1, 2], [1, 1]])}
    )
    assert np.isinf(result.numpy()).tolist() == [False, True]
    assert gradient.numpy()[0].any()
    assert not gradient.numpy()[1].any()
    kept = op.ctc_loss(x, [[1, 2], [1, 1]], reduction="none", zero_infinity=True).numpy()
    assert kept[1] == 0
    assert kept[0] == pytest.approx(np.log(9))


def test_no_labels_and_no_frames() -> None:
    x = np.log(np.array([[[0.5, 0.5], [0.25, 0.75]]]))
    assert np.exp(-op.ctc_loss(x, [[-1]], reduction="sum").item()) == pytest.approx(0.125)
    empty = op.ctc_loss(x, np.zeros((1, 0), np.int64), reduction="sum")
    assert np.exp(-empty.item()) == pytest.approx(0.125)
    assert op.ctc_loss(x, [[-1]], input_lengths=[0]).item() == 0.0


def test_what_is_no_label_gives_nan_if_it_is_not_known_before() -> None:
    labels = op.input("labels", (4, 1), dtype="int64")
    x = np.zeros((4, 3, 3), np.float32)
    lengths = cd.tensor(np.array([3, 3, 3, 4]))
    counts = np.ones(4, np.int64)
    losses = op.ctc_loss(x, labels, lengths, counts, reduction="none")
    found = losses.eval(labels=np.array([[1], [0], [3], [1]])).numpy()
    assert np.isnan(found).tolist() == [False, True, True, True]
    with pytest.raises(DataError, match=r"labels from 0 to 2 without the blank, 0"):
        op.ctc_loss(x[:1], [[0]], label_lengths=[1])


def test_a_certain_blank_behind_the_end_changes_nothing() -> None:
    certain = np.full((2, 3, 4), -1e30, np.float32)
    certain[:, :, 0] = 0
    x = LOGITS.astype(np.float32)
    longer = np.concatenate([x, certain], axis=1)
    labels = np.array([[1, 1, 3], [2, 3, -1]])
    np.testing.assert_allclose(
        op.ctc_loss(longer, labels, reduction="none").numpy(),
        op.ctc_loss(x, labels, reduction="none").numpy(),
        rtol=1e-6,
    )


def test_impossible_classes() -> None:
    x = np.array([[[-np.inf, 0.0], [-np.inf, 0.0]]], np.float32)
    v = op.var("x", x.shape, fill=x)
    loss = op.ctc_loss(v, [[1]])
    assert loss.item() == 0.0
    assert op.ctc_loss(v, [[-1]]).item() == np.inf


def test_misuse() -> None:
    x = np.zeros((2, 5, 3), np.float32)
    with pytest.raises(ShapeError, match=r"labels of different lengths are padded with -1"):
        op.ctc_loss(x, [1, 2])
    with pytest.raises(ShapeError, match=r"a row for each of 2 samples"):
        op.ctc_loss(x, [[1]])
    with pytest.raises(DtypeError, match="integers"):
        op.ctc_loss(x, cd.tensor([[1.0], [2.0]]))
    with pytest.raises(ShapeError, match="a blank among the 3 classes"):
        op.ctc_loss(x, [[1], [1]], blank=3)
    with pytest.raises(DataError, match=r"input_lengths from 0 to 5, got 6 in sample 1"):
        op.ctc_loss(x, [[1], [1]], [5, 6])
    with pytest.raises(DataError, match=r"label_lengths from 0 to 1, got -1 in sample 0"):
        op.ctc_loss(x, [[1], [1]], [5, 5], [-1, 1])
    with pytest.raises(ShapeError, match=r"input_lengths of shape \(2,\), one a sample"):
        op.ctc_loss(x, [[1], [1]], [5])
    with pytest.raises(ConfigError, match="reduction"):
        op.ctc_loss(x, [[1], [1]], reduction="median")
