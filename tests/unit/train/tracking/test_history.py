"""The history of a run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera.errors import ConfigError, DataError
from caldera.train.tracking.history import History


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


@settings(max_examples=40)
@given(
    st.lists(
        st.fixed_dictionaries({"loss": numbers, "table": st.lists(numbers, min_size=1)}),
        max_size=4,
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
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


@pytest.mark.parametrize("epochs", [[math.inf], [-1], [2**60], ["0"], 3])
def test_epochs_that_are_none_are_refused(epochs: object) -> None:
    made = {"epochs": epochs, "columns": {"loss": [0.5]}, "stopped": ""}
    with pytest.raises(DataError, match="epochs as integers"):
        History.from_dict(made)
