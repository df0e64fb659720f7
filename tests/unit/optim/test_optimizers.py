"""Optimizers against their published rules, written out in NumPy and float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim

STARTS = [np.array([[1.0, -2.0], [0.5, 3.0]]), np.array(2.0), np.zeros(3)]
Rule = Callable[[np.ndarray], Iterator[np.ndarray]]


def _gradient(w: np.ndarray) -> np.ndarray:
    """The gradient of sum(w ** 3 / 3 + w)."""
    return w**2 + 1


def _train(optimizer: optim.Optimizer, start: np.ndarray, steps: int = 5) -> list[np.ndarray]:
    return _train_on(optimizer, op.var("w", start.shape, fill=start, dtype="float64"), steps)


def _train_on(optimizer: optim.Optimizer, w: cd.Variable, steps: int) -> list[np.ndarray]:
    plan = cd.compile(optimizer.train(op.sum(w * w * w / 3.0 + w), [w]))
    seen = []
    for _ in range(steps):
        plan.run()
        seen.append(w.numpy())
    return seen


def _curved(w: np.ndarray) -> np.ndarray:
    """The gradient of sum(w ** 4 / 4 - w ** 2)."""
    return w**3 - 2 * w


def _norm(w: np.ndarray) -> float:
    return float(np.sqrt(np.sum(w * w)))


# --- the rules, as published


def descent(w: np.ndarray, rate: float = 0.01) -> Iterator[np.ndarray]:
    while True:
        w = w - rate * _gradient(w)
        yield w


def momentum(
    w: np.ndarray, rate: float = 0.01, mu: float = 0.9, nesterov: bool = False, l2: float = 0.0
) -> Iterator[np.ndarray]:
    velocity = np.zeros_like(w)
    while True:
        g = _gradient(w) + l2 * w
        velocity = mu * velocity + g
        w = w - rate * (g + mu * velocity if nesterov else velocity)
        yield w


def lasso(w: np.ndarray) -> Iterator[np.ndarray]:
    while True:
        w = w - 0.01 * (_gradient(w) + 0.3 * np.sign(w))
        yield w


def adagrad(w: np.ndarray) -> Iterator[np.ndarray]:
    total = np.zeros_like(w)
    while True:
        g = _gradient(w)
        total = total + g * g
        w = w - 0.1 * g / (np.sqrt(total) + 1e-6)
        yield w


def rmsprop(
    w: np.ndarray, centered: bool = False, mu: float = 0.0, rho: float = 0.9
) -> Iterator[np.ndarray]:
    square, mean, velocity = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    while True:
        g = _gradient(w)
        square = rho * square + (1 - rho) * g * g
        mean = rho * mean + (1 - rho) * g
        spread = square - mean**2 if centered else square
        velocity = mu * velocity + g / (np.sqrt(spread) + 1e-6)
        w = w - 0.01 * velocity
        yield w


def _adam_directions(w: np.ndarray, l2: float) -> Generator[np.ndarray, np.ndarray, None]:
    """Gives each direction, and is sent the parameter that came of it."""
    mean, square = np.zeros_like(w), np.zeros_like(w)
    step = 0
    while True:
        step += 1
        g = _gradient(w) + l2 * w
        mean = 0.8 * mean + 0.2 * g
        square = 0.95 * square + 0.05 * g * g
        w = yield (mean / (1 - 0.8**step)) / (np.sqrt(square / (1 - 0.95**step)) + 1e-6)


def adam(w: np.ndarray, l2: float = 0.0, decoupled: float = 0.0) -> Iterator[np.ndarray]:
    directions = _adam_directions(w, l2)
    direction = next(directions)
    while True:
        w = w - 0.1 * (direction + decoupled * w)
        yield w
        direction = directions.send(w)


def lamb(w: np.ndarray) -> Iterator[np.ndarray]:
    directions = _adam_directions(w, l2=0.0)
    direction = next(directions)
    while True:
        whole = direction + 0.2 * w
        ratio = _norm(w) / _norm(whole) if _norm(w) > 0 else 1.0
        w = w - 0.1 * ratio * whole
        yield w
        direction = directions.send(w)


def lars(w: np.ndarray) -> Iterator[np.ndarray]:
    velocity = np.zeros_like(w)
    while True:
        g = _gradient(w)
        trust = 0.02 * _norm(w) / (_norm(g) + 0.2 * _norm(w)) if _norm(w) > 0 else 1.0
        velocity = 0.9 * velocity + 0.1 * trust * (g + 0.2 * w)
        w = w - velocity
        yield w


def nadam(w: np.ndarray, decay: float = 4e-3) -> Iterator[np.ndarray]:
    mean, square, step, product = np.zeros_like(w), np.zeros_like(w), 0, 1.0
    while True:
        step += 1
        g = _gradient(w)
        mean = 0.8 * mean + 0.2 * g
        square = 0.95 * square + 0.05 * g * g
        now, later = (0.8 * (1 - 0.5 * 0.96 ** (t * decay)) for t in (step, step + 1))
        product *= now
        ahead = later * mean / (1 - product * later) + (1 - now) * g / (1 - product)
        w = w - 0.1 * ahead / (np.sqrt(square / (1 - 0.95**step)) + 1e-6)
        yield w


def adamax(w: np.ndarray) -> Iterator[np.ndarray]:
    mean, largest, step = np.zeros_like(w), np.zeros_like(w), 0
    while True:
        step += 1
        g = _gradient(w)
        mean = 0.8 * mean + 0.2 * g
        largest = np.maximum(0.95 * largest, np.abs(g) + 1e-6)
        w = w - 0.1 / (1 - 0.8**step) * mean / largest
        yield w


def adadelta(w: np.ndarray) -> Iterator[np.ndarray]:
    square, moved = np.zeros_like(w), np.zeros_like(w)
    while True:
        g = _gradient(w)
        square = 0.8 * square + 0.2 * g * g
        change = np.sqrt(moved + 1e-3) / np.sqrt(square + 1e-3) * g
        moved = 0.8 * moved + 0.2 * change * change
        w = w - 0.5 * change
        yield w


def lion(w: np.ndarray) -> Iterator[np.ndarray]:
    mean = np.zeros_like(w)
    while True:
        g = _gradient(w)
        w = w - 0.1 * (np.sign(0.8 * mean + 0.2 * g) + 0.3 * w)
        mean = 0.95 * mean + 0.05 * g
        yield w


def amsgrad(w: np.ndarray, decoupled: float = 0.0) -> Iterator[np.ndarray]:
    mean, square, largest, step = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w), 0
    while True:
        step += 1
        g = _gradient(w)
        mean = 0.8 * mean + 0.2 * g
        square = 0.95 * square + 0.05 * g * g
        largest = np.maximum(largest, square)
        size = np.sqrt(largest / (1 - 0.95**step)) + 1e-6
        w = w - 0.1 * (mean / (1 - 0.8**step) / size + decoupled * w)
        yield w


def radam(w: np.ndarray) -> Iterator[np.ndarray]:
    mean, square, step = np.zeros_like(w), np.zeros_like(w), 0
    longest = 2 / (1 - 0.95) - 1
    while True:
        step += 1
        g = _gradient(w)
        mean = 0.8 * mean + 0.2 * g
        square = 0.95 * square + 0.05 * g * g
        left = 1 - 0.95**step
        now = longest - 2 * step * 0.95**step / left
        change = mean / (1 - 0.8**step)
        if now > 5:
            top, bottom = (now - 4) * (now - 2) * longest, (longest - 4) * (longest - 2) * now
            change = change * np.sqrt(left) / (np.sqrt(square) + 1e-6) * np.sqrt(top / bottom)
        w = w - 0.02 * change
        yield w


def asgd(w: np.ndarray) -> Iterator[np.ndarray]:
    eta = 0.05
    for step in itertools.count(1):
        w = w * (1 - 0.1 * eta) - eta * _gradient(w)
        yield w
        eta = 0.05 / (1 + 0.1 * 0.05 * step) ** 0.6


def rprop(w: np.ndarray) -> Iterator[np.ndarray]:
    last, size = np.zeros_like(w), np.full_like(w, 0.3)
    while True:
        g = _curved(w)
        turned, same = g * last < 0, g * last > 0
        size = np.clip(np.where(same, 1.5 * size, np.where(turned, 0.4 * size, size)), 0.05, 0.9)
        last = np.where(turned, 0.0, g)
        w = w - np.sign(last) * size
        yield w


def adafactor(w: np.ndarray) -> Iterator[np.ndarray]:
    rows = columns = square = 0.0
    for step in itertools.count(1):
        g = _gradient(w)
        new = step**-0.7
        most = min(0.5, step**-0.5) * max(0.01, _norm(w) / np.sqrt(w.size))
        if w.ndim == 2:
            rows = rows + new * ((g * g).mean(1, keepdims=True) - rows)
            columns = columns + new * ((g * g).mean(0, keepdims=True) - columns)
            estimate = rows * columns / max(rows.mean(), 1e-6)
        else:
            estimate = square = square + new * (g * g - square)
        change = g / np.sqrt(np.maximum(estimate, 1e-12))
        w = w - 0.5 * 0.2 * w - most / max(1.0, _norm(change) / np.sqrt(w.size)) * change
        yield w


def muon(w: np.ndarray) -> Iterator[np.ndarray]:
    if w.ndim != 2:
        yield from _small_adamw(w)
    mean = np.zeros_like(w)
    while True:
        g = _gradient(w)
        mean = 0.9 * mean + 0.1 * g
        x = 0.9 * mean + 0.1 * g
        x = x / _norm(x)
        for _ in range(3):
            gram = x @ x.T
            x = 3.0 * x - 3.2 * gram @ x + 1.2 * gram @ gram @ x
        w = w * (1 - 0.1 * 0.2) - 0.1 * x
        yield w


def _small_adamw(w: np.ndarray) -> Iterator[np.ndarray]:
    mean, square = np.zeros_like(w), np.zeros_like(w)
    for step in itertools.count(1):
        g = _gradient(w)
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
        size = np.sqrt(square / (1 - 0.999**step)) + 1e-8
        w = w - 0.1 * (mean / (1 - 0.9**step) / size + 0.2 * w)
        yield w


ADAM = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}
RULES: dict[str, tuple[Callable[[], optim.Optimizer], Rule]] = {
    "descent": (lambda: optim.GradientDescent(0.01), descent),
    "momentum": (lambda: optim.SGD(0.01, momentum=0.9), momentum),
    "nesterov": (
        lambda: optim.SGD(0.01, momentum=0.9, nesterov=True),
        lambda w: momentum(w, nesterov=True),
    ),
    "sgd l2": (
        lambda: optim.SGD(0.01, momentum=0.9, weight_decay=0.3),
        lambda w: momentum(w, l2=0.3),
    ),
    "sgd l1": (lambda: optim.SGD(0.01, decay=optim.L1(0.3)), lasso),
    "adagrad": (lambda: optim.Adagrad(0.1, epsilon=1e-6), adagrad),
    "rmsprop": (lambda: optim.RMSProp(smoothing=0.9, epsilon=1e-6), rmsprop),
    "rmsprop centered": (
        lambda: optim.RMSProp(smoothing=0.9, momentum=0.7, centered=True, epsilon=1e-6),
        lambda w: rmsprop(w, centered=True, mu=0.7),
    ),
    "adam": (lambda: optim.Adam(0.1, **ADAM), adam),
    "adam l2": (lambda: optim.Adam(0.1, weight_decay=0.3, **ADAM), lambda w: adam(w, l2=0.3)),
    "adamw": (
        lambda: optim.AdamW(0.1, weight_decay=0.2, **ADAM),
        lambda w: adam(w, decoupled=0.2),
    ),
    "adam decoupled": (
        lambda: optim.Adam(0.1, decay=optim.Decoupled(0.2), **ADAM),
        lambda w: adam(w, decoupled=0.2),
    ),
    "nadam": (lambda: optim.Nadam(0.1, **ADAM), nadam),
    "nadam plain": (
        lambda: optim.Nadam(0.1, momentum_decay=0.0, **ADAM),
        lambda w: nadam(w, decay=0.0),
    ),
    "nadam fast": (
        lambda: optim.Nadam(0.1, momentum_decay=9.0, **ADAM),
        lambda w: nadam(w, decay=9.0),
    ),
    "amsgrad": (lambda: optim.Adam(0.1, amsgrad=True, **ADAM), amsgrad),
    "amsgrad decoupled": (
        lambda: optim.AdamW(0.1, amsgrad=True, weight_decay=0.2, **ADAM),
        lambda w: amsgrad(w, decoupled=0.2),
    ),
    "radam": (lambda: optim.RAdam(0.02, **ADAM), radam),
    "asgd": (lambda: optim.ASGD(0.05, shrinkage=0.1, power=0.6), asgd),
    "adafactor": (
        lambda: optim.Adafactor(0.5, power=0.7, epsilon=1e-6, least_size=0.01, weight_decay=0.2),
        adafactor,
    ),
    "muon": (
        lambda: optim.Muon(
            0.1, momentum=0.9, coefficients=(3.0, -3.2, 1.2), iterations=3, weight_decay=0.2
        ),
        muon,
    ),
    "adamax": (lambda: optim.Adamax(0.1, **ADAM), adamax),
    "adadelta": (lambda: optim.Adadelta(0.5, smoothing=0.8, epsilon=1e-3), adadelta),
    "lion": (lambda: optim.Lion(0.1, beta1=0.8, beta2=0.95, weight_decay=0.3), lion),
    "lars": (lambda: optim.LARS(0.1, trust=0.02, weight_decay=0.2), lars),
    "lamb": (lambda: optim.LAMB(0.1, weight_decay=0.2, **ADAM), lamb),
}


@pytest.mark.parametrize("start", STARTS, ids=["matrix", "scalar", "zeros"])
@pytest.mark.parametrize("name", RULES)
def test_an_optimizer_follows_its_published_rule(name: str, start: np.ndarray) -> None:
    make, rule = RULES[name]
    expected = rule(start.copy())
    for seen in _train(make(), start, steps=8):
        np.testing.assert_allclose(seen, next(expected), rtol=1e-12, atol=1e-14)


def test_rprop_turns_back_by_smaller_steps() -> None:
    start = np.array([1.0, -2.0, 0.0])
    w = op.var("w", (3,), fill=start, dtype="float64")
    optimizer = optim.Rprop(0.3, factors=(0.4, 1.5), sizes=(0.05, 0.9))
    plan = cd.compile(optimizer.train(op.sum(w**4.0 / 4.0 - w * w), [w]))
    for expected in itertools.islice(rprop(start), 12):
        plan.run()
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-12)


def test_asgd_averages_after_its_start() -> None:
    w = op.var("w", (3,), fill=np.array([1.0, -2.0, 0.5]), dtype="float64")
    optimizer = optim.ASGD(0.05, shrinkage=0.1, power=0.6, start=2)
    seen = _train_on(optimizer, w, steps=9)
    # The first step beyond the start whose weight is below 1 is the fifth.
    np.testing.assert_allclose(
        optimizer.state[w]["average"].numpy(), np.mean(seen[3:], axis=0), rtol=1e-12
    )


def test_a_tall_matrix_and_a_wide_one_are_made_orthogonal() -> None:
    for shape, scale in (((6, 2), 1.0), ((2, 6), 3.0**0.5)):
        start = np.random.default_rng(0).normal(size=shape)
        w = op.var("w", shape, fill=start, dtype="float64")
        muon = optim.Muon(
            0.5, momentum=0.0, weight_decay=0.0, coefficients=(1.875, -1.25, 0.375), iterations=30
        )
        _train_on(muon, w, steps=1)
        change = (start - w.numpy()) / (0.5 * scale)
        np.testing.assert_allclose(np.linalg.svd(change)[1], 1.0, rtol=1e-9)


def test_the_state_of_adafactor_is_a_row_and_a_column() -> None:
    w = op.var("w", (5, 4, 3), fill=1.0)
    adafactor = optim.Adafactor()
    _train_on(adafactor, w, steps=1)
    shapes = {name: each.shape for name, each in adafactor.state[w].items()}
    assert shapes == {"rows": (5, 4, 1), "columns": (5, 1, 3)}


def test_the_usual_settings_are_those_of_the_papers() -> None:
    assert optim.Adam().arguments()["learning_rate"] == 1e-3
    assert (optim.Adam().beta1, optim.Adam().beta2) == (0.9, 0.999)
    assert optim.AdamW().decay == optim.Decoupled(0.01)
    assert optim.Adam().decay == optim.SGD().decay == optim.L2(0.0)


def test_adam_corrects_its_start_in_float32() -> None:
    # 1 - 0.999 ** step, computed as it stands, is wrong by 1e-5 in float32.
    w = op.var("w", (), fill=1.0)
    plan = cd.compile(optim.Adam(1.0, epsilon=0.0).train(w * 3.0, [w]))
    plan.run()
    assert w.numpy().item() == pytest.approx(0.0, abs=3e-7)


@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW, optim.LARS, optim.LAMB])
def test_a_group_scales_the_rate_and_replaces_the_decay(make: type[optim.Optimizer]) -> None:
    def trained(name: str, optimizer: optim.Optimizer) -> dict[str, np.ndarray]:
        w, b = (
            op.var(f"{name}/{part}", (2, 2), fill=STARTS[0], dtype="float64")
            for part in ("weight", "bias")
        )
        cd.compile(optimizer.train(op.sum(w * w) + op.sum(b * b), [w, b])).run()
        return {"weight": w.numpy(), "bias": b.numpy()}

    group = optim.Group("bias", learning_rate_factor=2.0, weight_decay=0.0)
    grouped = trained("dense", make(0.1, weight_decay=0.4, groups=[group]))
    plain = trained("dense", make(0.1, weight_decay=0.4))
    bare = trained("dense", make(0.2, weight_decay=0.0))
    np.testing.assert_allclose(grouped["weight"], plain["weight"], rtol=1e-14)
    np.testing.assert_allclose(grouped["bias"], bare["bias"], rtol=1e-14)
    assert not np.allclose(plain["bias"], bare["bias"])


def test_the_learning_rate_can_be_changed_between_runs() -> None:
    w = op.var("w", (), fill=cd.constant(0.0))
    optimizer = optim.GradientDescent(1.0)
    plan = cd.compile(optimizer.train(w * 1.0, [w]))
    plan.run()
    optimizer.learning_rate.assign(0.25)
    plan.run()
    assert w.numpy().item() == -1.25
    assert optimizer.current_rate() == 0.25


def test_state_is_shared_by_plans_of_different_shapes() -> None:
    w = op.var("w", (3,), fill=cd.one(), dtype="float64")
    optimizer = optim.Adam(0.1)
    for count in (4, 2):
        x = op.var("x", (count, 3), fill=cd.one(), dtype="float64")
        cd.compile(optimizer.train(op.sum(x * w), [w])).run()
    assert optimizer.step.numpy() == 2
    assert len(optimizer.state) == 1


def test_state_of_a_half_precision_parameter_is_float32() -> None:
    w = op.var("w", (3,), fill=cd.one(), dtype="float16")
    optimizer = optim.Adam(0.1, accumulate=2)
    plan = cd.compile(optimizer.train(op.sum(w * w), [w]))
    plan.run()
    plan.run()
    np.testing.assert_allclose(w.numpy(), 0.9, rtol=1e-3)
    kept = [v.dtype.name for v in optimizer.variables() if v.shape]
    assert kept == ["float32", "float32", "float32"]


def test_all_variables_of_an_optimizer_can_be_saved_and_put_back() -> None:
    def made() -> tuple[cd.Variable, optim.Optimizer, cd.Plan]:
        w = op.var("w", (2,), fill=np.array([1.0, -2.0]), dtype="float64")
        optimizer = optim.RMSProp(0.1, momentum=0.9, centered=True, accumulate=2)
        return w, optimizer, cd.compile(optimizer.train(op.sum(w * w), [w]))

    w, optimizer, plan = made()
    for _ in range(3):
        plan.run()
    kept = {variable.name: variable.numpy() for variable in optimizer.variables()}
    assert len(kept) == len(optimizer.variables())
    other, second, again = made()
    other.assign(w.numpy())
    for variable in second.variables():
        variable.assign(kept[variable.name])
    for _ in range(3):
        plan.run()
        again.run()
    np.testing.assert_array_equal(w.numpy(), other.numpy())


def test_minimize_says_whether_it_converged() -> None:
    x = op.var("x", (), fill=cd.constant(3.0), dtype="float64")
    found = optim.GradientDescent(0.05).minimize(x**2 - 2.0, [x], steps=5)
    assert (found.steps, found.converged) == (5, False)
    assert found.value == pytest.approx(float(x) ** 2 - 2.0)
    found = optim.Adam(0.05).minimize(x**2 - 2.0, [x], steps=5000, tolerance=1e-9)
    assert found.converged
    assert found.value == pytest.approx(-2.0)


def test_a_custom_optimizer_gets_everything_the_base_class_has() -> None:
    @optim.optimizers.register("test_sign_descent")
    class SignDescent(optim.Optimizer):
        keeps = ("last",)

        def __init__(
            self,
            learning_rate: optim.Schedule | float = 0.5,
            *,
            scale: float = 1.0,
            **options: object,
        ) -> None:
            super().__init__(learning_rate, **options)  # type: ignore[arg-type]
            self.scale = scale

        def update(self, parameter, gradient, state, rate, step):  # type: ignore[no-untyped-def]
            direction = op.sign(gradient + state["last"])
            return parameter - rate * self.scale * direction, {"last": gradient}

    w = op.var("w", (2,), fill=np.array([5.0, -5.0]), dtype="float64")
    optimizer = optim.get(
        "test_sign_descent",
        scale=2.0,
        accumulate=2,
        clip=optim.ClipValue(1.0),
        decay=optim.Decoupled(0.1),
    )
    plan = cd.compile(optimizer.train(op.sum(w * w), [w]))
    plan.run()
    np.testing.assert_array_equal(w.numpy(), [5.0, -5.0])
    plan.run()
    np.testing.assert_allclose(w.numpy(), [5.0 * 0.95 - 1.0, -5.0 * 0.95 + 1.0])
    np.testing.assert_array_equal(optimizer.state[w]["last"].numpy(), [1.0, -1.0])
    again = optim.optimizers.from_config(optimizer.config())
    assert again.arguments()["scale"] == 2.0


def test_mistakes_are_named() -> None:
    x = op.var("x", (), fill=cd.constant(3.0))
    with pytest.raises(cd.ConfigError, match="learning rate above 0, got -1"):
        optim.Adam(-1.0)
    with pytest.raises(cd.ConfigError, match="learning rate above 0, got fast"):
        optim.Adam("fast")  # type: ignore[arg-type]
    with pytest.raises(cd.ConfigError, match="0 <= beta1 < 1, got 1"):
        optim.Adam(beta1=1.0)
    with pytest.raises(cd.ConfigError, match="momentum above 0 with nesterov"):
        optim.SGD(nesterov=True)
    with pytest.raises(cd.ConfigError, match="trust above 0"):
        optim.LARS(trust=0.0)
    with pytest.raises(cd.ConfigError, match="weight_decay= or decay="):
        optim.SGD(weight_decay=0.1, decay=optim.L1(0.1))
    with pytest.raises(cd.ConfigError, match="strength >= 0, got -1"):
        optim.SGD(weight_decay=-1.0)
    with pytest.raises(cd.ConfigError, match=r"clip= an object such as optim.ClipNorm\(1.0\), got"):
        optim.SGD(clip=1.0)  # type: ignore[arg-type]
    with pytest.raises(cd.ConfigError, match="accumulate >= 1, got 0"):
        optim.SGD(accumulate=0)
    with pytest.raises(cd.ConfigError, match="rule for the learning rate, got GrowingBatch"):
        optim.SGD(optim.GrowingBatch(4))
    with pytest.raises(cd.ConfigError, match=r"finite loss.*smaller learning rate"):
        optim.GradientDescent(100.0).minimize(x**4, [x])
    with pytest.raises(cd.ConfigError, match="call train, apply or minimize"):
        _ = optim.Adam().step
    with pytest.raises(cd.ConfigError, match="different variables, and a gradient for each"):
        optim.Adam().apply([x, x], [x, x])
    with pytest.raises(cd.ConfigError, match="0 gradients for no variables"):
        optim.Adam().apply([], [])

    class Forgetful(optim.Optimizer):
        keeps = ("mean",)

        def update(self, parameter, gradient, state, rate, step):  # type: ignore[no-untyped-def]
            return parameter, {}

    class Lonely(optim.Optimizer):
        def update(self, parameter, gradient, state, rate, step):  # type: ignore[no-untyped-def]
            return parameter - rate * gradient

    with pytest.raises(cd.ConfigError, match=r"Lonely.update: .* new parameter and a dict .*Expr"):
        Lonely(0.1).train(x * x, [x])
    with pytest.raises(cd.ConfigError, match="only the first step reads it"):
        optim.Rprop(optim.Cosine(0.1, steps=5))  # type: ignore[arg-type]
    for wrong in ((0.5, 0.9), (1.2, 0.5), (0.5,), 0.5):
        with pytest.raises(cd.ConfigError, match="factors"):
            optim.Rprop(factors=wrong)  # type: ignore[arg-type]
    with pytest.raises(cd.ConfigError, match="sizes above 0"):
        optim.Rprop(sizes=(0.0, 1.0))
    with pytest.raises(cd.ConfigError, match="three coefficients"):
        optim.Muon(coefficients=(1.0, 2.0))
    with pytest.raises(cd.ConfigError, match="original, match_rms_adamw, got 'other'"):
        optim.Muon(scale="other")
    with pytest.raises(cd.ConfigError, match="shrinkage, power and start >= 0"):
        optim.ASGD(power=-1.0)
    with pytest.raises(cd.ConfigError, match="most_change above 0"):
        optim.Adafactor(most_change=0.0)
    with pytest.raises(cd.ConfigError, match="new values for \\['mean'\\]"):
        Forgetful(0.1).train(x * x, [x])
