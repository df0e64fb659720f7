"""Softmax with logarithms, and cross entropy written by hand."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op

LOGITS = np.array([[200.0, 0, 0], [1, 2, 3], [0, 0, -300], [1, 1, 1]], np.float32)
TARGETS = np.eye(3, dtype=np.float32)[[1, 2, 2, 0]]


def _by_hand(axis: int = -1):
    x = op.var("x", (4, 3), fill=LOGITS)
    terms = TARGETS * op.log(op.softmax(x))
    return x, -op.sum(terms, axis=axis) if axis == -1 else -op.sum(terms)


def test_the_loss_written_by_hand_is_the_stable_one() -> None:
    x, losses = _by_hand()
    expected = op.cross_entropy(x, TARGETS, reduction="none").numpy()
    (result,) = cd.compile([losses]).run()
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    (without,) = cd.compile([losses], without=["losses"]).run()
    assert np.isnan(without.numpy()).any()


def test_summed_over_samples_too() -> None:
    x, total = _by_hand(axis=0)
    expected = op.cross_entropy(x, TARGETS, reduction="sum").item()
    assert cd.compile([total]).run()[0].item() == pytest.approx(expected)


def test_its_derivative_is_stable_as_well() -> None:
    x, losses = _by_hand()
    slope = op.grad(op.mean(losses), x)
    expected = op.grad(op.cross_entropy(x, TARGETS), x).numpy()
    (result,) = cd.compile([slope]).run()
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_the_axis_of_the_classes_is_kept() -> None:
    x = op.var("x", (2, 3, 2), fill=cd.uniform(-1, 1))
    targets = np.full((2, 3, 2), 1 / 3, np.float32)
    losses = -op.sum(targets * op.log_softmax(x, axis=1), axis=1)
    expected = op.cross_entropy(x, targets, axis=1, reduction="none").numpy()
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-5)
    over_others = op.sum(targets * op.log_softmax(x, axis=1), axis=(0, 2))
    plain = cd.compile([over_others], without=["losses"]).run()[0].numpy()
    np.testing.assert_allclose(over_others.numpy(), plain, rtol=1e-5)


def test_an_epsilon_stays_where_it_was_put() -> None:
    x = op.var("x", (1, 2), fill=np.array([[-1000.0, 0.0]], np.float32))
    value = op.log(op.softmax(x) + 1e-4).numpy()
    np.testing.assert_allclose(value[0, 0], np.log(1e-4), rtol=1e-4)
