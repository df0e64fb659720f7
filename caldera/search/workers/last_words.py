"""What the master tells all ranks when a search is over: the whole study, as plain data.

So every rank goes on with the same study, as after `fit` every rank has the same model, and none of
them has to read a file that only the master's machine may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from caldera.base.plain_data import decoded, encoded
from caldera.search.study import Study
from caldera.search.trial import Trial

_MADE_HERE = ("parameters", "make")
"""What may be anything; it follows from the rest."""
_TRIALS = 500
"""Of one message: a study may have more than one message can hold."""


def last_words(study: Study) -> list[dict[str, Any]]:
    """A study as what JSON can hold, in pieces."""
    names = [each.name for each in fields(Trial) if each.name not in _MADE_HERE]
    trials = [{name: getattr(trial, name) for name in names} for trial in study.trials]
    words = [{"notes": encoded(study.record.notes())}]
    kept = study.record.conditions()
    for begin in range(0, len(trials), _TRIALS):
        piece = trials[begin : begin + _TRIALS]
        named = {trial["conditions"] for trial in piece} & kept.keys()
        conditions = {name: kept[name] for name in named}
        words.append({"trials": encoded(piece), "conditions": conditions})
    return words


def take_over(study: Study, said: Sequence[dict[str, Any]]) -> None:
    """Let an empty study be the one that the master spoke of."""
    space = study.space
    assert space is not None
    for given in decoded([trial for piece in said for trial in piece.get("trials", ())]):
        values = given.pop("values")
        trial = Trial(
            parameters=space.decoded(given["point"]),
            values=None if values is None else tuple(values),
            **given,
        )
        study.adopt(trial)
    for piece in said:
        for key, value in decoded(piece.get("notes", {})).items():
            study.record.note(key, value)
        for name, text in piece.get("conditions", {}).items():
            study.record.keep_conditions(name, text)
