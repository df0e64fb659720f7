"""Losses: certain predictions, wrong labels, conventions, half precision, misuse."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError

INF = np.inf
LOGITS = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], np.float32)


# --- cross entropy


def test_cross_entropy_and_its_gradient_are_exact_for_certain_predictions() -> None:
    x = op.var("x", (2, 3), fill=LOGITS)
    losses = op.cross_entropy(x, [0, 0], "none")
    assert losses.tolist() == [0.0, 2e4]
    assert op.grad(op.sum(losses), x).tolist() == [[0, 0, 0], [-1, 1, 0]]


def test_infinite_logits() -> None:
    x = np.array([[INF, 0.0], [0.0, -INF], [0.0, -INF]], np.float32)
    assert op.cross_entropy(x, [0, 0, 1], "none").tolist() == [0.0, 0.0, INF]
    probabilities = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]], np.float32)
    assert op.cross_entropy(x, probabilities, "none").tolist() == [0.0, 0.0, INF]


def test_a_label_that_is_no_class_gives_nan_if_it_is_not_known_before() -> None:
    labels = op.input("labels", (4,), dtype="int64")
    losses = op.cross_entropy(np.zeros((4, 3), np.float32), labels, "none")
    result = losses.eval(labels=[0, -1, 3, 2]).numpy()
    assert np.isnan(result).tolist() == [False, True, True, False]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_labels_of_every_integer_dtype(dtype: str) -> None:
    x = np.zeros((3, 300), np.float32)
    x[0, 255] = x[1, 100] = x[2, 44] = 1e4
    labels = np.array([255 if dtype != "int8" else 100, 100, 44], dtype)
    losses = op.cross_entropy(x, cd.tensor(labels), "none").numpy()
    # 300 does not fit into eight bits: the classes must not wrap around.
    assert losses[1:].tolist() == [0.0, 0.0]
    assert losses[0] == (0.0 if dtype != "int8" else 1e4)


def test_probabilities_agree_with_the_classes_they_stand_for() -> None:
    x = op.var("x", (4, 3), fill=np.random.default_rng(0).normal(size=(4, 3)), dtype="float64")
    labels = np.array([2, 0, 1, 1])
    by_class = op.cross_entropy(x, labels)
    for targets in (np.eye(3)[labels], np.eye(3, dtype=np.int64)[labels], np.eye(3)[labels] == 1):
        spread = op.cross_entropy(x, targets)
        assert spread.item() == pytest.approx(by_class.item(), rel=1e-14)
        np.testing.assert_allclose(
            op.grad(spread, x).numpy(), op.grad(by_class, x).numpy(), atol=1e-15
        )


def test_targets_do_not_change_the_dtype() -> None:
    x = op.var("x", (2, 3), fill=LOGITS)
    assert op.cross_entropy(x, np.full((2, 3), 1 / 3)).dtype.name == "float32"
    assert op.mean_squared_error(x, np.zeros((2, 3))).dtype.name == "float32"
    assert op.cross_entropy(x, [0, 1], weights=np.ones(2)).dtype.name == "float32"


def test_python_lists_of_targets_keep_the_digits_of_the_predictions() -> None:
    x = np.zeros((1, 2))
    assert op.cross_entropy(x, [[0.1, 0.2]]).item() == pytest.approx(0.3 * np.log(2), rel=1e-15)
    assert op.mean_absolute_error(np.zeros(1), [0.1]).item() == 0.1


def test_a_weight_of_0_leaves_a_sample_out() -> None:
    x = op.var("x", (3, 2), fill=np.array([[1.0, 0], [5.0, 1], [0, 2.0]]))
    padded = op.cross_entropy(x, [0, 0, 1], weights=[1.0, 0.0, 1.0])
    kept = op.cross_entropy(op.gather(x, [0, 2]), [0, 1])
    assert padded.item() == pytest.approx(kept.item(), rel=1e-6)
    assert op.grad(padded, x).numpy()[1].tolist() == [0, 0]


def test_weights_by_class() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    labels, by_class = np.array([0, 2, 2, 1]), np.array([1.0, 2.0, 5.0])
    weights = op.gather(by_class, labels)
    each = op.cross_entropy(x, labels, "none").numpy()
    expected = (by_class[labels] * each).sum() / by_class[labels].sum()
    assert op.cross_entropy(x, labels, weights=weights).item() == pytest.approx(expected, rel=1e-14)


def test_the_epsilon_form_is_that_of_the_formula() -> None:
    p = np.array([[1.0, 0.0], [0.25, 0.75]])
    y = np.array([[0.0, 1.0], [1.0, 0.0]])
    result = op.cross_entropy_epsilon(p, y)
    assert result.item() == pytest.approx(-(np.log(1e-8) + np.log(0.25 + 1e-8)) / 2, rel=1e-14)
    assert op.cross_entropy_epsilon(p, [1, 0]).item() == result.item()


# --- the others


def test_binary_cross_entropy_of_certain_and_infinite_logits() -> None:
    x = op.var("x", (6,), fill=np.array([1e4, 1e4, -1e4, -1e4, INF, -INF]))
    t = np.array([1.0, 0, 1, 0, 1, 0], np.float32)
    losses = op.binary_cross_entropy(x, t, "none")
    assert losses.tolist() == [0, 1e4, 1e4, 0, 0, 0]
    assert op.grad(op.sum(losses), x).tolist() == [0, 1, -1, 0, 0, 0]
    assert op.binary_cross_entropy(np.array([INF, -INF]), [0.0, 1.0], "none").tolist() == [INF, INF]


def test_binary_cross_entropy_keeps_small_losses() -> None:
    loss = op.binary_cross_entropy(np.array([30.0], np.float32), [1.0]).item()
    assert loss == pytest.approx(np.exp(-30.0), rel=1e-5)


def test_derivatives_at_the_kinks_are_the_written_ones() -> None:
    p = op.var("p", (3,), fill=np.array([1.0, -1.0, 0.5]))
    ones = np.ones(3, np.float32)
    assert op.grad(op.mean_absolute_error(p, ones, "sum"), p).tolist() == [0, -1, -1]
    assert op.grad(op.hinge(p, ones, "sum"), p).tolist() == [0, -1, -1]
    assert op.grad(op.huber(p, 0 * ones, reduction="sum"), p).tolist() == [1, -1, 0.5]


def test_huber_is_straight_far_out() -> None:
    p = op.var("p", (3,), fill=np.array([1e30, -1e30, INF]))
    losses = op.huber(p, np.zeros(3), delta=2.0, reduction="none")
    np.testing.assert_allclose(losses.numpy(), [2e30, 2e30, INF], rtol=1e-6)
    assert op.grad(op.sum(losses), p).tolist() == [2, -2, 2]


def test_kl_divergence_with_probabilities_of_0() -> None:
    with np.errstate(divide="ignore"):
        predicted = np.log(np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], np.float32))
    targets = op.var("t", (2, 3), fill=np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    losses = op.kl_divergence(predicted, targets, "none")
    np.testing.assert_allclose(losses.numpy(), [np.log(2), INF], rtol=1e-6)
    slope = op.grad(op.sum(losses), targets).numpy()
    assert slope[:, 2].tolist() == [0, 0]
    assert slope[0, 1] == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = op.var("x", (4, 50), fill=rng.normal(size=(4, 50)) * 3, dtype=dtype)
    wide = op.var("wide", (4, 50), fill=x.numpy().astype("float32"))
    labels = np.array([0, 49, 7, 3])
    # 300 squared is no float16, but the mean of the losses below is.
    far = op.huber(op.var("y", (2,), fill=np.array([300.0, 2.0]), dtype=dtype), [0.0, 0.0])
    assert far.dtype == x.dtype
    assert float(far) == pytest.approx((299.5 + 1.5) / 2, rel=1e-2)
    result, exact = (op.cross_entropy(each, labels, "none") for each in (x, wide))
    assert result.dtype == x.dtype
    rounded = exact.numpy().astype(x.dtype)
    np.testing.assert_array_equal(result.numpy().astype(float), rounded.astype(float))
    slopes = [op.grad(op.sum(each), v).numpy() for each, v in ((result, x), (exact, wide))]
    np.testing.assert_array_equal(slopes[0].astype(float), slopes[1].astype(x.dtype).astype(float))


# --- misuse


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda x: op.cross_entropy(x, [0, 3]),
            DataError,
            r"op\.cross_entropy: expected labels from 0 to 2, got 3",
        ),
        (lambda x: op.cross_entropy(x, np.array([-1, 0])), DataError, "got -1"),
        (lambda x: op.cross_entropy(x, [0, 1, 2]), ShapeError, r"labels of shape \(2,\).*X"),
        (lambda x: op.cross_entropy(x, [0.0, 1.0]), DtypeError, "class indices"),
        (lambda x: op.cross_entropy(x, np.zeros((2, 4))), ShapeError, r"op\.cross_entropy: .*X"),
        (
            lambda x: op.cross_entropy(x, [0, 1], "average"),
            ConfigError,
            "one of mean, sum, none, got 'average'",
        ),
        (
            lambda x: op.cross_entropy(x, [0, 1], weights=[1.0, 1.0, 1.0]),
            ShapeError,
            r"weights of shape \(2,\), one a sample",
        ),
        (lambda x: op.cross_entropy(x, [0, 1], axis=2), ShapeError, r"op\.cross_entropy: .*axis"),
        (
            lambda x: op.cross_entropy(x[:, :0], op.input("y", (2,), "int64")),
            ShapeError,
            "at least one class",
        ),
        (lambda x: op.cross_entropy_epsilon(x, [0, 5]), DataError, r"op\.cross_entropy_epsilon"),
        (
            lambda x: op.cross_entropy_epsilon(x, np.zeros(3)),
            ShapeError,
            r"op\.cross_entropy_epsilon: expected targets in the shape.*X",
        ),
        (
            lambda x: op.mean_squared_error(x, np.zeros(3)),
            ShapeError,
            r"op\.mean_squared_error: expected targets in the shape of the predictions, got X",
        ),
        (lambda x: op.mean_absolute_error(x[:, :1], np.zeros(2)), ShapeError, "reshape"),
        (lambda x: op.huber(x, x, delta=0), ConfigError, "delta= a number above 0, got 0"),
        (lambda x: op.kl_divergence(x, x, axis=3), ShapeError, r"op\.kl_divergence"),
        (lambda x: op.hinge(x, x, reduction=None), ConfigError, r"op\.hinge: expected reduction="),
    ],
)
def test_bad_use_fails_when_written(write, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        write(op.var("X", (2, 3), fill=LOGITS))
