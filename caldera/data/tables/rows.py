"""Rows of a table with their features: unused columns, and values as texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from caldera.data.tables.table import Table, Values

MISSING = "missing"
"""Text for a missing value in messages about a row."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a table as a network takes them, and the rows themselves.

    - `x`: features, one row each.
    - `notes`: values that were filled in, and values far outside the training range.
    - `table`: the table.
    - `places`: the number of each input column in the table.
    - `left_out`: the numbers of columns that the caller excluded.
    """

    x: Values
    notes: list[str]
    table: Table
    places: Sequence[int]
    left_out: Collection[int] = ()

    def texts(self, column: int) -> list[str]:
        """The texts of an input column, by its number among the inputs."""
        return [MISSING if each is None else each for each in self.table.texts(self.places[column])]


def carried_columns(
    table: Table, ignored: Collection[str], left_out: Collection[int] = ()
) -> dict[str, list[str]]:
    """Return the columns that a model does not read, such as identifiers, as texts by name.

    >>> from caldera.data.tables.table import table_of
    >>> carried_columns(table_of({"id": [7, None], "width": [1.5, 2.0]}, "new.csv"), ("id",))
    {'id': ['7', '']}
    """
    return {
        name: ["" if each is None else each for each in table.texts(place)]
        for place, name in enumerate(table.names)
        if name in ignored and place not in left_out
    }
