"""What samples are: the columns of a table, what is predicted, and what classes are called.

A schema is plain data. It goes with the data to `fit`, from there into the model, and into the
model's file, so that whoever has the file can tell which column is which in a new table, and what
an answer means. It has room for more: a kind of columns that has to be learnt from the training
data (categories, dates, a scale) is another `kind`, with more fields of `Column`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from caldera.data.text.tokenizer import Tokenizer
from caldera.errors import DataError
from caldera.plain_data import from_plain, to_plain

VERSION = 1
KINDS = ("number", "class")
"""What a column can hold. Inputs are numbers; a class has a name, and stands for a number."""
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, empty where a file has none, what it holds, and its place.

    >>> from caldera import data
    >>> data.Column("width", "number", 0).name
    'width'
    """

    name: str
    kind: str
    position: int


@dataclass(frozen=True)
class Schema:
    """What a model was trained on.

    - `columns`: the inputs, in the order in which the model takes them; none for images.
    - `target`: the column that is predicted.
    - `classes`: the name of each class; none where values are predicted.
    - `ignored`: names of columns that the table had, and the model does not use.
    - `width`: how many columns the table had.
    - `text`: what makes numbers of texts, for a model that takes those.

    >>> from caldera import data
    >>> data.Schema(classes=("cat", "dog")).classes
    ('cat', 'dog')
    """

    columns: tuple[Column, ...] = ()
    target: Column | None = None
    classes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    width: int = 0
    version: int = VERSION
    text: Tokenizer | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs; none if the columns have no names."""
        names = tuple(column.name for column in self.columns)
        return names if all(names) else ()

    def to_plain(self) -> dict[str, Any]:
        """As what JSON can hold."""
        found: dict[str, Any] = to_plain(self)
        return found

    @classmethod
    def from_plain(cls, given: Any, where: str) -> Schema:
        """What `to_plain` wrote; anything else is refused.

        >>> schema = Schema((Column("width", "number", 0),), width=2)
        >>> Schema.from_plain(schema.to_plain(), "flowers.caldera") == schema
        True
        """
        version = given.get("version") if isinstance(given, dict) else None
        if version != VERSION:
            raise DataError.build(
                where, expected=f"a schema of version {VERSION}", got=repr(version)[:80],
                hint="a newer Caldera may have written it",
            )  # fmt: skip
        found = from_plain(cls, given, where)
        found._check(where)
        return found

    def _check(self, where: str) -> None:
        """What types do not say."""
        if self.text is not None:
            self.text.check(where)
        columns = [*self.columns, *([self.target] if self.target else [])]
        unknown = sorted({column.kind for column in columns} - set(KINDS))
        if unknown:
            raise DataError.build(
                where, expected="columns of the kinds " + ", ".join(KINDS), got=unknown[0][:80],
                hint="a newer Caldera may have written it",
            )  # fmt: skip
        names = [column.name for column in columns if column.name]
        positions = [column.position for column in columns]
        if (
            len(set(names)) < len(names)
            or len(set(positions)) < len(positions)
            or any(not 0 <= position < self.width for position in positions)
        ):
            raise DataError.build(
                where, expected=f"{len(columns)} different columns among {self.width}",
                got=", ".join(map(str, zip(names, positions, strict=False)))[:200],
                hint="the file is damaged",
            )  # fmt: skip

    # --- new tables

    def place(
        self, names: Sequence[str], width: int, where: str, ignore: Collection[int] = ()
    ) -> Places:
        """Where the columns are in a table with these names (none, if it has no line of names).

        They are found by name; where the table or the schema has no names, by position, and then
        there have to be as many. What is missing and what is unknown are errors. `ignore` has the
        numbers of columns that shall be left out.
        """
        if names and self.names:
            return self._by_name(names, where, ignore)
        left = [column for column in range(width) if column not in ignore]
        if len(left) == len(self.columns):
            return Places(left, None)
        if len(left) == self.width:
            # A table like the one it was trained on, with what is predicted in its place.
            target = None if self.target is None else left[self.target.position]
            return Places([left[column.position] for column in self.columns], target)
        expected = f"{len(self.columns)} columns"
        if self.target is not None:
            expected += f", or the {self.width} of the table it was trained on"
        hint = "without names, columns are told by their position"
        raise DataError.build(where, expected=expected, got=str(len(left)), hint=hint)

    def _by_name(self, names: Sequence[str], where: str, ignore: Collection[int]) -> Places:
        target = self.target.name if self.target else ""
        given = [name for number, name in enumerate(names) if number not in ignore]
        missing = [name for name in self.names if name not in given]
        known = {*self.names, *self.ignored, target}
        unknown = [name for name in given if name not in known]
        if missing or unknown:
            got = [f"no {_listed(missing)}"] if missing else []
            got += [f"{_listed(unknown)}, which it was not trained on"] if unknown else []
            raise DataError.build(
                where, expected=f"the columns {_listed(self.names)}", got=" and ".join(got),
                hint=_way_out(missing, unknown),
            )  # fmt: skip
        for name in (*self.names, target):
            if given.count(name) > 1:
                raise DataError.build(
                    where, expected="a name of its own for each column", got=f"{name!r} twice",
                    hint="leave one out by its number, with ignore= (--ignore-columns)",
                )  # fmt: skip
        place = {name: number for number, name in enumerate(names) if number not in ignore}
        return Places([place[name] for name in self.names], place.get(target))

    # --- other data

    def check(self, other: Schema, where: str) -> None:
        """Refuse data whose columns or classes mean something else than those of this schema."""
        if self.names and other.names and self.names != other.names:
            raise DataError.build(
                where, expected=f"the columns {_listed(self.names)}", got=_listed(other.names),
                hint="read the table with data.csv(path, schema=model.schema), which finds columns "
                "by name; or set model.schema = None to train for others",
            )  # fmt: skip
        numbers = [str(number) for number in range(len(other.classes))]
        if other.target is None and list(other.classes) == numbers:
            # Arrays have numbers for classes, whatever these are called.
            return
        if any(mine != theirs for mine, theirs in zip(self.classes, other.classes, strict=False)):
            raise DataError.build(
                where, expected=f"the classes {_listed(self.classes)}", got=_listed(other.classes),
                hint="read the data with schema=model.schema, which numbers classes as the model "
                "does; or set model.schema = None to train for others",
            )  # fmt: skip


class Places(NamedTuple):
    """The numbers of columns in a table: the inputs in order, and the target if it is there."""

    inputs: list[int]
    target: int | None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(map(repr, names[:_MOST_SHOWN])) + more


def _way_out(missing: Sequence[str], unknown: Sequence[str]) -> str:
    by_letters = {name.lower(): name for name in unknown}
    for name in missing:
        for found in get_close_matches(name.lower(), by_letters, n=1):
            return f"is {by_letters[found]!r} the column {name!r}? Rename it"
    if unknown:
        return "leave them out with ignore= (--ignore-columns)"
    return "the model cannot do without them"
