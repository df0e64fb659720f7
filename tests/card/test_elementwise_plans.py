"""Plans made of loops on a card: they give what the plans of the CPU give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.runtime.driver import driver
from tests.card.emulated import EmulatedDriver

Build = Callable[[Sequence[Any]], Sequence[Any]]


def _both(place: Device, build: Build, *arrays: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """What `build` computes from inputs, on the card and on the CPU."""
    inputs = [op.input(f"x{i}", a.shape, dtype=a.dtype.name) for i, a in enumerate(arrays)]
    outputs = list(build(inputs))
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    found = [
        [tensor.numpy() for tensor in cd.compile(outputs, device=device).run(feeds)]
        for device in (place, "cpu")
    ]
    return list(zip(*found, strict=True))


def _numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(list(shape)).normal(0, 1, shape).astype(BY_NAME[dtype])


def _product(x: Any, w: Any) -> Any:
    """A product of matrices as a sum."""
    return op.sum(op.reshape(x, (*x.shape, 1)) * w, axis=1)


def test_a_small_network_and_its_gradient(card: Device) -> None:
    def build(given: Sequence[Any]) -> Sequence[Any]:
        x, w1, b1, w2, b2 = given
        hidden = op.relu(_product(x, w1) + b1)
        y = _product(hidden, w2) + b2
        loss = op.mean(op.logsumexp(y, axis=1) - y[:, 0])
        return [loss, *op.grad(loss, [w1, b1, w2, b2])]

    arrays = [_numbers(12, 7), _numbers(7, 9), _numbers(9), _numbers(9, 4), _numbers(4)]
    for found, wanted in _both(card, build, *arrays):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_complex_numbers_and_their_gradients(libraries: Device) -> None:
    """All but factorisations is made of real kernels: products, loops, transforms, copies."""

    def build(given: Sequence[Any]) -> Sequence[Any]:
        z, w = given
        y = op.ifft(op.fft(z, axis=0) * w, axis=0)
        return [y @ w, z, op.grad(op.sum(op.abs(y)), z)]

    arrays = [
        (_numbers(4, 3) + 1j * _numbers(3, 4).T).astype("complex64"),
        (_numbers(3) + 1j * _numbers(1, 3)[0]).astype("complex64"),
    ]
    for found, wanted in _both(libraries, build, *arrays):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_loops_over_steps(card: Device, length: int, reverse: bool) -> None:
    def build(given: Sequence[Any]) -> Sequence[Any]:
        start, steps, scale = given

        def body(state: Any, x: Any) -> tuple[Any, Any]:
            state = op.tanh(state * scale + x)
            return state, op.sum(state, axis=0)

        last, sums = op.scan(body, start, steps, reverse=reverse)
        return [last, sums]

    arrays = [_numbers(3, 4), _numbers(length, 3, 4), _numbers(4)]
    for found, wanted in _both(card, build, *arrays):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_at_every_step(card: Device, dtype: str) -> None:
    def build(given: Sequence[Any]) -> Sequence[Any]:
        x, y = given
        return [x * y + x - y * 1.1, op.maximum(x, y) / (x * x + 1.0)]

    arrays = [_numbers(301, dtype=dtype), _numbers(301, dtype=dtype)[::-1].copy()]
    for found, wanted in _both(card, build, *arrays):
        np.testing.assert_array_equal(found, wanted)


def test_products_are_rounded_before_they_are_added(card: Device) -> None:
    """Whatever is fused: a multiply-add in one would give other digits."""

    def build(given: Sequence[Any]) -> Sequence[Any]:
        x, y, z = given
        return [x * y + z, x * y - z * z]

    arrays = [_numbers(257), _numbers(257)[::-1].copy(), _numbers(257) * 3]
    for found, wanted in _both(card, build, *arrays):
        np.testing.assert_array_equal(found, wanted)


def test_views_need_no_copy(card: Device) -> None:
    def build(given: Sequence[Any]) -> Sequence[Any]:
        (x,) = given
        turned = op.flip(op.transpose(x, (2, 0, 1)), axis=1)
        return [turned[1:, ::2] * 2.0, op.tile(x[0], (3, 2)), turned]

    for found, wanted in _both(card, build, _numbers(4, 5, 6)):
        np.testing.assert_array_equal(found, wanted)


def test_assignments(card: Device) -> None:
    values = _numbers(5, 3)
    results = []
    for place in (card, "cpu"):
        a = op.var("a", (5, 3), fill=values, device=place)
        b = op.var("b", (5, 3), fill=-values, device=place)
        plan = cd.compile([op.sum(a * b), op.assign(a, b + 1.0), op.assign(b, a)])
        plan.run()
        results.append([plan.run()[0].numpy(), a.numpy(), b.numpy()])
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_chain_is_one_launch(card: Device) -> None:
    here = driver()
    if not isinstance(here, EmulatedDriver):
        pytest.skip("only the emulated driver counts launches")
    x = op.input("x", (100, 12))
    plan = cd.compile([op.sum(op.exp(x * 2.0) + 1.0, axis=0)], device=card)
    plan.run({"x": np.zeros((100, 12), "float32")})
    card.stream.synchronize()
    here.launches.clear()
    plan.run({"x": np.zeros((100, 12), "float32")})
    card.stream.synchronize()
    assert here.launches == ["reduce"]


def test_a_side_that_is_not_taken_has_no_derivative(card: Device) -> None:
    def build(given: Sequence[Any]) -> Sequence[Any]:
        (x,) = given
        y = op.cond(op.sum(x) > 1e9, op.log, lambda v: v * v, x)
        _, z = op.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * op.sqrt(-s[1] * 0.0 + 2.0)), (0, x), 3
        )
        slopes = [op.grad(op.sum(each), x) for each in (y, z)]
        return [y, z, *slopes, op.grad(op.sum(slopes[0]), x)]

    for found, wanted in _both(card, build, -np.abs(_numbers(4, 3)) - 1):
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
