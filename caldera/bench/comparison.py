"""The results of a case's contestants beside those of the reference, as they come in."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caldera.bench.checks import TRUTH, written
from caldera.bench.equality import (
    Equality,
    compare_in_precision,
    compare_results,
    compare_training,
    curve_limit,
    largest_difference,
)
from caldera.bench.results import Entry

_EAGER = "eager"
_OTHER_FORMAT = "channels_last"
_REFERENCE = "reference"


class Comparison:
    """One case. The reference must be added first; arrays of others are deleted at once.

    How far the loss curve of the reference is from its own with the other order of an image's axes
    is how far others may be.
    """

    def __init__(self, folder: Path, reference: str) -> None:
        self._folder = folder
        self._reference = reference
        self._numbers: dict[str, Any] | None = None

    def folder_of(self, entry: Entry) -> Path:
        """Where a contestant's worker writes its arrays."""
        return self._folder / (_REFERENCE if self.is_reference(entry) else "other")

    def is_reference(self, entry: Entry) -> bool:
        """Whether the others are compared with this one."""
        return entry.label == self._reference

    def add(self, entry: Entry, numbers: dict[str, Any]) -> None:
        """Compare what a worker computed for its check."""
        found = written(self.folder_of(entry))
        if self.is_reference(entry):
            self._numbers = numbers
        if self._numbers is None:
            return
        expected = written(self._folder / _REFERENCE)
        if entry.precision:
            truth = written(self._folder / _REFERENCE / TRUTH)
            entry.equality = compare_in_precision(
                self._numbers, truth, numbers, found, entry.precision
            )
        elif "first loss" in numbers:
            entry.equality = compare_training(self._numbers, expected, numbers, found)
            truth = written(self._folder / _REFERENCE / TRUTH)
            if truth:
                entry.equality.true_gradients = largest_difference(truth, found)
        else:
            entry.equality = compare_results(expected, found)
        entry.equality.against = self._reference
        if not self.is_reference(entry):
            shutil.rmtree(self.folder_of(entry), ignore_errors=True)

    def judge(self, entries: Sequence[Entry]) -> None:
        """Say who is equal, now that all are there; and forget the arrays."""
        by_label = {each.label: each.equality for each in entries}
        reference = by_label.get(self._reference, Equality())
        other = by_label.get(f"{self._reference} {_OTHER_FORMAT}", Equality())
        for entry in entries:
            entry.equality.reference_true_gradients = reference.true_gradients
            if entry.equality.precision:
                self._allow(entry, entries)
            elif entry.equality.curve is not None:
                entry.equality.curve_allowed = curve_limit(other.curve)
            entry.equality.judge()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _allow(self, entry: Entry, entries: Sequence[Entry]) -> None:
        """Set an entry's limits by the eager steps of the reference in the same precision."""
        framework = self._reference.split()[0]
        alike = [
            each.equality
            for each in entries
            if each.framework == framework
            and each.precision == entry.precision
            and each.setting in (_EAGER, f"{_EAGER} {_OTHER_FORMAT}")
        ]
        entry.equality.allow(
            gradients=max((each.distance or 0.0 for each in alike), default=None),
            curve=max((each.curve or 0.0 for each in alike), default=None),
        )
