"""Inputs with open sizes: the same values as with known ones, one plan for each size, few kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy.open_sizes import MOST_SIZES, call_later
from caldera.errors import ConfigError, ShapeError

GENERATOR = np.random.default_rng(0)
W = GENERATOR.normal(size=(4, 3)).astype("float32")

CHAINS: dict[str, Any] = {
    "arithmetic": lambda x: (2.0 - x) * x / (1.0 + x * x) - x**2,
    "arrays beside it": lambda x: np.ones(4, "float32") - x @ W @ W.T + cd.tensor([1.0] * 4),
    "a mean over the open axis": lambda x: x - op.mean(x, axis=0),
    "softmax": lambda x: op.softmax(x, axis=0),
    "reshaped": lambda x: op.reshape(x, (-1, 2)),
    "joined": lambda x: op.concat([x, x[:, ::-1], op.zeros((2, 4))], axis=0),
    "several results": lambda x: op.add(*op.split(x, 2, axis=1)),
    "a dot with itself": lambda x: x @ op.transpose(x),
    "compared": lambda x: op.where((x > 0.0) & (x < 1.0), x, -x),
    "a scan": lambda x: op.scan(lambda s, row: (s + row, s * row), op.zeros(4), x)[1],
    "a gradient": lambda x: op.grad(op.sum(op.tanh(x) ** 2), x),
    "a part": lambda x: x[-1] + x[0, 2],
}


@pytest.mark.parametrize("name", CHAINS)
def test_values_are_those_of_known_sizes(name: str) -> None:
    function = CHAINS[name]
    found = function(op.input("x", (None, 4)))
    for size in (2, 5, 2):
        x = GENERATOR.normal(size=(size, 4)).astype("float32")
        wanted = function(op.input("x", (size, 4)))
        np.testing.assert_array_equal(found.eval(x=x).numpy(), wanted.eval(x=x).numpy())
        pairs = zip(found.shape, wanted.shape, strict=True)
        assert all(known in (None, size) for known, size in pairs)
    assert found.dtype == wanted.dtype


def test_shapes_show_which_sizes_are_open() -> None:
    x: Any = op.input("x", (None, 4))
    assert (x.shape, x.ndim, repr(x)) == ((None, 4), 2, "OpenExpr((None, 4) float32)")
    assert op.reshape(x, (-1,)).shape == (None,)
    assert op.sum(x, axis=0).shape == (4,)
    assert (x @ op.transpose(x)).shape == (None, None)


def test_what_does_not_fit_is_refused_where_it_is_written() -> None:
    x = op.input("x", (None, 4))
    with pytest.raises(ShapeError):
        x @ np.ones((3, 2), "float32")
    with pytest.raises(ConfigError, match="two inputs 'x'"):
        x + op.input("x", (None, 4))
    with pytest.raises(ConfigError, match="two inputs 'x'"):
        cd.compile([x, op.input("x", (None,))])
    with pytest.raises(ShapeError, match=r"input x: expected shape \(None, 4\), got \(2, 3\)"):
        op.exp(x).eval(x=np.ones((2, 3)))
    with pytest.raises(ConfigError, match="a value for the input 'x'"):
        op.exp(x).eval(y=np.ones((2, 4)))
    with pytest.raises(ConfigError, match="a value that is known"):
        bool(x > 0.0)
    with nn.trace(training=True), pytest.raises(ShapeError, match="known sizes in training"):
        nn.Dense(2)(x)


def test_what_takes_no_open_sizes_says_so() -> None:
    weight = op.var("w", (4,))
    loss = op.sum(op.input("x", (None, 4)) * weight)
    with pytest.raises(ConfigError, match=r"OpenExpr\(\(4,\) float32\)"):
        cd.optim.SGD(0.1).minimize(loss, [weight])
    with pytest.raises(ConfigError, match=r"sizes are known, got OpenExpr.*layers, eval and cd\.c"):
        weight.at[0].set(loss)


def test_steps_of_an_optimizer_share_its_state() -> None:
    """Batches of two sizes by turns, against a plan written down for each of them."""
    values = []
    for is_open in (True, False):
        weight, adam = op.var("w", (4,), fill=cd.constant(1.0)), cd.optim.Adam(0.1)
        plans: dict[int, Any] = {}
        for size in (5, 3):
            x = op.input("x", (None if is_open else size, 4))
            loss = op.mean(op.square(x @ weight - 1.0))
            plans[size] = cd.compile([loss, *adam.train(loss, [weight])])
            if is_open:
                plans[3] = plans[5]
                break
        generator = np.random.default_rng(1)
        for step in range(6):
            size = (5, 3)[step % 2]
            plans[size].run({"x": generator.normal(size=(size, 4))})
        values.append(weight.numpy())
    np.testing.assert_array_equal(*values)


def test_a_policy_of_layers_for_any_number_of_observations() -> None:
    seen = op.input("obs", (None, 4))
    net = nn.Sequential([nn.Dense(8, activation="tanh"), nn.BatchNorm(), nn.Dense(2)])
    scores = net(seen)
    plan: Any = cd.compile([op.argmax(scores, axis=1), scores])
    for size in (1, 3, 7, 1):
        x = GENERATOR.normal(size=(size, 4)).astype("float32")
        action, found = plan.run({"obs": x})
        np.testing.assert_allclose(found.numpy(), net(x).numpy(), atol=1e-6)
        assert action.shape == (size,)
    assert len(plan.kept) == 3
    assert len(net.parameters()) == 6


def test_states_beside_sequences_of_any_length() -> None:
    layer = nn.GRU(3, return_state=True)
    y, last = layer(op.input("x", (2, None, 4)), state=op.input("h", (2, 3)))
    plan = cd.compile([y, last])
    whole = GENERATOR.normal(size=(2, 6, 4)).astype("float32")
    state: Any = np.zeros((2, 3), "float32")
    for begin, end in ((0, 1), (1, 4), (4, 6)):
        found, state = plan.run({"x": whole[:, begin:end], "h": state})
    np.testing.assert_allclose(found.numpy(), layer(whole)[0].numpy(), atol=1e-6)


def test_few_plans_are_kept() -> None:
    plan: Any = cd.compile(op.sum(op.input("x", (None,))))
    for size in range(1, MOST_SIZES + 9):
        assert plan.run({"x": np.ones(size)})[0].item() == size
    assert len(plan.kept) == MOST_SIZES


def test_chains_of_any_length() -> None:
    """More ops than Python has frames, each recorded once."""
    x: Any = op.input("x", (None,))
    counted = 0

    def count(value: Any) -> Any:
        nonlocal counted
        counted += 1
        return value + 1.0

    y = x
    for _ in range(400):
        y = call_later(count, (op.relu(y),), {})
    assert y.shape == (None,)
    assert counted == 2 * 400  # for the two sizes with which shapes are found
    assert y.eval(x=[1.0, -2.0]).tolist() == [401.0, 400.0]


def test_inputs_of_which_only_the_size_is_used() -> None:
    x = op.input("x", (None, 2))
    plan = cd.compile([op.grad(op.sum(x), x), op.mean(x * op.input("y", (2,)))])
    for size in (2, 3):
        slope, _ = plan.run({"x": np.ones((size, 2)), "y": [1.0, 2.0]})
        assert slope.tolist() == [[1.0, 1.0]] * size
    assert op.grad(op.sum(x), x).eval(x=[[1.0, 2.0]]).tolist() == [[1.0, 1.0]]
    with pytest.raises(ConfigError, match="no inputs, got z"):
        op.grad(op.sum(x), x).eval(x=[[1.0, 2.0]], z=1.0)


def test_values_are_those_at_the_call() -> None:
    x: Any = op.input("x", (None, 2))
    parts, offset, outer = [x], np.ones(2, "float32"), [[np.ones(2, "float32")]]
    joined, moved, nested = op.concat(parts), x + offset, op.add(x, outer)[0]
    parts.append(x)
    offset[:] = outer[0][0][:] = 5.0
    for found in (joined + 1.0, moved, nested):
        assert found.eval(x=[[1.0, 2.0]]).tolist() == [[2.0, 3.0]]


def test_results_in_tuples_and_dicts_stay_separate() -> None:
    x: Any = op.input("x", (None, 3, 4))

    class Both(nn.Layer):
        def forward(self, x: Any) -> dict[str, Any]:
            return {"mean": op.mean(x, axis=0), "pair": [x, -x]}

    found = Both()(x)
    assert found["mean"].eval(x=np.ones((2, 3, 4))).shape == (3, 4)
    assert [each.shape for each in found["pair"]] == [(None, 3, 4)] * 2


def test_sides_that_have_to_be_even() -> None:
    image = op.input("image", (1, 3, None, None))
    half = nn.MaxPool2D(2)(nn.Conv2D(4, 3, padding="same")(image))
    whole = op.concat([image, nn.ConvTranspose2D(2, 2, stride=2)(half)], axis=1)
    last: Any = nn.Conv2D(2, 1)(whole)
    assert last.shape == (1, 2, None, None)
    assert last.eval(image=np.ones((1, 3, 10, 6))).shape == (1, 2, 10, 6)


def test_feeds_that_are_no_arrays() -> None:
    y = op.exp(op.input("x", (None, 2)))
    assert y.eval(x=cd.tensor([[0.0, 0.0]])).tolist() == [[1.0, 1.0]]
    with pytest.raises(ShapeError, match="input x: expected nested lists of equal lengths"):
        y.eval(x=[[1.0, 2.0], [3.0]])
    with pytest.raises(ConfigError, match="feeds= a dict of arrays"):
        cd.compile(y).run([1.0])  # type: ignore[arg-type]


def test_outputs_of_a_plan_from_a_generator() -> None:
    x = op.input("x", (None,))
    plan = cd.compile(x * factor for factor in (1.0, 2.0))
    assert [each.tolist() for each in plan.run({"x": [3.0]})] == [[3.0], [6.0]]
