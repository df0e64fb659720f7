"""Contributions of columns: exact in linear models, in the units of the answer."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import CalderaError


def _rows(count: int = 80) -> list[dict[str, object]]:
    random = np.random.default_rng(1)
    return [
        {
            "age": float(random.normal(40, 9)),
            "city": ["Oslo", "Roma", "Bern"][n % 5 % 3],
            "dose": float(random.gamma(2, 30)) if n % 7 else None,
            "day": f"2024-{n % 12 + 1:02}-{n % 28 + 1:02}",
        }
        for n in range(count)
    ]


def _linear(target: list[object], *, scale: bool = True, **settings: object) -> cd.NeuralNetwork:
    rows = _rows()
    table = cd.data.table(
        [row | {"answer": each} for row, each in zip(rows, target, strict=True)],
        "answer",
        scale=scale,
        missing="drop" if not scale else "fill",
    )
    outputs = table.classes or 1
    model = cd.NeuralNetwork(
        [nn.Input(table.shape), nn.Dense(outputs)],
        loss="cross_entropy" if table.classes else "mean_squared",
        epochs=3,
        **settings,
    )
    model.fit(table.train, verbose=0)
    return model


@pytest.mark.parametrize("scale", [True, False])
def test_linear_models_have_the_weight_times_the_distance(scale: bool) -> None:
    """Of values: weight times the distance of features from those of the usual value."""
    ages = [row["age"] for row in _rows()]
    model = _linear([3.0 * age + 1 for age in ages], scale=scale)
    rows = [
        {"age": 51.5, "city": "Roma", "dose": 60.0, "day": "2024-03-05"},
        {"age": 20.0, "city": "Oslo", "dose": 10.0, "day": "2024-11-20"},
    ]
    found = model.explain(rows)
    assert found.columns == ("age", "city", "dose", "day")
    weight = model.parameters()[0].numpy()[:, 0].astype(float)
    size = model.schema.target_scale.scale if scale else 1.0
    x = cd.data.table_inputs(rows, model.schema)
    for place, (column, span) in enumerate(
        zip(model.schema.columns, model.schema.spans, strict=True)
    ):
        usual = column.typical()[0]
        part = (x[:, span.start : span.stop] - usual) @ weight[span.start : span.stop] * size
        np.testing.assert_allclose(found.amounts[:, place], part, rtol=2e-3, atol=2e-3)
    median = model.schema.columns[0].seen[2]
    in_units = weight[0] * size / (model.schema.columns[0].number.scale if scale else 1.0)
    assert found.amounts[0, 0] == pytest.approx(in_units * (51.5 - median), rel=1e-3)


def test_two_classes_have_the_difference_of_weights() -> None:
    model = _linear(["old" if row["age"] > 40 else "young" for row in _rows()])
    rows = [{"age": 60.0, "city": "Oslo", "dose": None, "day": "2024-03-05"}]
    found = model.explain(rows)
    assert str(found).startswith("0  age=60: ")
    weights = model.parameters()[0].numpy()
    chosen = int(found.amounts[0, 0] * (weights[0, 1] - weights[0, 0]) > 0)
    number = model.schema.columns[0].number
    expected = (weights[0, chosen] - weights[0, 1 - chosen]) * (60 - number.median) / number.scale
    assert found.amounts[0, 0] == pytest.approx(expected, rel=1e-4)
    assert [each.text for each in found.largest(4)[0] if each.column == "dose"] == ["missing"]


def test_three_classes_have_the_change_of_log_odds() -> None:
    rows = _rows()
    model = _linear([row["city"] for row in rows])
    one = [rows[3]]
    chosen = int(model.predict(one).argmax())
    # A missing age is encoded as the median.
    with pytest.warns(UserWarning, match="taken for the median"):
        odds = [
            _log_odds(model.predict([r])[0], chosen) for r in (rows[3], rows[3] | {"age": None})
        ]
    assert model.explain(one).amounts[0, 0] == pytest.approx(odds[0] - odds[1], rel=1e-3, abs=1e-5)


def _log_odds(outputs: np.ndarray, chosen: int) -> float:
    powers = np.exp(outputs.astype(float))
    likely = powers[chosen] / powers.sum()
    return float(np.log(likely / (1 - likely)))


def test_other_models_and_sources_are_refused() -> None:
    plain = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mean_squared")
    with pytest.raises(CalderaError, match="trained on a table"):
        plain.explain({"a": [1.0], "b": [2.0]})
    model = _linear([float(n) for n in range(80)])
    with pytest.raises(CalderaError, match="arrays have no names"):
        model.explain(np.zeros((1, 4)))


@pytest.mark.parametrize("classes", [False, True])
def test_a_table_without_rows_has_no_contributions(classes: bool) -> None:
    model = _linear([("odd", "even")[n % 2] if classes else float(n) for n in range(80)])
    found = model.explain({"age": [], "city": [], "dose": [], "day": []})
    assert found.amounts.shape == (0, 4)
    assert (found.largest(), str(found)) == ([], "")
