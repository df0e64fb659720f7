"""`CustomModel`, `gradient_penalty` and `WeightAverage`, against the same by hand in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import comm, nn, op, optim
from caldera.errors import ConfigError, NonFiniteError, ShapeError
from caldera.parallel import DataParallel, Sharded

X = np.random.default_rng(0).normal(size=(12, 2)).astype("float32")


class Rivals(cd.CustomModel):
    """Two linear functions: one wants to be like the other, which wants to get away."""

    def __init__(self, **options: Any) -> None:
        given = {"left": optim.SGD(0.1), "right": optim.SGD(0.01, momentum=0.9)}
        super().__init__(given, batch_size=4, **options)
        self.left = nn.Dense(1, bias=False, fill=cd.constant(0.5))
        self.right = nn.Dense(1, bias=False, fill=cd.constant(-0.5))

    def losses(self, x: Any) -> dict[str, Any]:
        apart = op.mean(op.square(self.left(x) - self.right(x)))
        return {"left": apart, "right": -apart, "twice": 2.0 * apart}


def test_each_loss_trains_its_own_layer_with_its_own_optimizer() -> None:
    model = Rivals()
    history = model.fit(X, epochs=3, shuffle=False, verbose=0)
    left, right = np.full((2, 1), 0.5), np.full((2, 1), -0.5)
    velocity = np.zeros((2, 1))
    losses = []
    for _ in range(3):
        seen = []
        for begin in range(0, 12, 4):
            x = X[begin : begin + 4].astype("float64")
            error = x @ (left - right)
            seen.append(np.square(error).mean())
            slope = 2 * x.T @ error / 4
            left = left - 0.1 * slope
            # The right one goes up where the left one goes down: d(-apart)/d(right) is the same.
            velocity = 0.9 * velocity + slope
            right = right - 0.01 * velocity
        losses.append(np.mean(seen))
    assert history["left"] == pytest.approx(losses, rel=1e-5)
    assert history["right"] == pytest.approx([-each for each in losses], rel=1e-5)
    assert history["twice"] == pytest.approx([2 * each for each in losses], rel=1e-5)
    assert model.left.parameters()[0].numpy() == pytest.approx(left, rel=1e-4)
    assert model.right.parameters()[0].numpy() == pytest.approx(right, rel=1e-4)


def test_another_fit_goes_on() -> None:
    once, twice = Rivals(), Rivals()
    whole = once.fit(X, epochs=4, verbose=0)
    first, second = twice.fit(X, epochs=2, verbose=0), twice.fit(X, epochs=2, verbose=0)
    assert [*first["left"], *second["left"]] == whole["left"]
    assert second.epochs == [2, 3]


def test_a_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    Rivals().fit(X, epochs=2)
    assert capsys.readouterr().out.count("\n") == 2


def test_what_is_missing_is_said() -> None:
    class Nameless(Rivals):
        def losses(self, x: Any) -> dict[str, Any]:
            return {"left": op.mean(self.left(x))}

    class Vector(Rivals):
        def losses(self, x: Any) -> dict[str, Any]:
            return {"left": self.left(x), "right": op.mean(self.right(x))}

    class Infinite(Rivals):
        def losses(self, x: Any) -> dict[str, Any]:
            loss = op.mean(self.left(x)) / 0.0
            return {"left": loss, "right": op.mean(self.right(x))}

    with pytest.raises(ConfigError, match=r"self\.right and a loss 'right'"):
        Nameless().fit(X, verbose=0)
    with pytest.raises(ConfigError, match="a scalar for each loss"):
        Vector().fit(X, verbose=0)
    model = Infinite()
    with pytest.raises(NonFiniteError, match="left = "):
        model.fit(X, verbose=0)
    assert model.right.parameters()[0].numpy() == pytest.approx(-0.5)
    with pytest.raises(ConfigError, match="an optimizer for each layer"):
        type("Idle", (Rivals,), {"__init__": lambda self: cd.CustomModel.__init__(self, {})})()


# --- gradient penalties


def test_the_penalty_is_that_of_the_slope() -> None:
    x = op.var("x", (5, 3), fill=np.random.default_rng(1).normal(size=(5, 3)), dtype="float64")
    found = nn.gradient_penalty(lambda x: op.sum(x**3, axis=1), x)
    lengths = np.sqrt(np.square(3 * x.numpy() ** 2).sum(axis=1))
    assert found.numpy() == pytest.approx((lengths - 1) ** 2)
    squares = nn.gradient_penalty(lambda x: op.sum(x**3, axis=1), x, norm=None)
    assert squares.numpy() == pytest.approx(lengths**2)
    # Its own slope, by differences.
    slope = op.grad(op.sum(found), x).numpy()
    value, step = x.numpy(), 1e-6
    for place in [(0, 0), (4, 2)]:
        ends = []
        for sign in (1, -1):
            moved = value.copy()
            moved[place] += sign * step
            ends.append((np.sqrt(np.square(3 * moved**2).sum(axis=1)) - 1) ** 2)
        assert slope[place] == pytest.approx((ends[0] - ends[1]).sum() / (2 * step), rel=1e-5)


def test_a_flat_function_has_a_penalty_that_can_be_trained() -> None:
    w = op.var("w", (2,), fill=cd.zero())
    penalty = op.sum(nn.gradient_penalty(lambda x: op.sum(x * w, axis=1), cd.tensor(X)))
    assert float(penalty) == pytest.approx(12, rel=1e-4)
    assert np.isfinite(op.grad(penalty, w).numpy()).all()
    with pytest.raises(ShapeError, match="a function of samples"):
        nn.gradient_penalty(op.sum, cd.tensor(X))


# --- moving averages of weights


def line(**options: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((2,)), nn.Dense(1, fill=cd.zero())]
    return cd.NeuralNetwork(layers, loss="mse", optimizer=optim.SGD(0.1), batch_size=4, **options)


class Notes(cd.Callback):
    """Writes the weights down after each step."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def batch_ends(self, run: cd.Run) -> None:
        self.seen.append(run.model.parameters()[0].numpy())


def average(seen: list[np.ndarray], decay: float) -> np.ndarray:
    mean = np.zeros_like(seen[0], dtype="float64")
    for number, value in enumerate(seen, 1):
        now = min(decay, (1 + number) / (10 + number))
        mean = now * mean + (1 - now) * value
    return mean


Y = X[:, :1] * 3


def test_the_model_ends_with_the_average() -> None:
    model, notes = line(), Notes()
    model.fit((X, Y), epochs=5, callbacks=[notes, cd.WeightAverage(0.7)], verbose=0)
    assert len(notes.seen) == 15
    found = model.parameters()[0].numpy()
    assert found == pytest.approx(average(notes.seen, 0.7), rel=1e-5)
    assert np.abs(found - notes.seen[-1]).max() > 1e-3


def test_averages_are_resumed(tmp_path: Path) -> None:
    whole = line()
    whole.fit((X, Y), epochs=4, callbacks=[cd.WeightAverage(0.9)], verbose=0)
    parts = line()
    options: dict[str, Any] = {"verbose": 0, "checkpoint": tmp_path / "run"}
    parts.fit((X, Y), epochs=2, callbacks=[cd.WeightAverage(0.9)], **options)
    again = line()
    again.fit((X, Y), epochs=4, callbacks=[cd.WeightAverage(0.9)], resume=True, **options)
    assert np.array_equal(again.parameters()[0].numpy(), whole.parameters()[0].numpy())


def test_averages_on_ranks() -> None:
    alone = line()
    alone.fit((X, Y), epochs=2, callbacks=[cd.WeightAverage(0.9)], verbose=0)

    def train(communicator: comm.Communicator) -> np.ndarray:
        model = line()
        average = cd.WeightAverage(0.9)
        strategy = DataParallel(communicator=communicator)
        model.fit((X, Y), epochs=2, callbacks=[average], parallel=strategy, verbose=0)
        with pytest.raises(ConfigError, match="all weights on every rank"):
            model.fit(
                (X, Y),
                callbacks=[cd.WeightAverage()],
                verbose=0,
                parallel=Sharded(3, communicator=communicator),
            )
        return model.parameters()[0].numpy()

    for found in comm.run_virtual_ranks(2, train):
        assert found == pytest.approx(alone.parameters()[0].numpy(), rel=1e-5)


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), "much"])
def test_decays_that_are_none(decay: Any) -> None:
    with pytest.raises(ConfigError, match="decay"):
        cd.WeightAverage(decay)
