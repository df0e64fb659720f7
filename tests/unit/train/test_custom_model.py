"""`CustomModel`, `gradient_penalty` and `WeightAverage`, against the same by hand in NumPy."""

from __future__ import annotations

import copy
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

    def __init__(self, rate: Any = 0.1, **options: Any) -> None:
        given = {"left": optim.SGD(rate), "right": optim.SGD(0.01, momentum=0.9)}
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
    assert second.epochs == [0, 1]
    assert (twice.epochs_done, twice.steps_done) == (4, 12)


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
    with pytest.raises(NonFiniteError, match=r"op\.div in layer Infinite"):
        model.fit(X, verbose=0)
    assert model.right.parameters()[0].numpy() == pytest.approx(-0.5)
    with pytest.raises(ConfigError, match="an optimizer for each layer"):
        type("Idle", (Rivals,), {"__init__": lambda self: cd.CustomModel.__init__(self, {})})()


# --- what it shares with every model


class Pair(Rivals):
    """Predicts from inputs of another width than those that it is trained on."""

    def forward(self, z: Any) -> Any:
        return op.sum(z, axis=1, keepdims=True) * self.left.weight[0, 0]


def test_checkpoints_resume_to_the_bit(tmp_path: Path) -> None:
    whole, parts, again = Rivals(), Rivals(), Rivals()
    expected = whole.fit(X, epochs=4, verbose=0)
    options: dict[str, Any] = {"verbose": 0, "checkpoint": tmp_path / "run"}
    parts.fit(X, epochs=2, **options)
    found = again.fit(X, epochs=4, resume=True, **options)
    assert found["left"] == expected["left"]
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    assert again.optimizers["right"].step.numpy() == 12


def test_validation_and_callbacks() -> None:
    model, seen = Rivals(), []

    class Watch(cd.Callback):
        def epoch_ends(self, run: cd.Run) -> None:
            seen.append((run.epoch, run.loss()))

    keep = cd.EarlyStopping("val_left", patience=2, min_delta=1e9)
    history = model.fit(X, validation=0.25, epochs=9, callbacks=[Watch(), keep], verbose=0)
    assert list(history) == [
        *("left", "right", "twice", "val_left", "val_right", "val_twice", "seconds")
    ]
    assert len(seen) == 3
    assert "val_left has not improved" in history.stopped
    x = X[:7].astype("float64")
    apart = np.square(x @ (model.left.weight.numpy() - model.right.weight.numpy())).mean()
    assert model.evaluate(X[:7]) == pytest.approx(
        {"left": apart, "right": -apart, "twice": 2 * apart}, rel=1e-5
    )


def test_it_predicts_what_forward_gives_and_is_saved(tmp_path: Path) -> None:
    model, other = Pair(), Pair()
    with pytest.raises(ConfigError, match="build_for"):
        model.predict(X)
    model.fit(X, epochs=2, verbose=0)
    weight = model.left.weight.numpy()[0, 0]
    for width in (2, 5):
        z = np.ones((3, width), "float32")
        assert model.predict(z) == pytest.approx(np.full((3, 1), width * weight), rel=1e-6)
    path = model.save(tmp_path / "pair.caldera")
    other.build_for(X)
    other.load_weights(path)
    assert other.predict(X) == pytest.approx(model.predict(X))
    assert copy.deepcopy(model).predict(X) == pytest.approx(model.predict(X))
    fitted = Rivals()
    fitted.fit(X, verbose=0)
    with pytest.raises(ShapeError, match="a model that defines forward"):
        fitted.predict(X)
    with pytest.raises(ConfigError, match="no sample_weights="):
        model.fit(X, sample_weights=np.ones(12))
    for wrong in (lambda: model.fit((X, X)), lambda: model.evaluate((X, X))):
        with pytest.raises(cd.DataError, match="1 arrays, as many as when it was built"):
            wrong()
    with pytest.raises(ConfigError, match="losses from its own function"):
        model.optimizer = "sgd"
    with pytest.raises(ConfigError, match="a model with one loss"):
        model.lr_find(X)
    with pytest.raises(TypeError, match="did you mean 'validation'"):
        model.fit(X, validation_data=X)


def test_schedules_between_epochs_belong_to_each_layer(tmp_path: Path) -> None:
    def made() -> Rivals:
        return Rivals(
            optim.ReduceOnPlateau(0.1, factor=0.5, patience=1, monitor="left", threshold=0.9)
        )

    whole, again = made(), made()
    whole.fit(X, epochs=4, verbose=0)
    made().fit(X, epochs=2, checkpoint=tmp_path / "run", verbose=0)
    again.fit(X, epochs=4, checkpoint=tmp_path / "run", resume=True, verbose=0)
    rates = [float(each.optimizers["left"].learning_rate.numpy()) for each in (whole, again)]
    assert rates[0] == rates[1] < 0.1


def test_an_actor_and_a_critic_learn_a_bandit() -> None:
    class ActorCritic(cd.CustomModel):
        """Chooses one of three arms by a state of two; the right arm pays 1."""

        def __init__(self) -> None:
            adam = {"actor": optim.Adam(0.05), "critic": optim.Adam(0.05)}
            super().__init__(adam, batch_size=64)
            self.actor, self.critic = nn.Dense(3), nn.Dense(1)

        def forward(self, state: Any) -> Any:
            return self.actor(state)

        def losses(self, state: Any, action: Any, reward: Any) -> dict[str, Any]:
            value = self.critic(state)[:, 0]
            gain = op.stop_gradient(reward - value)
            chosen = op.take_along_axis(op.log_softmax(self.actor(state)), action[:, None], axis=1)
            return {
                "actor": -op.mean(gain * chosen[:, 0]),
                "critic": op.mean(op.square(reward - value)),
            }

    chance = np.random.default_rng(0)
    model = ActorCritic()
    model.build_for(np.zeros((1, 2), "float32"), np.zeros(1, "int64"), np.zeros(1, "float32"))
    for _ in range(30):
        state = chance.normal(size=(64, 2)).astype("float32")
        right = np.where(state[:, 0] > 0.5, 2, np.where(state[:, 1] > 0, 1, 0))
        odds = np.exp(model.predict(state).astype("float64"))
        odds /= odds.sum(axis=1, keepdims=True)
        action = np.array([chance.choice(3, p=each) for each in odds])
        reward = (action == right).astype("float32")
        history = model.fit((state, action, reward), verbose=0)
    assert list(history) == ["actor", "critic", "seconds"]
    state = chance.normal(size=(500, 2)).astype("float32")
    right = np.where(state[:, 0] > 0.5, 2, np.where(state[:, 1] > 0, 1, 0))
    assert np.mean(model.predict(state).argmax(axis=1) == right) > 0.6


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


class _Pair(cd.CustomModel):
    """`losses` and `forward` take different inputs."""

    def __init__(self) -> None:
        super().__init__({"left": optim.SGD(0.1), "right": "adam"}, batch_size=4)
        self.left, self.right = nn.Dense(1, bias=False), nn.Dense(1, bias=False)

    def losses(self, y: Any, x: Any) -> dict[str, Any]:
        left, right = self.left(x), self.right(x)
        return {"left": op.mean(op.square(left - y)), "right": op.mean(op.square(right - left))}

    def forward(self, a: Any, b: Any) -> Any:
        return self.left(a) - self.right(b)


def test_inputs_go_by_the_names_of_losses_and_of_forward() -> None:
    by_order, by_name = _Pair(), _Pair()
    given = {"x": X, "y": X[:, :1]}
    histories = [
        by_order.fit((given["y"], X), epochs=2, validation=(given["y"], X), verbose=0),
        by_name.fit(given, epochs=2, validation=given, verbose=0),
    ]
    for name in ("left", "right", "val_left"):
        assert histories[0][name] == histories[1][name]
    assert by_name.evaluate(given) == by_order.evaluate(given["y"], X)
    left, right = (getattr(by_name, name).parameters()[0].numpy() for name in ("left", "right"))
    for inputs in ((X, X[::-1]), ((X, X[::-1]),), ({"b": X[::-1], "a": X},)):
        assert by_name.predict(*inputs) == pytest.approx(X @ left - X[::-1] @ right, abs=1e-5)


def test_predicts_floats_after_integers() -> None:
    model = _Pair()
    model.fit((X[:, :1], X), verbose=0)
    whole = np.arange(6).reshape(3, 2)
    assert model.predict(whole, whole).shape == (3, 1)
    found = model.predict(whole + 0.5, whole + 0.5)
    assert found == pytest.approx(_Pair.predict(copy.deepcopy(model), whole + 0.5, whole + 0.5))


def test_a_frozen_layer_keeps_its_parameters() -> None:
    model = _Pair()
    model.fit((X[:, :1], X), verbose=0)
    model.left.freeze()
    before = [getattr(model, name).parameters()[0].numpy() for name in ("left", "right")]
    model.fit((X[:, :1], X), verbose=0)
    after = [getattr(model, name).parameters()[0].numpy() for name in ("left", "right")]
    assert np.array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])
