"""What the master tells all ranks when a search is over: the whole study, as plain data.

So every rank goes on with the same study, as after `fit` every rank has the same model, and none of
them has to read a file that only the master's machine may have.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from caldera.plain_data import decoded, encoded
from caldera.search.study import Study
from caldera.search.trial import Trial

_MADE_HERE = ("parameters", "make")
"""What may be anything; it follows from the rest."""


def last_words(study: Study) -> dict[str, Any]:
    """A study as what JSON can hold."""
    names = [each.name for each in fields(Trial) if each.name not in _MADE_HERE]
    trials = [{name: getattr(trial, name) for name in names} for trial in study.trials]
    said: dict[str, Any] = encoded({"trials": trials, "notes": study.record.notes()})
    return said


def take_over(study: Study, said: dict[str, Any]) -> None:
    """Let an empty study be the one that the master spoke of."""
    space = study.space
    assert space is not None
    for given in decoded(said["trials"]):
        values = given.pop("values")
        trial = Trial(
            parameters=space.decoded(given["point"]),
            values=None if values is None else tuple(values), **given,
        )  # fmt: skip
        study.adopt(trial)
    for key, value in decoded(said["notes"]).items():
        study.record.note(key, value)
