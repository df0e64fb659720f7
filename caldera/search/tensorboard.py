"""`search.TensorBoard`: the trials of a study for TensorBoard's page HParams."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from caldera.io.events import EventFile
from caldera.search.scheduler import StudyCallback
from caldera.search.trial import FAILED, Trial

if TYPE_CHECKING:
    from caldera.search.study import Study


class TrialTensorBoard(StudyCallback):
    """Writes each trial that is over to a folder of its own: its parameters, what it reported step
    by step, its values; `tensorboard --logdir FOLDER` compares them on its page HParams.

    Event files need neither TensorBoard nor TensorFlow to be written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from caldera import search
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = search.run(lambda x: x * x, {"x": search.integer(0, 1)}, method="grid",
    ...                    callbacks=[search.TensorBoard(folder)], verbose=0)
    ...     sorted(each.name for each in Path(folder).iterdir())
    ['trial-0', 'trial-1']
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)

    def trial_ends(self, study: Study, trial: Trial) -> None:
        with EventFile(self.folder / f"trial-{trial.number}") as events:
            settings = {
                name: "none" if value is None else value for name, value in trial.point.items()
            }
            events.hyper_parameters({**settings, "state": trial.state})
            for step, row in enumerate(trial.curve, 1):
                events.scalars(step, {name: v for name, v in row.items() if math.isfinite(v)})
            if trial.values is not None:
                named = zip(study.objective.names(), trial.values, strict=True)
                found = {f"objective/{name}": v for name, v in named if math.isfinite(v)}
                events.scalars(max(len(trial.curve), 1), found)
            events.ended(well=trial.state != FAILED)
