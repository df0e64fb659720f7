"""Plans that run again with arrays like the last ones: quick, and no check less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.plan import plan as plans
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError


def small() -> tuple[cd.Plan, cd.Variable, Callable[[Any, Any], np.ndarray]]:
    """Two products and an activation, with the same in NumPy."""
    random = np.random.default_rng(3)
    w = op.var("w", (8, 6), fill=random.normal(size=(8, 6)))
    x, b = op.input("x", (3, 8)), op.input("b", (6,))

    def expected(given: Any, bias: Any) -> np.ndarray:
        return np.maximum(np.asarray(given, "float32") @ w.numpy() + np.asarray(bias, "float32"), 0)

    y = op.relu(x @ w + b)
    return cd.compile([y, op.sum(y, axis=1)]), w, expected


@pytest.fixture
def shortcuts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run with a shortcut, whether it was enough."""
    taken: list[bool] = []
    find = plans.repeated_run

    def noted(binding: Any) -> Any:
        found = find(binding)

        def repeated(feeds: Mapping[str, Any] | None) -> Any:
            results = found(feeds)
            taken.append(results is not None)
            return results

        return found and repeated

    monkeypatch.setattr(plans, "repeated_run", noted)
    return taken


def test_the_shortcut_is_taken(shortcuts: list[bool]) -> None:
    plan, _, expected = small()
    x, b = np.ones((3, 8), "float32"), np.zeros(6, "float32")
    for number in range(20):
        x[0, 0] = number
        y = plan.run({"x": x, "b": b})[0]
        np.testing.assert_allclose(y.numpy(), expected(x, b), rtol=1e-5)
    assert shortcuts.count(True) >= 17


def between(random: np.random.Generator, plan: cd.Plan, w: cd.Variable) -> None:
    """Something that a user does between two runs, or nothing."""
    choice = random.integers(9)
    if choice == 0:
        w.assign(random.normal(size=(8, 6)).astype("float32"))
    elif choice == 1:
        # Outgrows the arena that all plans of a thread share.
        size = int(random.integers(1, 2000))
        cd.compile([op.exp(op.tanh(op.var("v", (size, 100)))) @ op.var("u", (100, 3))]).run()
    elif choice == 2:
        plan.explain({"x": np.ones((3, 8), "float32"), "b": np.ones(6, "float32")})
    elif choice == 3:
        plan.release()
    elif choice == 4:
        run = threading.Thread(target=lambda: plan.run({"x": np.ones((3, 8)), "b": np.ones(6)}))
        run.start()
        run.join()


@pytest.mark.parametrize("seed", range(3))
def test_results_stay_and_changes_are_seen(seed: int) -> None:
    random = np.random.default_rng(seed)
    plan, w, expected = small()
    x, b = np.ones((3, 8), "float32"), np.zeros(6, "float32")
    held: list[tuple[Any, np.ndarray]] = []
    for _ in range(80):
        between(random, plan, w)
        x[:] = random.normal(size=x.shape)
        given: Any = [x, x, x, np.asfortranarray(x), x[::-1], x.astype("float64"), x.tolist()][
            random.integers(7)
        ]
        y, sums = plan.run({"x": given, "b": b})
        wanted = expected(given, b)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(sums.numpy(), wanted.sum(1), rtol=1e-4, atol=1e-4)
        if random.random() < 0.5:
            held.append((y if random.random() < 0.5 else y.numpy()[1:], y.numpy().copy()))
        if len(held) > 6:
            del held[int(random.integers(len(held)))]
        for kept, before in held:
            now = kept.numpy() if isinstance(kept, cd.Tensor) else kept
            np.testing.assert_array_equal(now, before[-len(now) :])


def test_wrong_feeds_are_refused_after_right_ones() -> None:
    plan, _, expected = small()
    good = {"x": np.ones((3, 8), "float32"), "b": np.zeros(6, "float32")}
    wrong: list[tuple[Any, type[Exception]]] = [
        (good | {"x": np.ones((8, 3), "float32")}, ShapeError),
        (good | {"x": np.ones((3, 8), "complex64")}, DtypeError),
        (good | {"y": good["x"]}, ConfigError),
        ({"x": good["x"]}, ConfigError),
        ({"x": good["x"], "c": good["b"]}, ConfigError),
        (None, ConfigError),
        ([good], ConfigError),
        (good | {"x": np.ma.masked_equal(good["x"], 1)}, DataError),
    ]
    for feeds, error in wrong:
        plan.run(good)
        with pytest.raises(error):
            plan.run(feeds)
        np.testing.assert_allclose(plan.run(good)[0].numpy(), expected(*good.values()), rtol=1e-5)


def test_threads_may_share_a_plan() -> None:
    plan, _, expected = small()
    failures: list[str] = []

    def work(number: int) -> None:
        x, b = np.full((3, 8), number, "float32"), np.full(6, -number, "float32")
        for _ in range(50):
            if not np.allclose(plan.run({"x": x, "b": b})[0].numpy(), expected(x, b), rtol=1e-4):
                failures.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failures


def test_a_captured_plan_is_replayed() -> None:
    plan, _, expected = small()
    x, b = np.ones((3, 8), "float32"), np.zeros(6, "float32")
    for _ in range(3):
        plan.run({"x": x, "b": b})
    plan.capture()
    np.testing.assert_allclose(plan.run({"x": 2 * x, "b": b})[0].numpy(), expected(2 * x, b), 1e-5)


def test_predictions_of_one_array_after_the_other() -> None:
    layers = [nn.Input((5,)), nn.Dense(7, activation="tanh"), nn.Dense(2)]
    model = cd.NeuralNetwork(layers, loss="mse")
    random = np.random.default_rng(1)
    first, second = model.parameters()[::2]

    def expected(x: Any) -> np.ndarray:
        return np.tanh(np.asarray(x, "float32") @ first.numpy()) @ second.numpy()

    kept = []
    for number in range(60):
        rows = (1, 1, 1, 3, 40)[random.integers(5)]
        x = random.normal(size=(rows, 5)).astype(("float32", "float32", "float64")[number % 3])
        given = [x, x, x, np.asfortranarray(x), x.tolist()][random.integers(5)]
        kept.append((model.predict(given), expected(x)))
        if number == 30:
            first.assign(2 * first.numpy())
        if number == 40:
            model.to("loopback")
        if number == 50:
            model.to("cpu")
            model.layers[1].activation = "tanh"
    for found, wanted in kept:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for wrong in (np.ones((1, 4), "float32"), np.ones(5, "float32")):
        model.predict(np.ones((1, 5), "float32"))
        with pytest.raises(DataError):
            model.predict(wrong)


def test_predictions_follow_a_changed_layer() -> None:
    model = cd.NeuralNetwork([nn.Input((3,)), nn.LeakyReLU(0.5)], loss="mse")
    x = np.full((1, 3), -1.0, "float32")
    assert model.predict(x).tolist() == model.predict(x).tolist() == [[-0.5] * 3]
    model.layers[1].slope = 0.25
    assert model.predict(x).tolist() == [[-0.25] * 3]
    assert model.predict(np.full((1, 3), 255, "uint8")).tolist() == [[1.0] * 3]
    assert model.predict(np.full((1, 3), 4.0, "float32")).tolist() == [[4.0] * 3]
