"""What happens to gradients before an update: clipping, accumulation, groups, loss scaling."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CalderaError


def _moved(optimizer: optim.Optimizer, slopes: list[np.ndarray]) -> list[np.ndarray]:
    """How far a step of rate 1 moves parameters whose gradients are these."""
    variables = [op.var(f"w{i}", slope.shape, dtype="float64") for i, slope in enumerate(slopes)]
    terms = [op.sum(w * slope) for w, slope in zip(variables, slopes, strict=True)]
    loss = terms[0]
    for term in terms[1:]:
        loss = loss + term
    cd.compile(optimizer.train(loss, variables)).run()
    return [-variable.numpy() for variable in variables]


def test_clipping_by_value() -> None:
    slopes = [np.array([[3.0, -0.25], [-7.0, 0.5]]), np.array(-2.0)]
    moved = _moved(optim.SGD(1.0, clip=optim.ClipValue(0.5)), slopes)
    np.testing.assert_array_equal(moved[0], [[0.5, -0.25], [-0.5, 0.5]])
    np.testing.assert_array_equal(moved[1], -0.5)


@pytest.mark.parametrize("limit", [0.5, 6.9, 7.1, 100.0])
def test_clipping_by_the_norm_of_all_gradients(limit: float) -> None:
    slopes = [np.array([[2.0, -3.0], [6.0, 0.0]]), np.array(0.0), np.array([0.0])]
    moved = _moved(optim.SGD(1.0, clip=optim.ClipNorm(limit)), slopes)
    if limit > 7.0:
        np.testing.assert_array_equal(moved[0], slopes[0])
    else:
        np.testing.assert_allclose(moved[0], slopes[0] * (limit / 7.0), rtol=1e-14)


def test_gradients_of_zero_stay_zero() -> None:
    (moved,) = _moved(optim.SGD(1.0, clip=optim.ClipNorm(1.0)), [np.zeros(3)])
    np.testing.assert_array_equal(moved, 0.0)


def test_the_norm_spans_parameters_of_different_dtypes() -> None:
    a = op.var("a", (), dtype="float32")
    b = op.var("b", (), dtype="float64")
    optimizer = optim.SGD(1.0, clip=optim.ClipNorm(1.0))
    cd.compile(optimizer.train(op.cast(a * 3.0, "float64") + b * 4.0, [a, b])).run()
    assert a.numpy().item() == pytest.approx(-0.6, rel=1e-6)
    assert b.numpy().item() == pytest.approx(-0.8, rel=1e-14)


# --- accumulation


class Regression:
    """A linear model on whole numbers, so that sums of gradients are exact in any order."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.w = op.var("w", (3,), fill=np.array([1.0, -2.0, 3.0]), dtype="float64")
        self.optimizer = optimizer
        self.plans: dict[int, cd.Plan] = {}

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        count = len(x)
        if count not in self.plans:
            inputs = op.input("x", (count, 3), dtype="float64")
            targets = op.input("y", (count,), dtype="float64")
            loss = op.mean(op.square(inputs @ self.w - targets))
            self.plans[count] = cd.compile(self.optimizer.train(loss, [self.w], weight=count))
        self.plans[count].run({"x": x, "y": y})


RNG = np.random.default_rng(4)
X = RNG.integers(-3, 4, size=(16, 3)).astype(float)
Y = RNG.integers(-3, 4, size=16).astype(float)


MAKERS = {
    "momentum": lambda **options: optim.SGD(0.125, momentum=0.5, **options),
    "clipped": lambda **options: optim.Adam(0.125, clip=optim.ClipNorm(2.0), **options),
    "schedule": lambda **options: optim.SGD(optim.Exponential(0.125, factor=0.5), **options),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("sizes", [(8,), (4, 4), (2, 2, 2, 2), (4, 1, 2, 1)])
def test_micro_batches_equal_the_batch_they_make_up(name: str, sizes: tuple[int, ...]) -> None:
    whole = Regression(MAKERS[name]())
    parts = Regression(MAKERS[name](accumulate=len(sizes)))
    whole.run(X[:8], Y[:8])
    at = 0
    for size in sizes:
        np.testing.assert_array_equal(parts.w.numpy(), [1.0, -2.0, 3.0])
        parts.run(X[at : at + size], Y[at : at + size])
        at += size
    np.testing.assert_array_equal(parts.w.numpy(), whole.w.numpy())


@pytest.mark.parametrize("name", MAKERS)
def test_accumulation_starts_anew_after_each_step(name: str) -> None:
    whole, parts = Regression(MAKERS[name]()), Regression(MAKERS[name](accumulate=3))
    for start in (0, 8):
        whole.run(X[start : start + 8], Y[start : start + 8])
        for first, last in ((0, 3), (3, 4), (4, 8)):
            parts.run(X[start + first : start + last], Y[start + first : start + last])
        np.testing.assert_allclose(parts.w.numpy(), whole.w.numpy(), rtol=1e-14)
    assert parts.optimizer.step.numpy() == whole.optimizer.step.numpy() == 2


def test_a_micro_batch_that_overflows_is_left_out() -> None:
    w = op.var("w", ())
    factor = op.var("factor", (), fill=1.0)
    scale = optim.LossScale(8.0)
    optimizer = optim.SGD(1.0, accumulate=2)
    plan = cd.compile(optimizer.train(w * factor, [w], loss_scale=scale))
    seen = []
    for value in (1.0, np.inf, 3.0, 5.0):
        factor.assign(value)
        plan.run()
        seen.append(w.numpy().item())
    assert seen == [0.0, 0.0, -2.0, -2.0]
    assert optimizer.step.numpy() == 1
    assert scale.scale.numpy() == 4.0


def test_ranks_with_unequal_parts_equal_one() -> None:
    def work(communicator: Communicator) -> np.ndarray:
        device = f"loopback:{communicator.rank}"
        w = op.var("w", (3,), fill=np.array([1.0, -2.0, 3.0]), dtype="float64", device=device)
        optimizer = optim.SGD(0.125, momentum=0.5, accumulate=2)
        for first, last in ((0, 5), (5, 8)):
            middle = first + 2
            mine = slice(first, middle) if communicator.rank == 0 else slice(middle, last)
            error = op.square(op.cast(X[mine], "float64") @ w - Y[mine])
            loss = op.sum(error) / float(last - first)
            gradients = [op.all_sum(g) for g in op.grad(loss, [w])]
            updates = optimizer.apply([w], gradients, weight=last - first)
            cd.compile(updates, communicator=communicator).run()
        return w.numpy()

    whole = Regression(optim.SGD(0.125, momentum=0.5))
    whole.run(X[:8], Y[:8])
    for found in run_virtual_ranks(2, work):
        np.testing.assert_array_equal(found, whole.w.numpy())


# --- groups


def _names(group: optim.Group, *names: str) -> list[str]:
    return [name for name in names if group.holds(op.var(name, ()))]


def test_a_pattern_fits_a_name_or_its_end() -> None:
    names = ("bias", "head/bias", "head/weight", "bias_table", "a/head/weight", "head")
    assert _names(optim.Group("bias"), *names) == ["bias", "head/bias"]
    assert _names(optim.Group("head/*"), *names) == ["head/bias", "head/weight", "a/head/weight"]
    assert _names(optim.Group("*"), *names) == list(names)
    assert _names(optim.Group(["bias", "bias_t?ble"]), *names) == [
        "bias",
        "head/bias",
        "bias_table",
    ]


def test_the_first_group_that_matches_counts() -> None:
    w, b = op.var("head/w", ()), op.var("head/b", ())
    groups = [
        optim.Group([b], learning_rate_factor=0.5),
        optim.Group("head/*", learning_rate_factor=0.25),
    ]
    cd.compile(optim.SGD(1.0, groups=groups).train(w + b, [w, b])).run()
    assert (w.numpy().item(), b.numpy().item()) == (-0.25, -0.5)


def test_a_factor_of_zero_keeps_parameters_as_they_are() -> None:
    w, b = op.var("w", (), fill=3.0), op.var("b", ())
    optimizer = optim.SGD(1.0, weight_decay=0.5, groups=[optim.Group("w", learning_rate_factor=0)])
    cd.compile(optimizer.train(w + b, [w, b])).run()
    assert (w.numpy().item(), b.numpy().item()) == (3.0, -1.0)


def test_a_group_without_parameters_is_an_error() -> None:
    w = op.var("dense/weight", ())
    with pytest.raises(cd.ConfigError, match="group 'biass', got only dense/weight"):
        optim.SGD(1.0, groups=[optim.Group("biass")]).train(w * 1.0, [w])
    with pytest.raises(cd.ConfigError, match="group 'dense/\\*'"):
        optim.SGD(1.0, groups=[optim.Group("*"), optim.Group("dense/*")]).train(w * 1.0, [w])
    with pytest.raises(cd.ConfigError, match="a name pattern, a variable or a list"):
        optim.Group([3])  # type: ignore[list-item]
    with pytest.raises(cd.ConfigError, match="factor >= 0"):
        optim.Group("w", learning_rate_factor=-1.0)
    with pytest.raises(cd.ConfigError, match="groups= a list"):
        optim.SGD(groups=optim.Group("w"))  # type: ignore[arg-type]


# --- loss scaling


def test_the_scale_grows_after_good_steps_and_halves_after_overflow() -> None:
    w = op.var("w", (2,), fill=cd.one())
    factor = op.var("factor", (), fill=1.0)
    scale = optim.LossScale(8.0, growth_interval=3)
    plan = cd.compile(optim.GradientDescent(0.5).train(op.sum(w * factor), [w], loss_scale=scale))
    seen = []
    for value in (1.0, 1.0, 1.0, np.inf, 1.0):
        factor.assign(value)
        before = w.numpy()
        plan.run()
        seen.append(scale.scale.numpy().item())
        moved = 0.0 if np.isinf(value) else 0.5
        np.testing.assert_allclose(before - w.numpy(), moved)
    assert seen == [8.0, 8.0, 16.0, 8.0, 8.0]


@pytest.mark.parametrize("name", list(optim.optimizers))
def test_a_step_that_is_not_ok_changes_nothing(name: str) -> None:
    w = op.var("w", (2,), fill=np.array([1.0, 2.0]), dtype="float64")
    ok = op.input("ok", (), dtype="bool")
    optimizer = optim.get(name)
    plan = cd.compile(optimizer.apply([w], [op.grad(op.sum(w * w), w)], ok=ok))
    plan.run({"ok": True})
    before = [w.numpy(), *(variable.numpy() for variable in optimizer.variables())]
    assert not np.array_equal(before[0], [1.0, 2.0])
    plan.run({"ok": False})
    after = [w.numpy(), *(variable.numpy() for variable in optimizer.variables())]
    for left, right in zip(before, after, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_variable_that_a_loss_does_not_depend_on_can_stay() -> None:
    used, unused = (op.var(name, (), fill=cd.constant(3.0)) for name in ("used", "unused"))
    with pytest.raises(CalderaError, match="unused='zero'"):
        optim.SGD(0.1).train(used**2.0, [used, unused])
    step = cd.compile(optim.SGD(0.1).train(used**2.0, [used, unused], unused="zero"))
    step.run()
    assert (used.numpy(), unused.numpy()) == (pytest.approx(2.4), 3.0)
