"""Data doctor: faults of a table that training would not notice, each with column and count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import require
from caldera.data.tables.column_checks import (
    Conventions,
    TableFinding,
    codes_of,
    giveaway,
    mixed_dates,
    mixed_numbers,
    mixed_spellings,
    other_scale,
    outliers,
    sentinels,
)
from caldera.data.tables.kinds import CATEGORY, DATE, IDENTIFIER_NAME, NUMBER, Chosen
from caldera.data.tables.numbers import NumberFormat
from caldera.data.tables.table import Table, Values
from caldera.data.tables.targets import Labels
from caldera.errors import DataError

_RARE = 0.1
"""Share of the rarest class below which classes are imbalanced, where another is common."""
_TELLING = {0: 0.99, 2: 0.995}
"""Values of `giveaway` from which a column is reported, by number of classes."""
_TELLING_CLASSES = 0.98
_LEAST_ROWS = 30
_LEAST_COPIES, _COPIED = 3, 0.01
"""Least number and share of test rows with a copy in the training rows."""
_GROUPS = 20
_NAMED = 5
"""Columns that a finding lists."""


class Doctor:
    """Collects the findings of a table, column by column."""

    def __init__(self, table: Table, target: int, labels: Labels, train: NDArray[np.int64]) -> None:
        self.table, self.target, self.labels, self.train = table, target, labels, train
        self.found: list[TableFinding] = []
        self.answers = labels.values if labels.class_names else labels.values[:, 0]
        # The codes of rows, and the probability that two rows are equal by chance.
        self._keys = codes_of(self.answers).astype(np.uint64)
        self._chance = _collision(self._keys)

    def column(self, place: int, kind: str, values: Values, detail: object = "") -> None:
        """Examine a column to learn from; `values` has the type of its kind."""
        codes = codes_of(values)
        self._keys = self._keys * np.uint64(0x9E3779B97F4A7C15) + codes.astype(np.uint64)
        self._chance *= _collision(codes)
        if kind == NUMBER:
            # Differences of numbers near the end of float64 are infinite.
            with np.errstate(over="ignore", invalid="ignore"):
                self._numbers(place, values, detail)
        elif kind == DATE:
            future = int((values > np.datetime64("now") + np.timedelta64(1, "D")).sum())
            if future:
                text = f"dates after today in {_rows(future)}, as late as {_day(np.nanmax(values))}"
                self._add("future", place, future, text)
        elif kind == CATEGORY:
            self._conventions(place)
        if len(self.train) >= _LEAST_ROWS:
            self._telling(place, values)
        self._groups(place, codes)

    def _add(self, kind: str, place: int, rows: int, text: str, *, fault: bool = True) -> None:
        name = self.table.names[place] if self.table.names else str(place)
        self.found.append(TableFinding(kind, name, rows, text, fault))

    def _numbers(self, place: int, values: Values, detail: object) -> None:
        if isinstance(detail, NumberFormat) and detail.unit:
            rows = int(np.isfinite(values).sum())
            text = f"the unit {detail.unit!r} in {_rows(rows)}, read as numbers"
            self._add("unit", place, rows, text, fault=False)
        for value, rows in sentinels(values):
            text = (
                f"{value:.15g} in {_rows(rows)} looks like a mark of missing values: "
                f"--missing-values={value:.15g} (missing_values=) reads it so"
            )
            self._add("sentinel", place, rows, text)
            values = np.where(values == value, np.nan, values)
        far, other = outliers(values), other_scale(values)
        if other is not None:
            text = f"{_rows(other.rows)} about {other.factor:g} times the rest: check the unit"
            self._add("conventions", place, other.rows, text)
        elif len(far):
            kept = values[np.isfinite(values) & ~np.isin(values, far)]
            worst = far[np.abs(far - np.median(kept)).argmax()]
            text = (
                f"far outliers in {_rows(len(far))}, such as {worst:.6g}; the rest are from "
                f"{kept.min():.6g} to {kept.max():.6g}"
            )
            self._add("outliers", place, len(far), text)

    def _conventions(self, place: int) -> None:
        """Examine the texts of a column that is not one of numbers or dates."""
        if self.table.columns[place].dtype != object:
            return
        texts = [each for each in self.table.columns[place] if each is not None]
        found: Conventions | None = None
        for check in (mixed_numbers, mixed_dates, mixed_spellings):
            found = found or check(texts)
        if found is not None:
            self._add("conventions", place, found.rows, found.text)

    def _telling(self, place: int, values: Values) -> None:
        classes = len(self.labels.class_names)
        score = giveaway(values[self.train], self.answers[self.train], classes)
        if score >= _TELLING.get(classes, _TELLING_CLASSES):
            measure = {0: "R\u00b2", 2: "AUC"}.get(classes, "part of errors avoided")
            text = (
                "leaks the target: without further columns it predicts "
                f"{_rows(len(self.train))} ({measure} {score:.3f}); if it is not known before "
                "the target, leave it out with --ignore-columns (ignore=)"
            )
            self._add("giveaway", place, len(self.train), text)

    def _groups(self, place: int, codes: Values) -> None:
        name = self.table.names[place] if self.table.names else ""
        groups = len(np.unique(codes))
        if IDENTIFIER_NAME.search(name) is None or not _GROUPS < groups < len(codes):
            return
        text = (
            f"an identifier with {groups} values in {_rows(len(codes))}: rows with equal values "
            "are both in the training and in the test part; --group-column (group=) keeps them "
            "together"
        )
        self._add("identifier", place, len(codes), text)

    # --- the whole table

    def findings(self, chosen: Chosen, test: NDArray[np.int64]) -> tuple[TableFinding, ...]:
        """Return all findings, faults first."""
        self._left_out(chosen.left_out)
        self._copies(test)
        self._imbalance()
        return tuple(sorted(self.found, key=lambda each: not each.is_fault))

    def _left_out(self, reasons: Mapping[int, str]) -> None:
        constant = []
        for place, reason in reasons.items():
            if reason.startswith("the same value"):
                constant.append(place)
            elif "identifier" in reason:
                self._add("identifier", place, len(self.table), f"left out: {reason}", fault=False)
            elif reason != "as told":
                count = len(self.found)
                self._conventions(place)
                if len(self.found) == count:
                    kind = "identifier" if self._is_unique(place) else "ignored"
                    self._add(kind, place, len(self.table), f"left out: {reason}", fault=False)
        if len(constant) > _NAMED:
            names = [self.table.label(place) for place in constant]
            text = f"columns {_some(names)} have one value in all rows, and are left out"
            self.found.append(TableFinding("constant", "", len(self.table), text, False))
        else:
            for place in constant:
                text = f"left out: {reasons[place]}"
                self._add("constant", place, len(self.table), text, fault=False)

    def _is_unique(self, place: int) -> bool:
        codes = codes_of(self.table.columns[place])
        return len(np.unique(codes)) == len(codes)

    def _copies(self, test: NDArray[np.int64]) -> None:
        """Report test rows that are copies of training rows, unless chance explains them."""
        copied = int(np.isin(self._keys[test], self._keys[self.train]).sum())
        by_chance = self._chance * len(test) * len(self.train)
        if copied >= max(_LEAST_COPIES, _COPIED * len(test), 10 * by_chance):
            text = (
                f"{copied} of {_rows(len(test))} to test with are copies of training rows, which "
                "makes test results too good: remove the copies from the table"
            )
            self.found.append(TableFinding("duplicates", "", copied, text))

    def _imbalance(self) -> None:
        names = self.labels.class_names
        if not names:
            return
        counts = np.bincount(self.answers, minlength=len(names))
        rarest, most = int(counts.argmin()), int(counts.max())
        share = counts[rarest] / counts.sum()
        if share < _RARE and most >= 3 * counts[rarest] and share < 0.5 / len(names):
            text = (
                f"class {names[rarest]!r} has {_rows(int(counts[rarest]))} of {counts.sum()} "
                f"({share:.1%}): accuracy is uninformative; see --class-weights balanced "
                f"(class_weights=){' and --threshold best-f1' * (len(names) == 2)}"
            )
            self.found.append(TableFinding("imbalance", "", int(counts[rarest]), text, False))


def check_findings(findings: Sequence[TableFinding], where: str) -> None:
    """Raise an error for faults."""
    faults = "; ".join(str(each) for each in findings if each.is_fault)
    require(
        not faults,
        where,
        "a table without faults",
        faults,
        hint="without strict= (--strict) it is used, and the findings are shown",
        error=DataError,
    )


def _collision(codes: Values) -> float:
    """Return the probability that two random rows have the same value."""
    counts = np.unique(codes, return_counts=True)[1]
    return float(np.square(counts / max(len(codes), 1)).sum())


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _day(moment: np.datetime64) -> str:
    return str(moment.astype("datetime64[D]"))
