"""The history of a run, and the curves that are drawn of it."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldera.draw.axis import axis_of, whole_axis
from caldera.errors import ConfigError, DataError
from caldera.train.tracking.history import History

SVG = "{http://www.w3.org/2000/svg}"


def history(**columns: list[float]) -> History:
    made = History()
    for row in range(len(next(iter(columns.values())))):
        made.add(row, {name: values[row] for name, values in columns.items()})
    return made


def test_columns_and_rows_have_the_same_values() -> None:
    made = history(loss=[2.0, 1.0], val_accuracy=[0.5, 0.75])
    assert made["val_accuracy"] == [0.5, 0.75]
    assert made.rows == [
        {"epoch": 0, "loss": 2.0, "val_accuracy": 0.5},
        {"epoch": 1, "loss": 1.0, "val_accuracy": 0.75},
    ]
    assert list(made) == ["loss", "val_accuracy"]
    assert "loss" in made


def test_an_unknown_column_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'val_accuracy'"):
        history(loss=[1.0], val_accuracy=[0.5])["val_acuracy"]


def test_a_column_that_begins_or_ends_in_the_middle_has_nan_elsewhere() -> None:
    made = History()
    made.add(0, {"loss": 1.0})
    made.add(1, {"loss": 0.5, "val_loss": 0.6})
    made.add(2, {"loss": 0.4})
    assert made["val_loss"][1] == 0.6
    assert math.isnan(made["val_loss"][0])
    assert math.isnan(made["val_loss"][2])


def test_numpy_values_become_plain_ones() -> None:
    made = History()
    made.add(np.int64(0), {"loss": np.float32(0.5), "confusion": np.array([[1, 2], [3, 4]])})
    assert made["confusion"] == [[[1, 2], [3, 4]]]
    assert type(made["loss"][0]) is float
    assert made.numbers() == ["loss"]


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(DataError, match="column 'name'"):
        History().add(0, {"name": "text"})


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(
        st.fixed_dictionaries({"loss": numbers, "table": st.lists(numbers, min_size=1)}),
        max_size=4,
    ),
    st.text(max_size=5),
)
def test_strict_json_holds_all_of_it(rows: list[dict[str, object]], stopped: str) -> None:
    made = History()
    for epoch, row in enumerate(rows):
        made.add(epoch, row)
    made.stopped = stopped
    text = json.dumps(made.to_dict(), allow_nan=False)
    again = History.from_dict(json.loads(text))
    assert again == made
    assert repr(again.rows) == repr(made.rows)
    assert again.stopped == stopped


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"epochs": [0], "columns": {"loss": []}, "stopped": ""},
        {"epochs": [0], "columns": {"loss": ["text"]}, "stopped": ""},
        {"epochs": [0], "columns": [], "stopped": ""},
        {"epochs": [0], "columns": {"loss": [None]}, "stopped": ""},
    ],
)
def test_what_is_no_history_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(DataError):
        History.from_dict(given)


def test_a_long_history_is_shown_by_its_ends() -> None:
    made = history(loss=[float(i) for i in range(100)])
    made.stopped = "enough"
    lines = repr(made).splitlines()
    assert lines[1].split() == ["1", "0.0000"]
    assert lines[-2].split() == ["100", "99.0000"]
    assert lines[-1] == "stopped: enough"
    assert len(lines) < 20


# --- the picture


def drawn(made: History, folder: Path) -> ElementTree.Element:
    path = made.plot(folder / "curves.svg")
    return ElementTree.parse(path).getroot()


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def titles(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}title")]


def test_the_picture_names_panels_lines_and_last_values(tmp_path: Path) -> None:
    made = history(
        loss=[1.0, 0.5], val_loss=[1.1, 0.7], accuracy=[0.5, 0.6], val_accuracy=[0.4, 0.55],
        seconds=[1.0, 1.0],
    )  # fmt: skip
    found = texts(drawn(made, tmp_path))
    for expected in ("loss", "accuracy", "training", "validation", "epoch", "0.7000", "0.5500"):
        assert expected in found
    assert "seconds" not in found


def test_every_value_is_in_the_picture(tmp_path: Path) -> None:
    found = titles(drawn(history(loss=[1.0, 0.5, 0.25], val_loss=[3.0, 2.0, 1.0]), tmp_path))
    assert "training, epoch 2: 0.5" in found
    assert len(found) == 6


def test_the_best_validation_loss_is_marked_unless_it_is_the_last(tmp_path: Path) -> None:
    found = texts(drawn(history(loss=[1.0, 0.9, 0.8], val_loss=[1.0, 0.7, 0.9]), tmp_path))
    assert "validation, best 0.7000 in epoch 2" in found
    found = texts(drawn(history(loss=[1.0, 0.9], val_loss=[1.0, 0.7]), tmp_path))
    assert "validation" in found


@pytest.mark.parametrize(
    "loss",
    [
        [0.5],
        [0.0],
        [0.5, 0.5, 0.5],
        [math.nan, math.nan],
        [1.0, math.nan, 0.5, math.inf, 0.25],
        [-math.inf, 1.0],
        [1e-30, 1e30],
        [-1.0, -2.0],
        [0.0, 1e9],
        [1e-12, 2e-12],
        [5.0, 0.01],
        [float(i) for i in range(500)],
    ],
)
def test_every_history_can_be_drawn(tmp_path: Path, loss: list[float]) -> None:
    picture = drawn(history(loss=loss, val_loss=loss[::-1], other=loss), tmp_path)
    width = float(picture.get("width", "0"))
    height = float(picture.get("height", "0"))
    text = (tmp_path / "curves.svg").read_text()
    assert "nan" not in re.sub(r"<title>.*?</title>", "", text)
    for circle in picture.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "-1")) <= width
        assert 0 <= float(circle.get("cy", "-1")) <= height


def test_values_that_are_not_finite_leave_gaps_and_crosses(tmp_path: Path) -> None:
    picture = drawn(history(loss=[1.0, math.nan, 0.5, 0.4]), tmp_path)
    assert "\u00d7 not finite" in texts(picture)
    assert "training, epoch 2: nan" in titles(picture)
    # One stretch of a single point, one of two.
    strokes = [p.get("d", "") for p in picture.iter(f"{SVG}path") if p.get("stroke-width") == "2"]
    assert [stroke.count("L") for stroke in strokes if "h22" not in stroke] == [0, 1]


def test_a_history_without_epochs_can_be_drawn(tmp_path: Path) -> None:
    assert "loss" in texts(drawn(History(), tmp_path))


def test_metrics_between_0_and_1_share_a_panel(tmp_path: Path) -> None:
    made = history(loss=[1.0], f1=[0.5], recall=[0.6], mae=[12.0])
    found = texts(drawn(made, tmp_path))
    assert {"metrics", "f1", "recall", "mae"} <= set(found)


def test_hostile_names_do_not_break_the_picture(tmp_path: Path) -> None:
    picture = drawn(history(**{"loss": [1.0], "<script>&\"'": [5.0]}), tmp_path)
    assert "<script>&\"'" in texts(picture)


@pytest.mark.parametrize(("name", "problem"), [("curves.png", "svg"), ("no/such.svg", "folder")])
def test_a_path_that_does_not_do_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        history(loss=[1.0]).plot(tmp_path / name)


# --- axes


@given(
    st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=5),
    st.booleans(),
)
def test_an_axis_holds_its_values(values: list[float], log: bool) -> None:
    if log:
        values = [abs(value) + 1e-12 for value in values]
    axis = axis_of(values, log=log)
    for value in values:
        assert -1e-9 <= axis.place(value) <= 1 + 1e-9
    assert len(axis.ticks) >= 2
    assert len(set(axis.labels())) == len(axis.ticks)
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_an_axis_of_epochs_has_whole_ticks(first: int, more: int) -> None:
    axis = whole_axis(list(range(first, first + more + 1)))
    assert 1 <= len(axis.ticks) <= 12
    assert all(isinstance(tick, int) and first <= tick <= first + more for tick in axis.ticks)


def test_a_loss_over_many_decades_is_drawn_by_its_logarithm() -> None:
    assert not axis_of([0.01, 0.9]).log
    assert axis_of([0.001, 0.9]).log
    assert not axis_of([-1.0, 1000.0]).log
