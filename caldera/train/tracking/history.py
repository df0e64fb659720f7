"""History of a training run: one row of results per epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from caldera.base.arguments import checked, require, shown
from caldera.base.formatting import html_table, note, table_lines
from caldera.base.plain_data import to_plain
from caldera.base.registry import nearest
from caldera.draw.charts import learning_curve_charts, learning_curves
from caldera.draw.line_chart import figure_svg
from caldera.draw.svg import Picture
from caldera.errors import ConfigError, DataError

_ROWS_SHOWN = 12
_NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_KEYS = {"epochs", "columns", "stopped"}
_RATES = "learning_rates"


@dataclass(frozen=True)
class Selection:
    """Choices made in a run, and the data that decided them."""

    by: tuple[str, ...]
    """The columns of the history that decided about an epoch, the end or the learning rate."""
    samples: int | None
    """Number of samples evaluated; None for a stream."""
    part: float | None
    """Fraction of the training data held out for selection; None if separate data were passed."""
    is_test: bool = False
    """True if these samples are the test data of a data set."""
    data: Any = None
    """Validation data passed by the user."""

    def text(self, train: Any, validation: Any) -> str:
        """Describe the data by which the tested weights were chosen.

        >>> Selection(("val_loss",), 288, 0.2).text(None, None)
        'chosen by val_loss on 20% held out of the training data (288 samples); the test set was evaluated once'
        """  # noqa: E501
        part = self.part
        if self.data is not None and self.data is validation:
            part = len(validation) / (len(validation) + len(train))
        if self.is_test:
            if not self.by:
                return "no choice used the test set, which was shown after each epoch"
            return (
                f"chosen by {', '.join(self.by)} on the test set, so that results on it are too "
                "good; hold out a part of the training data with validation=0.2"
            )
        count = "" if self.samples is None else f" ({self.samples} samples)"
        on = "validation data" if part is None else f"{part:.0%} held out of the training data"
        what = f"chosen by {', '.join(self.by)}" if self.by else "no choice made; validated"
        return f"{what} on {on}{count}; the test set was evaluated once"


_MOST_EPOCHS = 2**40
"""Far more epochs than in any real run, and few enough to be distinct in a chart."""


class History(Mapping[str, list[Any]]):
    """Results of each epoch, by column: `history["loss"]` is a list with one value per epoch.

    `epochs` has the number of each epoch (from 0), `learning_rates` the rate of each. `stopped` is
    the reason why the run ended before its last epoch, or empty. Missing values of a column are
    nan.

    >>> import caldera as cd
    >>> history = cd.History()
    >>> history.add(0, {"loss": 0.9, "val_accuracy": 0.5})
    >>> history.add(1, {"loss": 0.4, "val_accuracy": 0.75})
    >>> history["loss"]
    [0.9, 0.4]
    >>> history
    epoch    loss  val_accuracy
        1  0.9000        0.5000
        2  0.4000        0.7500
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.stopped = ""
        self.selection: Selection | None = None
        """Which data were looked at after each epoch, and what was chosen by them."""
        self.learning_rates: list[float] = []
        """The learning rate of the last step of each epoch; none where that is not known."""
        self._columns: dict[str, list[Any]] = {}

    @checked
    def add(
        self, epoch: int, results: Mapping[str, Any], learning_rate: float | None = None
    ) -> None:
        """Record the results of an epoch: numbers or arrays."""
        if learning_rate is not None and len(self.learning_rates) == len(self.epochs):
            self.learning_rates.append(float(learning_rate))
        for name in results:
            self._columns.setdefault(name, [math.nan] * len(self.epochs))
        for name, column in self._columns.items():
            column.append(_plain(results.get(name, math.nan), name))
        self.epochs.append(int(epoch))

    # --- reading

    @checked
    def __getitem__(self, column: str) -> list[Any]:
        if column not in self._columns:
            raise ConfigError.build(
                "history",
                expected="a column it has",
                got=repr(column),
                hint=nearest(column, self._columns),
            )
        return self._columns[column]

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The results epoch by epoch.

        >>> import caldera as cd
        >>> history = cd.History()
        >>> history.add(0, {"loss": 0.5})
        >>> history.rows
        [{'epoch': 0, 'loss': 0.5}]
        """
        return [
            {"epoch": epoch, **{name: column[row] for name, column in self._columns.items()}}
            for row, epoch in enumerate(self.epochs)
        ]

    def numbers(self) -> list[str]:
        """The columns that hold single numbers: all but tables such as confusion matrices."""
        return [
            name
            for name, column in self._columns.items()
            if all(isinstance(value, int | float) for value in column)
        ]

    def last_numbers(self) -> dict[str, float]:
        """Return the numbers of the last epoch, with its learning rate if the model has one."""
        found = {name: float(self._columns[name][-1]) for name in self.numbers()}
        rates = self.learning_rates[len(self.epochs) - 1 :]
        return found | ({"learning_rate": rates[0]} if rates else {})

    def curves(self) -> tuple[list[int], dict[str, list[Any]]]:
        """Return the epochs, counted from 1, and the columns of single numbers."""
        columns = {name: self._columns[name] for name in self.numbers()}
        return [epoch + 1 for epoch in self.epochs], columns

    def table(self) -> list[list[str]]:
        """Return the header and the rows of a table of the columns of single numbers."""
        epochs, columns = self.curves()
        rows = [
            [str(epoch), *(shown_number(column[row]) for column in columns.values())]
            for row, epoch in enumerate(epochs)
        ]
        return [["epoch", *columns], *rows]

    def __repr__(self) -> str:
        if not self.epochs:
            return "no epoch yet"
        table = self.table()
        if len(table) > _ROWS_SHOWN + 1:
            half = _ROWS_SHOWN // 2
            table = [*table[: half + 1], ["..." for _ in table[0]], *table[-half:]]
        lines = table_lines(table)
        if self.stopped:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self.epochs:
            return note(repr(self))
        head, *rows = self.table()
        table = html_table(head, rows, numbers=range(len(head)))
        stopped = note(f"stopped: {self.stopped}") if self.stopped else ""
        charts = learning_curve_charts(*self.curves())
        return (
            f"{figure_svg(charts)}<details><summary>All epochs</summary>{table}</details>{stopped}"
        )

    # --- keeping

    def to_dict(self) -> dict[str, Any]:
        """Return the history as strict JSON-serialisable values (nan and infinities as texts).

        >>> import caldera as cd
        >>> history = cd.History()
        >>> history.add(0, {"loss": float("nan")})
        >>> history.to_dict()
        {'epochs': [0], 'columns': {'loss': ['nan']}, 'stopped': ''}
        """
        columns: dict[str, Any] = to_plain(self._columns)
        rates = {_RATES: to_plain(self.learning_rates)} if self.learning_rates else {}
        return {"epochs": list(self.epochs), "columns": columns, "stopped": self.stopped, **rates}

    @classmethod
    @checked
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """Return the history that `to_dict` wrote.

        >>> import caldera as cd
        >>> given = {"epochs": [0], "columns": {"loss": [0.5]}, "stopped": ""}
        >>> cd.History.from_dict(given)["loss"]
        [0.5]
        """
        made = cls()
        require(
            set(given) - {_RATES} == _KEYS and isinstance(given["columns"], Mapping),
            "History.from_dict",
            ", ".join(sorted(_KEYS)),
            ", ".join(map(str, given)),
            error=DataError,
        )
        epochs = given["epochs"]
        if not isinstance(epochs, list) or not all(
            isinstance(epoch, int) and 0 <= epoch < _MOST_EPOCHS for epoch in epochs
        ):
            raise DataError.build(
                "History.from_dict",
                expected="epochs as integers from 0 on",
                got=shown(epochs),
            )
        made.epochs = [int(epoch) for epoch in epochs]
        made.stopped = str(given["stopped"])
        made.learning_rates = _rates(given.get(_RATES, []), len(made.epochs))
        for name, column in given["columns"].items():
            require(
                isinstance(column, list) and len(column) == len(made.epochs),
                "History.from_dict",
                f"{len(made.epochs)} values in a column",
                f"another number in {name!r}",
                error=DataError,
            )
            made._columns[str(name)] = [_read(value, name) for value in column]
        return made

    @checked
    def plot(self, path: str | PathLike[str] | None = None, title: str = "") -> Picture | Path:
        """Return the learning curves, which a notebook shows; with a path they are written to that
        .svg file, which every browser opens, and the path is returned.

        >>> import tempfile
        >>> from pathlib import Path
        >>> import caldera as cd
        >>> history = cd.History()
        >>> history.add(0, {"loss": 0.5, "val_loss": 0.6})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.plot(Path(folder) / "curves.svg").name
        'curves.svg'
        """
        return learning_curves(path, *self.curves(), title)


def shown_number(value: float) -> str:
    """Return the text of a number for tables and progress lines.

    >>> [shown_number(each) for each in (0.12345, 1234.5, 1.2e-7, float("nan"), 3)]
    ['0.1235', '1234.5', '1.200e-07', 'nan', '3']
    """
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        return f"{value:.3e}"
    return f"{value:.1f}" if size >= 1000 else f"{value:.4f}"


def _plain(value: Any, name: str) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError.build(
            f"history column {name!r}", expected="numbers or arrays of numbers", got=repr(value)
        )
    return array.tolist()


def _rates(given: Any, epochs: int) -> list[float]:
    require(
        isinstance(given, list) and len(given) <= epochs,
        "History.from_dict",
        f"at most {epochs} learning rates",
        shown(given),
        error=DataError,
    )
    return [float(_read(value, _RATES)) for value in given]


def _read(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_read(each, name) for each in value]
    if isinstance(value, str) and value in _NOT_IN_JSON:
        return _NOT_IN_JSON[value]
    if isinstance(value, int | float):
        return value
    raise DataError.build(f"history column {name!r}", expected="numbers", got=repr(value))
