"""Windows of series: no window looks ahead, and predictions are in the series' units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.errors import CalderaError, DataError


@pytest.mark.parametrize("seed", range(6))
def test_windows_are_parts_of_the_series(seed: int) -> None:
    generator = np.random.default_rng(seed)
    past, future, step, columns = (int(n) for n in generator.integers(1, 5, 4))
    steps = int(generator.integers(40, 80))
    series = np.arange(steps * columns).reshape(steps, columns) + generator.normal()
    targets = generator.permutation(columns)[: generator.integers(1, columns + 1)].tolist()
    found = data.windows(series, past=past, future=future, step=step, target=targets, test=0.25)
    cut = steps - round(0.25 * steps)
    seen = []
    for part in (found.train, found.test):
        for x, y in zip(*part.batch(np.arange(len(part))), strict=True):
            first = int(np.flatnonzero(np.isclose(series[:, 0], x[0, 0]))[0])
            seen.append(first)
            assert first % step == 0
            after = first + past
            np.testing.assert_array_equal(x, series[first:after].astype("f4"))
            wanted = series[after : after + future][:, targets].astype("f4")
            np.testing.assert_array_equal(y, wanted.ravel())
            assert (after + future <= cut) if part is found.train else (after >= cut)
    assert len(set(seen)) == len(seen)
    assert (found.shape, found.outputs) == ((past, columns), future * len(targets))


def test_predictions_are_in_the_units_of_the_series(tmp_path: Path) -> None:
    time = np.arange(300)
    series = 4000 + 50 * np.sin(time / 5)
    found = data.windows(series, past=12, future=2)
    rescale = nn.Rescale.fit(found.train)
    layers = [nn.Input(found.shape), rescale, nn.Flatten(), nn.Dense(found.outputs)]
    model = cd.NeuralNetwork(layers, "mean_squared", learning_rate=0.05, metrics=["mae"], epochs=20)
    model.fit(found.train, verbose=0)
    again = cd.load(model.save(tmp_path / "series.caldera"))
    last = again.predict(series[-12:].reshape(1, 12, 1).astype("f4"))
    assert abs(last - 4000).max() < 60
    assert again.evaluate(found.test)["mae"] < 10


def test_each_column_is_forecast_in_its_own_units(tmp_path: Path) -> None:
    time = np.arange(200) / 5
    series = {"level": 4000 + 50 * np.sin(time), "salt": 0.03 + 0.001 * np.cos(time)}
    found = data.windows(series, past=8, future=2, target=["salt", "level"])
    layers = [nn.Input(found.shape), nn.Rescale.fit(found.train), nn.Flatten(), nn.Dense(4)]
    model = cd.NeuralNetwork(layers, "mean_squared", learning_rate=0.05, epochs=30)
    history = model.fit(found.train, verbose=0)
    assert history["loss"][-1] < 0.1, "the loss is that of targets of one size"
    again = cd.load(model.save(tmp_path / "series.caldera"))
    outputs = again.predict(found.test.x)
    assert again.schema is not None
    assert list(again.schema.decode(outputs)) == ["salt +1", "level +1", "salt +2", "level +2"]
    errors = np.abs(outputs - found.test.batch(range(len(found.test)))[1]).mean(axis=0)
    assert (errors < [3e-4, 15, 3e-4, 15]).all()
    known = again.schema
    # More of the series later: what the outputs mean stays.
    again.fit(
        data.windows(
            {name: 2 * each for name, each in series.items()},
            past=8,
            future=2,
            target=["salt", "level"],
        ).train,
        epochs=1,
        verbose=0,
    )
    assert again.schema == known


@pytest.mark.parametrize(("future", "step"), [(1, 1), (5, 1), (5, 2)])
def test_what_is_held_out_comes_after_what_is_trained_on(future: int, step: int) -> None:
    found = data.windows(np.arange(200.0), past=6, future=future, step=step).hold_out(0.25)
    assert found.validation is not None
    assert found.train.y is not None
    assert found.validation.y is not None
    assert found.train.y.max() < found.validation.y.min() <= found.train.y.max() + step
    whole = data.Pipeline(data.windows(np.arange(200.0), past=6).train).subset(np.arange(100))
    last = data.split(whole, test=10)[1].y
    assert last is not None
    assert last.ravel().tolist() == list(range(96, 106))


def test_columns_of_any_size_are_brought_to_one() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(500, 3)) * [1e-3, 1.0, 1e5] + [5.0, 0.0, 1e6]
    x[:, 1] = 7.0
    y = 1e4 * x[:, :1].astype("f8")
    given = data.ArrayData(x.astype("f4"), y.astype("f4"))
    scaled = nn.Rescale.fit(given)(given.x).numpy()
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(scaled.std(0), [1, 0, 1], atol=0.01)


def test_tables_are_series_of_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "tides.csv"
    rows = [f"2024-01-{day:02},{day},{day * 10}.5" for day in range(1, 31)]
    path.write_text("day,number,height\n" + "\n".join(rows))
    found = data.windows(path, past=4, future=2, target="height")
    assert (found.name, found.shape) == ("tides", (4, 2))
    x, y = found.train.batch(np.arange(1))
    assert x[0].tolist() == [[1, 10.5], [2, 20.5], [3, 30.5], [4, 40.5]]
    assert y[0].tolist() == [50.5, 60.5]
    with pytest.raises(CalderaError, match="did you mean 'height'"):
        data.windows(path, past=4, target="heigth")
    with pytest.raises(DataError, match="a column of numbers"):
        data.windows({"day": ["mon", "tue"]}, past=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"past": 0},
        {"past": 30},
        {"past": 3, "future": 30},
        {"past": 3, "test": 1.0},
        {"past": 3, "target": 1},
        {"past": 3, "target": "a"},
        {"past": 3, "step": 0},
        {"past": 2.5},
        {"past": 3, "target": True},
        {"past": 3, "test": 0.01},
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(CalderaError):
        data.windows(np.arange(20.0), **arguments)  # type: ignore[arg-type]


def test_gaps_are_named() -> None:
    series = np.arange(20.0)
    series[7] = np.nan
    with pytest.raises(DataError, match="1 missing or infinite, the first at step 7, column 0"):
        data.windows(series, past=3)
    for bad in ("abc", [], np.zeros((2, 2, 2)), ["a", "b"], None):
        with pytest.raises(CalderaError):
            data.windows(bad, past=1)  # type: ignore[arg-type]
    for wrong in (np.zeros((0, 2)), np.array([[np.nan]]), ["a"], None):
        with pytest.raises(CalderaError):
            nn.Rescale.fit(wrong)
