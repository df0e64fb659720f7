"""`study.table()`: every trial with its values, parameters and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from caldera.base.formatting import shortened, table_lines
from caldera.base.registry import optional_import

_LONGEST = 40


class TrialTable:
    """Rows by name, which print as a table; what `study.table()` gives where pandas is missing.

    >>> table = TrialTable([{"number": 0, "rate": 0.1}, {"number": 1, "rate": None}])
    >>> print(table)
    number  rate
         0   0.1
         1
    >>> table["number"], len(table)
    ([0, 1], 2)
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]
        self.columns = list(dict.fromkeys(name for row in rows for name in row))

    def __getitem__(self, name: str) -> list[Any]:
        """A column."""
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are {', '.join(self.columns)}")
        return [row.get(name) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def to_pandas(self) -> Any:
        """The same as a `pandas.DataFrame`."""
        pandas = optional_import("pandas", "pandas", "study.table")
        return pandas.DataFrame(self.rows, columns=self.columns)

    def __str__(self) -> str:
        cells = [[cell_text(row.get(name)) for name in self.columns] for row in self.rows]
        texts = [
            place
            for place, name in enumerate(self.columns)
            if any(isinstance(value, str) for value in self[name])
        ]
        return "\n".join(table_lines([self.columns, *cells], left=texts))

    __repr__ = __str__


def cell_text(value: Any) -> str:
    """A value as a cell of a table.

    >>> [cell_text(each) for each in (0.123456789, 5, None, "relu", float("nan"))]
    ['0.123457', '5', '', 'relu', '']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return shortened(f"{value:.6g}" if isinstance(value, float) else str(value), _LONGEST)


def table_of(rows: Sequence[dict[str, Any]]) -> Any:
    """The rows as a `pandas.DataFrame` where pandas is installed, else as a `TrialTable`."""
    table = TrialTable(rows)
    return table if find_spec("pandas") is None else table.to_pandas()
