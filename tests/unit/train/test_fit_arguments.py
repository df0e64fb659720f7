"""What `fit`, `evaluate` and `predict` are given is taken as it is meant, or refused in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.errors import CalderaError, ConfigError, DataError
from caldera.train.sample_weights import SampleWeights
from tests.unit.train.small import points

X, Y = points(20)
NAN, INF = float("nan"), float("inf")
MASKED = np.ma.array(X, mask=X > 1)


def made(**settings: Any) -> cd.NeuralNetwork:
    return cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], **{"batch_size": 10, **settings})


MODEL = made()
EPOCHS = "epochs= an integer >= 0"
BATCH = "batch_size= an integer >= 1"
WRONG: dict[str, list[tuple[Any, str]]] = {
    "epochs": [(each, EPOCHS) for each in (1.5, INF, NAN, -1, "2", True)],
    "batch_size": [(each, BATCH) for each in (0, -1, 2.0, "4", True, INF)],
    "shuffle": [(each, "shuffle= True or False") for each in ("no", 0, None)],
    "resume": [(each, "resume= True or False") for each in ("no", 1, None)],
    "verbose": [(each, "verbose: expected 0, 1 or 2") for each in (3, "1")],
    "checkpoint": [(each, "checkpoint= the path of a folder") for each in ("", " ", 0, True)],
    "callbacks": [
        (None, "callbacks= a list of Callback"),
        (["x"], "callbacks= a list of Callback"),
        (cd.EarlyStopping, "write callbacks=[EarlyStopping(...)]"),
        (cd.EarlyStopping(), "write callbacks=[EarlyStopping(...)]"),
    ],
    "parallel": [("data", "parallel=parallel.DataParallel()")],
    "validation": [
        ((X,), "samples with inputs and targets"),
        ((X, Y + 5), "classes from 0 to 1"),
        ((X[:, :1], Y), "samples of shape (2,)"),
    ],
    "sample_weights": [
        (-np.ones(20), "sample_weights of at least 0, got -1.0"),
        (np.full(20, NAN), "sample_weights of at least 0, got nan"),
        (np.full(20, INF), "sample_weights of at least 0, got inf"),
        (np.zeros(20), "of which some are above 0, got only 0"),
        (np.ones((20, 1)), "one weight for each of 20 samples"),
        (1.0, "one weight for each of 20 samples"),
        (["a"] * 20, "got dtype('<U1')"),
        (np.ma.array(np.ones(20), mask=Y > 0), "without masked elements"),
    ],
    "class_weights": [
        ({5: 2.0}, "class_weights for 2 classes, 0 to 1, got one for class 5"),
        ([1, 2, 3], "class_weights for 2 classes, 0 to 1, got 3"),
        ([1], "class_weights for 2 classes, 0 to 1, got 1"),
        ({-1: 2.0}, "by the numbers of classes, from 0, got -1"),
        ({"a": 2.0}, "by the numbers of classes, from 0, got 'a'"),
        ({1.0: 2.0}, "by the numbers of classes, from 0, got 1.0"),
        ({0: -1.0}, "class_weights of at least 0, got -1.0"),
        ({0: NAN}, "class_weights of at least 0, got nan"),
        ({0: 0, 1: 0}, "of which some are above 0, got only 0"),
        ({}, "got an empty dict"),
        (1.0, "one for each class, a dict or 'balanced'"),
        ("even", "a dict or 'balanced', got 'even'"),
        ({0: 1.0, np.int64(0): 2.0, "0": 3.0}, "got '0'"),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_fit_refuses(name: str) -> None:
    before = MODEL.parameters()[0].numpy()
    for value, said in WRONG[name]:
        with pytest.raises(CalderaError, match=re.escape(said)):
            MODEL.fit((X, Y), **{"verbose": 0, "epochs": 1, name: value})
    if name != "validation":
        np.testing.assert_array_equal(MODEL.parameters()[0].numpy(), before)


def test_numbers_of_numpy_are_numbers() -> None:
    history = MODEL.fit(
        (X, Y),
        epochs=np.int64(2),
        batch_size=np.int32(10),
        shuffle=np.True_,
        verbose=0,
        class_weights=np.array([1, 2], "int8"),
        sample_weights=[True] * 20,
    )
    assert len(history["loss"]) == 2


def test_samples_of_weight_0_are_left_out() -> None:
    weights, wild = (np.arange(20) > 4).astype(float), X.copy()
    wild[:5] = NAN
    first, second = made(seed=1), made(seed=1)
    given = {"batch_size": 20, "verbose": 0, "shuffle": False}
    found = first.fit((wild, Y), sample_weights=weights, **given)["loss"]
    assert found == pytest.approx(second.fit((X[5:], Y[5:]), **given)["loss"], rel=1e-5)


@pytest.mark.parametrize("size", [0, -1, 1.5, "3", True])
def test_batches_of_no_size(size: Any) -> None:
    for call in (
        lambda: MODEL.predict(X, batch_size=size),
        lambda: MODEL.evaluate((X, Y), batch_size=size),
        lambda: MODEL.profile((X, Y), batch_size=size),
    ):
        with pytest.raises(ConfigError, match=BATCH):
            call()


def test_arguments_of_callbacks_and_of_the_finder(tmp_path: Path) -> None:
    for call, said in (
        (lambda: cd.EarlyStopping(patience=1.5), "patience= an integer >= 1, got 1.5"),
        (lambda: cd.EarlyStopping(patience="3"), "patience= an integer >= 1"),
        (lambda: cd.EarlyStopping(min_delta=NAN), "min_delta= a number of at least 0, got nan"),
        (lambda: cd.TimeLimit("60"), "seconds= a number of at least 0"),
        (lambda: cd.Target("accuracy", NAN), "value= a number, got nan"),
        (lambda: cd.Checkpointer(tmp_path, keep=1.5), "keep= an integer >= 1"),
        (lambda: cd.Checkpointer(tmp_path, every_steps=1.5), "every_steps= an integer"),
        (lambda: cd.Checkpointer(tmp_path, every_seconds=NAN), "every_seconds= a number"),
        (lambda: cd.Checkpointer(tmp_path, every_epoch="no"), "every_epoch= True or False"),
        (lambda: MODEL.lr_find((X, Y), steps=1.5), "steps= an integer from 2 to"),
        (lambda: MODEL.lr_find((X, Y), batch_size=0), BATCH),
        (lambda: MODEL.lr_find((X, Y), highest=INF), "0 < lowest < highest < inf"),
        (lambda: cd.compile(None), "compile: expected an expression or a list"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()


# --- data


def test_what_is_behind_a_mask_is_no_value() -> None:
    for call in (
        lambda: MODEL.fit((MASKED, Y), verbose=0),
        lambda: MODEL.fit((X, np.ma.array(Y, mask=Y > 0)), verbose=0),
        lambda: MODEL.evaluate((MASKED, Y)),
        lambda: MODEL.predict(MASKED),
        lambda: cd.data.as_data(MASKED),
        lambda: cd.tensor(MASKED),
        lambda: op.sum(MASKED),
        lambda: cd.tensor(X) + MASKED,
    ):
        with pytest.raises(DataError, match=r"without masked elements, .*x\.filled\(0\)"):
            call()
    assert MODEL.predict(np.ma.array(X)).shape == (20, 2)


def test_inputs_of_predict() -> None:
    for given, said in (
        ((), "inputs with equal numbers of samples, got none"),
        ((3.0,), "the first axis counts the samples"),
        ((X, Y), "predict: expected 1 inputs, got 2; targets are no inputs"),
        ((X, Y[:3]), "inputs with equal numbers of samples"),
        ((X[0],), "samples of shape"),
    ):
        with pytest.raises(DataError, match=said):
            MODEL.predict(*given)


def test_bytes_are_images_wherever_they_are_given() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 2), dtype=np.uint8)
    model = made()
    model.fit((pixels, Y), verbose=0)
    found = model.predict(pixels)
    np.testing.assert_allclose(found, model.predict(pixels / np.float32(255)), rtol=1e-6)
    right = np.mean(found.argmax(1) == Y)
    assert model.evaluate((pixels, Y))["accuracy"] == pytest.approx(right)


def test_an_evaluation_looks_at_its_own_data() -> None:
    """Not only the first one, for which plans are made."""
    model = made()
    model.evaluate((X, Y))
    for given, said in (((X, Y + 3), "got 3 to 4"), ((X[:, :1], Y), "samples of shape")):
        with pytest.raises(DataError, match=said):
            model.evaluate(given)


def test_one_target_for_each_loss() -> None:
    with pytest.raises(DataError, match="an array for each of the 1 losses"):
        made().fit((X, Y, Y), verbose=0)


@pytest.mark.parametrize("layers", [None, [], nn.Dense(2), "dense"])
def test_layers_are_a_list(layers: Any) -> None:
    with pytest.raises(ConfigError, match="NeuralNetwork: expected a list of layers"):
        cd.NeuralNetwork(layers)


# --- indices and divisions


@pytest.mark.parametrize("word", [-1, -4, 3])
def test_a_word_that_is_not_in_the_table(word: int) -> None:
    layers = [nn.Input((2,), dtype="int64"), nn.Embedding(3, 4), nn.Flatten(), nn.Dense(2)]
    model = cd.NeuralNetwork(layers)
    with pytest.raises(DataError, match="into an axis of length 3"):
        model.predict(np.array([[0, 1], [2, word]]))
    with pytest.raises(DataError, match="into an axis of length 20"):
        op.embedding(cd.tensor(X), np.array([word * 10], "int8")).eval()


def test_whole_numbers_over_0_are_0() -> None:
    """As in NumPy, on every device; there is no whole number for what it is."""
    a, b = np.array([1, -7, 0]), np.zeros(3, "int64")
    for found in (cd.tensor(a) // cd.tensor(b), cd.tensor(a) % cd.tensor(b)):
        assert found.tolist() == [0, 0, 0]
    assert (cd.tensor([-(2**63)]) // cd.tensor([-1])).tolist() == [-(2**63)]
    assert (cd.tensor(a) / cd.tensor(b)).tolist()[:2] == [INF, -INF]


# --- what people write


def test_inputs_and_targets_may_be_two_arguments() -> None:
    one, two = made(), made()
    assert one.fit(X, Y, verbose=0)["loss"] == two.fit((X, Y), verbose=0)["loss"]
    assert one.evaluate(X, Y) == two.evaluate((X, Y))
    for call in (one.fit, one.evaluate):
        with pytest.raises(
            DataError, match=r"got ArrayData and separate targets; pass only the data"
        ):
            call(cd.data.ArrayData(X, Y), Y)
    with pytest.raises(ConfigError, match=r"got 3 arguments; write fit\(x, y\) or"):
        one.fit(X, Y, 32)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_one_hot_targets_train_as_the_numbers_of_classes_do(dtype: str) -> None:
    numbers, rows = made(), made()
    one_hot = np.eye(2)[Y].astype(dtype)
    found = rows.fit(X, one_hot, validation=0.2, verbose=0)
    expected = numbers.fit(X, Y, validation=0.2, verbose=0)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    assert found["accuracy"] == expected["accuracy"]
    assert rows.evaluate(X, one_hot)["accuracy"] == numbers.evaluate(X, Y)["accuracy"]
    with pytest.raises(DataError, match="add up to 1"):
        made().fit(X, 2 * np.eye(2)[Y])


def test_a_function_may_be_the_loss(tmp_path: Path) -> None:
    target = X[:, :1] * 2.0
    by_function = made(loss=lambda prediction, y: (prediction - y) ** 2)
    by_name = made(loss="mean_squared")
    y = np.concatenate([target, -target], 1)
    found = by_function.fit(X, y, epochs=2, verbose=0)
    assert found["loss"] == by_name.fit(X, y, epochs=2, verbose=0)["loss"]
    with pytest.raises(ConfigError, match=r"a loss that files can name, got the function <lambda>"):
        by_function.save(tmp_path / "model.caldera")
    by_function.loss = "mse"
    by_function.save(tmp_path / "model.caldera")
    with pytest.raises(CalderaError, match="got a single loss for all samples that is not a mean"):
        made(loss=lambda prediction, y: op.sum(prediction - y)).fit(X, y)


def test_the_loss_and_the_optimizer_follow_the_layers() -> None:
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], "mse", "sgd", batch_size=4)
    assert (type(model.loss).__name__, type(model.optimizer).__name__) == ("MeanSquared", "SGD")


def test_the_reference_papers_calls_work_by_position() -> None:
    settings = {"batch_size": 4, "epochs": 2, "learning_rate": 0.5}
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], "mse", "sgd", settings)
    assert (model.batch_size, model.epochs, model.optimizer._given_rate) == (4, 2, 0.5)
    for memory in (cd.MemoryManager(20, cd.HOST, 0), cd.MemoryManager(20, cd.HOST, device=0)):
        assert (memory.size, memory.kind, memory.dtype.name) == (20, cd.HOST, "float32")
    numbers = cd.Tensor((2, 3), cd.uniform(-1, 1), cd.DEVICE, "loopback")
    assert (numbers.kind, numbers.device.name) == (cd.DEVICE, "loopback:0")
    assert cd.Tensor((2, 3), cd.HOST, 0).kind is cd.HOST
    assert cd.Tensor((2, 3), cd.HOST, dtype="float64").dtype == "float64"
    x, c = op.var("x"), op.var("c", fill=-2.0)
    assert optim.GradientDescent(0.05).minimize(op.add(op.pow(x, 2), c), [x]).value == -2.0
    assert op.var("w", fill=[[1.0, 2.0]]).shape == (1, 2)
    with pytest.raises(CalderaError, match="reshape the value, or give"):
        x.assign(np.ones(3))


def test_balanced_classes_count_the_same() -> None:
    y = np.array([0, 0, 0, 0, 0, 2])
    weights = SampleWeights.of(cd.data.Pipeline((X[:6], y)), by_class="balanced")
    assert weights is not None
    found = weights.of_samples(np.arange(6), y)
    assert found[:5].sum() == pytest.approx(found[5])
    assert found.mean() == pytest.approx(1.0)
    weights.check_classes(4)


def test_classes_are_weighed_by_name() -> None:
    samples = cd.data.arrays(X, np.array(["cat", "dog"])[Y], test=0).train
    by_name = made().fit(samples, class_weights={"dog": 3.0}, verbose=0)["loss"]
    assert by_name == made().fit(samples, class_weights={1: 3.0}, verbose=0)["loss"]
    with pytest.raises(DataError, match="or their names: cat, dog, got 'cow'"):
        made().fit(samples, class_weights={"cow": 3.0})
    with pytest.raises(DataError, match="class_weights with each class once"):
        made().fit(samples, class_weights={"dog": 3.0, 1: 2.0})
