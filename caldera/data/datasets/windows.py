"""Windows of time series: past steps and the steps to forecast."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from caldera.base.arguments import require, within
from caldera.base.registry import nearest
from caldera.core.tensor.dtype import real_array_of
from caldera.data.datasets.dataset import Dataset
from caldera.data.schema import Schema
from caldera.data.series import Series
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.tables.encoders import NumberEncoder
from caldera.data.tables.numbers import check_typed, find_number_format, numbers_of
from caldera.data.tables.reading import TableFormat, is_table, read_table
from caldera.data.tables.table import Table
from caldera.errors import ConfigError, DataError, ShapeError

_WHERE = "data.windows"


def windows(
    series: Any,
    *,
    past: int,
    future: int = 1,
    target: int | str | Sequence[int | str] | None = None,
    step: int = 1,
    test: float = 0.2,
) -> Dataset:
    """Return a series (steps,) or (steps, columns) as samples to forecast from.

    x is (past, columns). y contains the next `future` numbers of the column `target` (by default
    the first); for several target columns, all numbers of each step in order.

    If the series is a table, as for `data.table`, its columns of numbers are used, each row a step;
    `target` may be a name. A window starts every `step` steps. The last part of the series, `test`,
    is for testing, so that all test targets are later than the training data. Numbers stay in the
    units of the series. A model fitted to the samples computes its loss on targets of mean 0 and
    deviation 1, and predicts in units; `nn.Rescale.fit(found.train)` as its first layer does the
    same for its inputs.

    >>> import numpy as np
    >>> from caldera import data
    >>> found = data.windows(np.arange(20.0), past=3, future=2)
    >>> found.train.x[0].tolist(), found.train.y[0].tolist(), found.test.y[0].tolist()
    ([[0.0], [1.0], [2.0]], [3.0, 4.0], [16.0, 17.0])
    """
    name, names, values = _series(series)
    for each, number in (("past", past), ("future", future), ("step", step)):
        within(_WHERE, each, number, 1, 2**31)
    columns = _targets(target, values.shape[1], names)
    if not 0 <= test < 1:
        raise ConfigError.build(
            _WHERE, expected="test= a part of the series, from 0 to 1", got=repr(test)
        )
    steps = len(values)
    # The first step that is predicted to test with.
    cut = steps - round(test * steps)
    starts = np.arange(0, steps - past - future + 1, step)
    trained = starts[starts + past + future <= cut]
    tested = starts[starts + past >= cut]
    if not len(trained) or (test and not len(tested)):
        raise DataError.build(
            _WHERE,
            expected=f"a series with room for {past} and {future} steps to train with"
            + (f" in its first {cut}, and for {future} after them" if test else ""),
            got=f"{steps} steps",
            hint="take a smaller past= or future=, or another test=",
        )
    train, apart = (_samples(values, rows, past, future, columns) for rows in (trained, tested))
    # Windows whose starts differ by less than `future` steps predict some of the same steps.
    train.overlap = apart.overlap = (future - 1) // step
    # Fitted to the training steps only.
    scales = tuple(NumberEncoder.fit(values[:cut, each].astype(np.float64)) for each in columns)
    known = names or ("",) * values.shape[1]
    train.schema = apart.schema = Schema(series=Series(known, past, future, tuple(columns), scales))
    return Dataset(train, apart, 0, (), name)


def _series(series: Any) -> tuple[str, tuple[str, ...], NDArray[np.float32]]:
    """Return the name of a series, the names of its columns, and its values."""
    is_file = isinstance(series, str | PathLike)
    name = Path(series).name.partition(".")[0] if is_file else "windows"
    names, columns = number_columns(series) if is_table(series) else ((), series)
    return name, names, _checked(columns)


def _checked(series: ArrayLike) -> NDArray[np.float32]:
    values = real_array_of(series, _WHERE)
    require(
        values.ndim in (1, 2) and values.size,
        _WHERE,
        "a series of shape (steps,) or (steps, columns)",
        values.shape,
        error=ShapeError,
    )
    require(values.dtype.kind in "biuf", _WHERE, "numbers", values.dtype, error=DataError)
    found = values.astype(np.float32).reshape(len(values), -1)
    wrong = np.argwhere(~np.isfinite(found))
    if len(wrong):
        raise DataError.build(
            _WHERE,
            expected="a number at each step",
            got=f"{len(wrong)} missing or infinite, the "
            f"first at step {wrong[0][0]}, column {wrong[0][1]}",
            hint="fill gaps first, for example with np.interp between the neighbouring steps",
        )
    return found


def number_columns(source: Any) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the columns of a table that hold numbers, and their names; missing ones are nan.

    >>> number_columns({"day": ["mon", "tue"], "height": [1.5, None]})
    (('height',), array([[1.5],
           [nan]]))
    """
    table = read_table(source, _WHERE, TableFormat())
    names, found = [], []
    for number in range(table.width):
        values = _numbers(table, number)
        if values is not None:
            names.append(table.names[number] if table.names else str(number))
            found.append(values)
    require(
        found, table.where, "a column of numbers", ", ".join(table.names) or "none", error=DataError
    )
    return tuple(names), np.stack(found, axis=1)


def _numbers(table: Table, number: int) -> NDArray[np.float64] | None:
    """Return a column as numbers; None if it contains other values."""
    column = table.columns[number]
    if column.dtype != object:
        return column if column.dtype.kind == "f" else None
    form = find_number_format(table, number, None)
    if form.unit:
        return None  # A series keeps no unit, so that another one would be read as the same.
    check_typed(table, number, form)
    found = numbers_of(column, form)
    return None if (np.isnan(found) & ~table.missing(number)).any() else found


def _targets(
    target: int | str | Sequence[int | str] | None, count: int, names: tuple[str, ...]
) -> list[int]:
    given: list[Any] = [0 if target is None else target]
    if isinstance(target, Sequence) and not isinstance(target, str):
        given = list(target)
    unknown = next((each for each in given if isinstance(each, str) and each not in names), None)
    if unknown is not None:
        raise ConfigError.build(
            _WHERE,
            expected="target= a column of numbers",
            got=repr(unknown),
            hint=nearest(unknown, names),
        )
    given = [names.index(each) if isinstance(each, str) else each for each in given]
    for each in given:
        is_number = isinstance(each, int | np.integer) and not isinstance(each, bool)
        require(
            is_number and -count <= each < count,
            _WHERE,
            f"target= columns from 0 to {count - 1}",
            repr(target),
        )
    return [int(each) % count for each in given]


def _samples(
    values: NDArray[np.float32],
    starts: NDArray[np.int64],
    past: int,
    future: int,
    columns: list[int],
) -> ArrayData:
    # Views of the series, of which a batch gathers its own: no window is written down.
    before = np.lib.stride_tricks.sliding_window_view(values, past, axis=0).transpose(0, 2, 1)
    after = np.lib.stride_tricks.sliding_window_view(values[:, columns], future, axis=0)
    following = after[past:].transpose(0, 2, 1)
    x = before[: len(following)]
    y = following.reshape(len(following), future * len(columns))
    return ArrayData(x, y).subset(starts)
