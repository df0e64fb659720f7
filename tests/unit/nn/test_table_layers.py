"""Layers for tables against the formulas of their papers, in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.lazy import grad
from caldera.errors import ConfigError, DataError, ShapeError


def piecewise_linear(x: float, edges: list[float]) -> list[float]:
    """The encoding as the paper writes it, case by case."""
    last = len(edges) - 1
    found = []
    for t in range(1, last + 1):
        if x < edges[t - 1] and t > 1:
            found.append(0.0)
        elif x >= edges[t] and t < last:
            found.append(1.0)
        else:
            found.append((x - edges[t - 1]) / (edges[t] - edges[t - 1]))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_numbers_are_encoded_as_in_the_paper(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = [np.sort(random.normal(size=count)).tolist() for count in (2, 5, 3)]
    x = random.normal(0, 3, (7, 5)).astype("float32")
    columns = random.permutation(5)[:3].tolist()
    layer = nn.NumberEmbedding(edges, 4, columns)
    with nn.trace():
        given = layer(cd.tensor(x)).numpy()
    layer.parameters()[1].assign(random.normal(size=(1, 3, 4)).astype("float32"))
    with nn.trace():
        given = layer(cd.tensor(x)).numpy()
    weight, bias = (each.numpy()[0] for each in layer.parameters())
    expected = []
    for row in x:
        rest = [row[place] for place in range(5) if place not in columns]
        for number, place in enumerate(columns):
            code = np.array(piecewise_linear(float(row[place]), edges[number]))
            rest.extend(np.maximum(code @ weight[number, : len(code)] + bias[number], 0))
        expected.append(rest)
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


def test_edges_have_the_precision_of_the_layer() -> None:
    edges = [1e6 + 0.1, 1e6 + 0.2, 1e6 + 0.4]
    x = np.array([[1e6 + each] for each in (0.0, 0.1, 0.17, 0.3, 0.5)])
    layer = nn.NumberEmbedding([edges], 3, activation=None)
    with nn.trace(dtype="float64"):
        found = layer(x).numpy()
    weight = layer.weight.numpy()[0, 0]
    expected = [np.array(piecewise_linear(row[0], edges)) @ weight for row in x]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_bins_are_quantiles_and_constant_columns_stay() -> None:
    x = np.random.default_rng(0).normal(size=(500, 3))
    x[:, 1] = 2.0
    layer = nn.NumberEmbedding.fit(x, 2, bins=4)
    assert layer.columns == [0, 2]
    np.testing.assert_allclose(layer.edges[1], np.quantile(x[:, 2], [0, 0.25, 0.5, 0.75, 1]))
    assert layer(op.input("x", (5, 3))).shape == (5, 1 + 2 * 2)


@pytest.mark.parametrize(("members", "groups"), [(4, 1), (4, 2), (4, 4), (1, 1)])
@pytest.mark.parametrize("vectors", [None, 1, 2, 4])
def test_members_share_weights_as_in_the_paper(
    members: int, groups: int, vectors: int | None
) -> None:
    if members % (vectors or 1):
        return
    random = np.random.default_rng(members + groups)
    x = random.normal(size=(6, 3) if vectors is None else (6, vectors, 3)).astype("float32")
    layer = nn.EnsembleDense(5, members, groups, activation="tanh", scales=cd.normal(0.0, 1.0))
    layer(cd.tensor(x))
    for each in layer.parameters():
        each.assign(random.normal(size=each.shape).astype("float32"))
    with nn.trace():
        given = layer(cd.tensor(x)).numpy()
    found = {each.name.rpartition("/")[2]: each.numpy() for each in layer.parameters()}
    assert ("scale_in" in found) == (groups < members)
    for member in range(members):
        own = x if vectors is None else x[:, member * vectors // members]
        r = found["scale_in"][member] if "scale_in" in found else 1.0
        s = found["scale_out"][member] if "scale_out" in found else 1.0
        weight = found["weight"][member * groups // members]
        expected = np.tanh((own * r) @ weight * s + found["bias"][member])
        np.testing.assert_allclose(given[:, member], expected, rtol=1e-4, atol=1e-5)


def test_each_member_has_its_own_loss() -> None:
    random = np.random.default_rng(1)
    prediction = random.normal(size=(6, 4, 3)).astype("float32")
    target = random.integers(0, 3, 6)
    loss, single = nn.EnsembleLoss("cross_entropy"), nn.losses.CrossEntropy()
    each = [float(single(cd.tensor(prediction[:, member]), target)) for member in range(4)]
    assert float(loss(cd.tensor(prediction), target)) == pytest.approx(np.mean(each), rel=1e-5)
    powers = np.exp(prediction)
    likely = (powers / powers.sum(2, keepdims=True)).mean(1)
    np.testing.assert_allclose(loss.meaning(cd.tensor(prediction)).numpy(), likely, rtol=1e-5)
    # Not the loss of their mean: each member learns as if it were alone.
    x = op.var("x", (6, 4, 3), fill=prediction)
    (slope,) = grad(loss(x, target), [x])
    expected = (powers / powers.sum(2, keepdims=True) - np.eye(3)[target][:, None]) / 24
    np.testing.assert_allclose(slope.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 4, 3, 2)])
def test_the_axis_of_an_ensembles_loss_is_that_of_a_member(shape: tuple[int, ...]) -> None:
    prediction = np.random.default_rng(1).normal(size=shape)
    loss = nn.EnsembleLoss(nn.losses.CrossEntropy(axis=1))
    powers = np.exp(prediction)
    likely = (powers / powers.sum(2, keepdims=True)).mean(1)
    x = op.cast(prediction, "float64")
    np.testing.assert_allclose(loss.meaning(x).numpy(), likely, rtol=1e-6)
    np.testing.assert_allclose(loss.judged(x).numpy(), np.log(likely), rtol=1e-5)


def test_a_network_of_members_learns_and_is_saved(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3)).astype("float32")
    y = (np.sin(3 * x[:, 0]) + (x[:, 1] > 0)).astype("float32")[:, None]
    model = cd.NeuralNetwork(
        [
            nn.Input((3,)),
            nn.NumberEmbedding.fit(x),
            nn.EnsembleDense(32, 8, activation="relu", scales=cd.normal(0.0, 1.0)),
            nn.EnsembleDense(1, 8, groups=8),
        ],
        loss=nn.EnsembleLoss("mean_squared"),
        learning_rate=0.01,
        epochs=30,
    )
    model.fit(x, y, verbose=0)
    given = model.predict(x)
    assert given.shape == (400, 8, 1)
    assert np.mean((given.mean(1) - y) ** 2) < 0.05
    again = cd.load(model.save(tmp_path / "members.caldera"))
    np.testing.assert_array_equal(again.predict(x), given)
    assert again.evaluate(x, y) == pytest.approx(model.evaluate(x, y))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="ascending"):
        nn.NumberEmbedding([[0.0, 0.0]])
    with pytest.raises(ConfigError, match="2 distinct column indices"):
        nn.NumberEmbedding([[0.0, 1.0], [0.0, 1.0]], columns=[1, 1])
    with pytest.raises(ConfigError, match="members= an integer >= 1, got 0"):
        nn.NumberEmbedding([[0.0, 1.0]], members=0)
    with pytest.raises(DataError, match="rows"):
        nn.NumberEmbedding.fit([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="divisor"):
        nn.EnsembleDense(3, 4, groups=3)
    with pytest.raises(ShapeError, match="features"):
        nn.EnsembleDense(3, 4)(op.input("x", (5, 3, 2)))
    with pytest.raises(ShapeError, match="members"):
        nn.EnsembleLoss()(cd.tensor(np.zeros((2, 3), "float32")), [0, 1])
