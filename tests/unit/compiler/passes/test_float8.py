"""Precision "float8": which products are computed in 8 bits, and how near their results are."""

from __future__ import annotations

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.compiler.lazy import Expr
from caldera.compiler.passes import float8
from caldera.compiler.passes.precision import lower_precision
from caldera.core.graph.node import Node
from caldera.core.graph.program import program_of

SIDE = 512


@pytest.fixture(autouse=True)
def _small_products_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float8, "WORTHWHILE", 150.0)


def variable(name: str, *shape: int) -> Expr:
    return op.var(name, shape, fill=cd.normal(0, shape[0] ** -0.5))


def held(name: str, values: np.ndarray) -> Expr:
    """A variable with these values."""
    return op.var(name, values.shape, fill=cd.from_array(values))


def products(*outputs: Expr) -> list[Node]:
    program = lower_precision(program_of([output.node for output in outputs]), "float8")
    return [node for node in program.order() if node.op.kind == "product"]


def dense_network(sizes: tuple[int, ...], rows: int = SIDE) -> tuple[Expr, list[Expr]]:
    """The loss of a perceptron, and its weights."""
    weights = [variable(f"w{i}", *each) for i, each in enumerate(pairwise(sizes))]
    hidden = variable("x", rows, sizes[0])
    for weight in weights[:-1]:
        hidden = op.relu(hidden @ weight)
    return op.cross_entropy(hidden @ weights[-1], np.arange(rows) % sizes[-1]), weights


def names(found: list[Node]) -> list[str]:
    return [node.op.name for node in found]


def test_inner_layers_are_in_8_bits_forward_and_backward() -> None:
    loss, weights = dense_network((SIDE,) * 4 + (10,))
    found = products(loss, *op.grad(loss, weights))
    narrow = [node for node in found if node.op.name == "float8_matmul"]
    # Two of four layers: the product, the gradient of the input and that of the weight.
    assert len(narrow) == 6
    assert len(found) == 11
    forms = sorted(node.attrs["forms"] for node in narrow)
    assert forms == [("e4m3", "e4m3")] * 2 + [("e4m3", "e5m2")] * 2 + [("e5m2", "e4m3")] * 2


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ((SIDE, SIDE, 10), SIDE),  # a first and a last layer
        ((SIDE, SIDE, 256, SIDE, 10), SIDE),  # narrow
        ((SIDE, SIDE, SIDE, 10), 256),  # few rows
        ((520, 520, 520, 10), SIDE),  # no multiple of 16
    ],
)
def test_small_first_and_last_layers_stay(sizes: tuple[int, ...], rows: int) -> None:
    loss, weights = dense_network(sizes, rows)
    assert set(names(products(loss, *op.grad(loss, weights)))) == {"matmul"}


def test_a_matrix_is_rounded_once_for_all_its_products() -> None:
    loss, weights = dense_network((SIDE,) * 3 + (10,))
    found = products(loss, *op.grad(loss, weights))
    rounded = {
        source
        for node in found
        if node.op.name == "float8_matmul"
        for source in (
            given.inputs[0] if given.op.name == "item" else given for given in node.inputs
        )
        if source.op.name == "to_float8"
    }
    # The input, the weight and the gradient of one layer.
    assert len(rounded) == 3
    assert {node.attrs["transposed"] for node in rounded} == {(False, True)}


def test_batches_of_rows_and_products_of_values() -> None:
    hidden = variable("x", 4, 128, SIDE)
    weights = [variable(f"b{i}", SIDE, SIDE) for i in range(3)]
    hidden = op.relu(op.relu(hidden @ weights[0]) @ weights[1])
    scores = op.matmul(hidden, hidden, transpose_b=True)
    loss = op.mean(op.square(scores @ hidden @ weights[2]))
    found = names(products(loss, *op.grad(loss, weights)))
    assert found.count("float8_matmul") == 3
    assert found.count("matmul") > 6


def test_results_are_those_of_rounded_factors() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(SIDE, SIDE)).astype("float32")
    weights = [generator.normal(size=(SIDE, SIDE)).astype("float32") * 0.04 for _ in range(3)]
    hidden = held("x", x)
    for index, weight in enumerate(weights):
        hidden = hidden @ held(f"v{index}", weight)
    found = cd.compile([hidden], precision="float8").run()[0]
    found = np.asarray(found, np.float32)

    def half(values: np.ndarray) -> np.ndarray:
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)

    def eight(values: np.ndarray) -> np.ndarray:
        factor = np.float32(448) / np.abs(values).max()
        rounded = (values * factor).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        return np.asarray(rounded / factor)

    first = half(half(x) @ half(weights[0]))
    second = half(eight(first) @ eight(half(weights[1])))
    wanted = half(half(second) @ half(weights[2]))
    exact = x @ weights[0] @ weights[1] @ weights[2]
    assert np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max()
    assert 0.02 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.06


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e-38, 3e38])
def test_special_values(value: float) -> None:
    """Zeros give zeros, and nan and inf are not hidden."""
    x = np.full((SIDE, SIDE), value, np.float32)
    hidden = held("x", x)
    for index in range(3):
        hidden = hidden @ held(f"u{index}", np.eye(SIDE, dtype=np.float32))
    found = np.asarray(cd.compile([hidden], precision="float8").run()[0], np.float32)
    if np.isfinite(value) and value < 1e38:
        np.testing.assert_allclose(found, x, rtol=0.07, atol=1e-37)
    else:
        assert not np.isfinite(found).any() or np.allclose(found, x, rtol=0.07)


def test_training_follows_bfloat16() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(SIDE, SIDE)).astype("float32")
    y = (x[:, :8].sum(1) > 0).astype("int64")
    last = {}
    for precision in ("bfloat16", "float8"):
        layers = [nn.Input((SIDE,)), *[nn.Dense(SIDE, activation="relu") for _ in range(3)]]
        model = cd.NeuralNetwork(
            [*layers, nn.Dense(2)], optimizer=optim.Adam(1e-3), precision=precision, seed=1
        )
        history = model.fit(x, y, epochs=8, batch_size=SIDE, verbose=0)
        last[precision] = history["loss"][-1]
    assert last["float8"] < 0.8 * np.log(2)
    assert abs(last["float8"] - last["bfloat16"]) < 0.1
