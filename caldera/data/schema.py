"""Meaning of samples: columns of a table, target and class names.

A schema is plain data. It is passed with the data to `fit`, and saved in the model and its file.
With the file, any program can assign the columns of a new table, encode their values and interpret
predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from caldera.base.arguments import require
from caldera.base.plain_data import from_plain, to_plain
from caldera.data.column import KINDS, Column
from caldera.data.decisions import ClassThreshold
from caldera.data.series import Series, TargetScale
from caldera.data.tables.table import Table, Values, is_missing
from caldera.data.text.tokenizer import Tokenizer
from caldera.errors import DataError

VERSION = 2
_VERSIONS = (1, VERSION)
"""Version 1 supported only numbers, which were used unchanged."""
_MOST_SHOWN = 8


class Features(NamedTuple):
    """Encoded rows of a table, and notes about filled and unusual values."""

    x: Values
    notes: list[str]


class FeatureSpan(NamedTuple):
    """The features that come from one column."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Schema:
    """Description of a model's training data.

    - `columns`: the inputs, in the order of the model; empty for images.
    - `target`: the column that is predicted.
    - `classes`: the name of each class; empty if values are predicted.
    - `ignored`: names of columns of the table that the model does not use.
    - `reasons`: the reason why each of these columns is ignored.
    - `width`: number of columns of the table.
    - `text`: the tokenizer, for a model of texts.
    - `series`: the windows of a time series, for a model that forecasts.
    - `threshold`: the probability from which one of two classes is predicted, if it is not 0.5.
    - `interval`: the share of values in the intervals that the model predicts after each value.

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
    reasons: tuple[str, ...] = ()
    text: Tokenizer | None = None
    series: Series | None = None
    threshold: ClassThreshold | None = None
    interval: float | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs; none if the columns have no names."""
        names = tuple(column.name for column in self.columns)
        return names if all(names) else ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the model's features, in order.

        >>> Schema((Column("width", "number", 0),), width=1).features
        ('width',)
        """
        return tuple(name for column in self.columns for name in column.features())

    @property
    def spans(self) -> tuple[FeatureSpan, ...]:
        """Features of each column."""
        found, start = [], 0
        for column in self.columns:
            found.append(FeatureSpan(column.title, start, start + column.width))
            start += column.width
        return tuple(found)

    @property
    def category_spans(self) -> list[tuple[int, int]]:
        """Ranges of features that encode the categories or words of a column.

        They are the input of `nn.ColumnEmbedding`.
        """
        return [
            (span.start, span.stop)
            for column, span in zip(self.columns, self.spans, strict=True)
            if (column.category or column.text) is not None and column.width > 1
        ]

    @property
    def target_scale(self) -> TargetScale | None:
        """Mean and deviation of the predicted values; None if they are not scaled."""
        if self.series is not None:
            return self.series.target_scale
        known = self.target.number if self.target is not None else None
        return None if known is None else TargetScale(known.mean, known.scale)

    def encode(
        self,
        table: Table,
        places: Sequence[int],
        decimal: str | None = None,
        *,
        is_new: bool = True,
    ) -> Features:
        """Return the features of a table whose columns are at these places; one that is not new is
        the one from which the schema was learnt."""
        parts, notes, far, shifted = [], [], [], []
        for column, place in zip(self.columns, places, strict=True):
            values = column.parse(table, place, decimal, is_new=is_new)
            part = column.transform(values)
            with np.errstate(over="ignore"):
                single = part.astype(np.float32)
            if not np.isfinite(single).all():
                row = int((~np.isfinite(single)).any(axis=1).argmax())
                expected = "a finite number in the range of float32"
                raise table.refused(row, place, expected, "correct it, or leave the line out")
            parts.append(single)
            said = column.encoder.notes(values) if column.encoder is not None else ""
            if said:
                notes.append(f"column {column.name or column.position!r}: {said}")
            count, seen = column.far(values)
            if count:
                far.append(f"column {column.name or column.position!r} in {count} ({seen})")
            share = column.drift(values)
            if share:
                shifted.append(f"column {column.name or column.position!r} in {share:.0%}")
        rows = f"{len(table)} row{'s' if len(table) > 1 else ''}"
        if far:
            notes.append(f"far outside the training data, of {rows}: {listed(far, str)}")
        if shifted:
            notes.append(
                f"drift: outside the range of 98% of the training rows, of {rows}: "
                f"{listed(shifted, str)}"
            )
        return Features(np.concatenate(parts, axis=1), notes)

    def decode(self, outputs: Values, *, probabilities: bool = False) -> dict[str, Values]:
        """Return the predictions of a model by name.

        These are the most probable class and its probability, or the predicted values and their
        intervals. With `probabilities`, the probability of each class is added.

        >>> schema = Schema((Column("width", "number", 0),), Column("kind", "class", 1),
        ...                 ("iris", "rose"), width=2)
        >>> schema.decode(np.array([[0.0, 2.0]]))
        {'kind': array(['rose'], dtype=object), 'probability': array([0.88079708])}
        """
        flat = outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))
        name = self.target.name if self.target is not None else ""
        if self.series is not None:
            return dict(zip(self.series.outputs, flat.T, strict=True))
        if not self.classes:
            if name and flat.shape[1] == 1:
                return {name: flat[:, 0]}
            if self.interval is not None and flat.shape[1] == 3:
                names = (name or "value", f"{name} low".strip(), f"{name} high".strip())
                return dict(zip(names, flat.T, strict=True))
            return {f"{name or 'value'}{place}": flat[:, place] for place in range(flat.shape[1])}
        largest = flat.max(axis=1, keepdims=True, initial=-np.inf)
        powers = np.exp(flat.astype(np.float64) - largest)
        parts = powers / powers.sum(axis=1, keepdims=True)
        named = names_of_classes(self.classes, flat.shape[1], "predict")
        chosen = self.chosen(parts)
        found = {
            name or "class": np.array(named, object)[chosen],
            "probability": np.take_along_axis(parts, chosen[:, None], axis=1)[:, 0],
        }
        every = zip(named, parts.T, strict=True) if probabilities else ()
        return found | {f"probability of {each}": part for each, part in every}

    def without_ends(self, outputs: Values) -> Values:
        """Return the outputs of a model without the ends of intervals."""
        return outputs if self.interval is None else outputs[:, :1]

    def chosen(self, probabilities: Values) -> Values:
        """Return the number of the predicted class for each row of probabilities.

        >>> schema = Schema(classes=("bad", "good"), threshold=ClassThreshold("bad", 0.2))
        >>> schema.chosen(np.array([[0.3, 0.7], [0.1, 0.9]])).tolist()
        [0, 1]
        """
        found = probabilities.argmax(axis=1)
        if self.threshold is None or probabilities.shape[1] != 2:
            return found
        place = self.classes.index(self.threshold.name)
        likely = probabilities[:, place] >= self.threshold.probability
        return np.where(likely, place, 1 - place)

    def describe(self) -> str:
        """Return a line for each column: its type, and the learnt values or why it is left out.

        >>> print(Schema((Column("width", "number", 0),), width=1).describe())
        width  number  unchanged
        """
        rows = self.described()
        widths = [max((len(row[place]) for row in rows), default=0) for place in (0, 1)]
        return "\n".join(
            f"{name:{widths[0]}}  {kind:{widths[1]}}  {said}".rstrip() for name, kind, said in rows
        )

    def described(self) -> list[tuple[str, str, str]]:
        """Return name, type, and learnt values or the reason for leaving it out, of each column."""
        rows = [(each.title, each.kind, each.describe()) for each in self.columns]
        if self.target is not None:
            said = f"{self.target.kind}: {listed(self.classes, str) or self.target.describe()}"
            rows.append((self.target.title, "predicted", said))
        reasons = self.reasons or ("",) * len(self.ignored)
        for name, reason in zip(self.ignored, reasons, strict=True):
            rows.append((name, "left out", reason or "as told"))
        return rows

    def to_plain(self) -> dict[str, Any]:
        """Return a JSON-serialisable value."""
        return to_plain(self)

    @classmethod
    def from_plain(cls, given: Any, where: str) -> Schema:
        """Return the schema from the data of `to_plain`; raise an error for any other data.

        >>> schema = Schema((Column("width", "number", 0),), width=2)
        >>> Schema.from_plain(schema.to_plain(), "flowers.caldera") == schema
        True
        """
        version = given.get("version") if isinstance(given, dict) else None
        if type(version) is not int or version not in _VERSIONS:
            known = " or ".join(map(str, _VERSIONS))
            raise DataError.build(
                where,
                expected=f"a schema of version {known}",
                got=repr(version)[:80],
                hint="a newer Caldera may have written it",
            )
        found = from_plain(cls, given, where)
        found._check(where)
        return found

    def _check(self, where: str) -> None:
        """Check the constraints that types do not express."""
        if self.text is not None:
            self.text.check(where)
        columns = [*self.columns, *([self.target] if self.target else [])]
        unknown = sorted({column.kind for column in columns} - set(KINDS))
        if unknown:
            raise DataError.build(
                where,
                expected="columns of the kinds " + ", ".join(KINDS),
                got=unknown[0][:80],
                hint="a newer Caldera may have written it",
            )
        names = [column.name for column in columns if column.name]
        positions = [column.position for column in columns]
        expected, problem = "columns with their required keys", ""
        if self.series is not None and (wrong := self.series.problem()):
            expected, problem = "windows of a series", wrong
        elif (
            len(set(names)) < len(names)
            or len(set(positions)) < len(positions)
            or any(not 0 <= position < self.width for position in positions)
        ):
            expected = f"{len(columns)} different columns among {self.width}"
            problem = ", ".join(map(str, zip(names, positions, strict=False)))[:200]
        elif self.threshold is not None and (
            self.threshold.name not in self.classes or not 0 < self.threshold.probability < 1
        ):
            expected = "a class and a probability between 0 and 1 as threshold"
            problem = str(self.threshold)[:200]
        elif self.interval is not None and not 0 < self.interval < 1:
            expected, problem = "intervals with a probability", str(self.interval)[:200]
        elif self.reasons and len(self.reasons) != len(self.ignored):
            problem = f"{len(self.reasons)} reasons for {len(self.ignored)} columns"
        else:
            problem = next((each for column in columns if (each := column.problem())), "")
        require(not problem, where, expected, problem, hint="the file is damaged", error=DataError)

    # --- new tables

    def place(
        self, names: Sequence[str], width: int, where: str, ignore: Collection[int] = ()
    ) -> ColumnPositions:
        """Return the positions of the columns in a table with these names.

        `names` is empty if the table has no header row. Columns are found by name; if the table or
        the schema has no names, by position, and then their number must match. Missing and unknown
        columns are errors. `ignore` contains the numbers of columns to leave out.
        """
        if names and self.names:
            return self._by_name(names, where, ignore)
        left = [column for column in range(width) if column not in ignore]
        if len(left) == len(self.columns):
            return ColumnPositions(left, None)
        if len(left) == self.width:
            # The table has the layout of the training table, including the target.
            target = None if self.target is None else left[self.target.position]
            return ColumnPositions([left[column.position] for column in self.columns], target)
        expected = f"{len(self.columns)} columns"
        if self.target is not None:
            expected += f", or the {self.width} of the table it was trained on"
        hint = "without names, columns are matched by position"
        raise DataError.build(where, expected=expected, got=str(len(left)), hint=hint)

    def _by_name(
        self, names: Sequence[str], where: str, ignore: Collection[int]
    ) -> ColumnPositions:
        target = self.target.name if self.target else ""
        given = [name for number, name in enumerate(names) if number not in ignore]
        missing = [name for name in self.names if name not in given]
        known = {*self.names, *self.ignored, target}
        # A column without a name is left out of every table.
        unknown = [name for name in given if name not in known and not is_missing(name)]
        if missing or unknown:
            got = [f"no {listed(missing)}"] if missing else []
            got += [f"{listed(unknown)}, which it was not trained on"] if unknown else []
            raise DataError.build(
                where,
                expected=f"the columns {listed(self.names)}",
                got=" and ".join(got),
                hint=_way_out(missing, unknown),
            )
        for name in (*self.names, target):
            require(
                given.count(name) <= 1,
                where,
                "a distinct name for each column",
                f"{name!r} twice",
                hint="leave one out by its number, with ignore= (--ignore-columns)",
                error=DataError,
            )
        place = {name: number for number, name in enumerate(names) if number not in ignore}
        return ColumnPositions([place[name] for name in self.names], place.get(target))

    # --- other data

    def check(self, other: Schema, where: str) -> None:
        """Raise an error if columns or classes of other data differ in meaning from this schema."""
        hint = (
            "read the table with data.table(path, schema=model.schema), which finds columns by "
            "name and encodes them as in training; or set model.schema = None to train for "
            "others"
        )
        if self.names and other.names and self.names != other.names:
            raise DataError.build(
                where,
                expected=f"the columns {listed(self.names)}",
                got=listed(other.names),
                hint=hint,
            )
        for mine, theirs in zip(self.columns, other.columns, strict=False):
            require(
                mine.encoder == theirs.encoder,
                where,
                f"column {mine.name!r} encoded as in training",
                "other categories, or another scale",
                hint=hint,
                error=DataError,
            )
        numbers = [str(number) for number in range(len(other.classes))]
        if other.target is None and list(other.classes) == numbers:
            # Classes of arrays are numbers, which match any class names.
            return
        if any(mine != theirs for mine, theirs in zip(self.classes, other.classes, strict=False)):
            raise DataError.build(
                where,
                expected=f"the classes {listed(self.classes)}",
                got=listed(other.classes),
                hint="read the data with schema=model.schema, which numbers classes as the model "
                "does; or set model.schema = None to train for others",
            )


def names_of_classes(given: Sequence[str], count: int, where: str) -> tuple[str, ...]:
    """Return a unique name for each of `count` classes: the given names, then numbers.

    >>> names_of_classes(("no", "1"), 3, "predict")
    ('no', '1', '2')
    """
    names = list(dict.fromkeys(given))[:count]
    if len(names) < min(len(given), count):
        twice = next(name for name in given if list(given).count(name) > 1)
        raise DataError.build(
            where,
            expected="a distinct name for each class",
            got=f"{twice!r} twice",
            hint="give the classes other names",
        )
    for number in range(len(names), count):
        name = str(number)
        while name in names:
            name = f"class {name}"
        names.append(name)
    return tuple(names)


class ColumnPositions(NamedTuple):
    """The numbers of columns in a table: the inputs in order, and the target if it is there."""

    inputs: list[int]
    target: int | None


def listed(
    names: Sequence[str], shown: Callable[[str], str] = repr, most: int = _MOST_SHOWN
) -> str:
    """Return the first names and the number of remaining names as text.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + more


def _way_out(missing: Sequence[str], unknown: Sequence[str]) -> str:
    by_letters = {name.lower(): name for name in unknown}
    for name in missing:
        for found in get_close_matches(name.lower(), by_letters, n=1):
            return f"is {by_letters[found]!r} the column {name!r}? Rename it"
    if unknown:
        return "leave them out with ignore= (--ignore-columns)"
    return "the model cannot do without them"
