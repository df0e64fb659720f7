"""Names in the advice of reports: flags for runs of `caldera train`, else arguments."""

from __future__ import annotations

from typing import NamedTuple

from caldera.train.tracking.run_record import RunRecord


class AdviceNames(NamedTuple):
    """The names that a reader can use for settings that advice recommends."""

    class_weights: str = 'class_weights="balanced" of fit'
    early_stopping: str = "callbacks=[cd.EarlyStopping()] of fit"
    dropout: str = "nn.Dropout"
    weight_decay: str = "optim.AdamW(weight_decay=0.1)"
    label_smoothing: str = "nn.losses.CrossEntropy(label_smoothing=0.1)"
    epochs: str = "epochs="
    learning_rate: str = "learning_rate="


FLAGS = AdviceNames(
    "--class-weights balanced",
    "--patience 5",
    "--dropout 0.3",
    "--weight-decay 0.1",
    "--label-smoothing 0.1",
    "--epochs",
    "--learning-rate",
)
"""The names for runs of the command line."""
ARGUMENTS = AdviceNames()


def names_for(record: RunRecord) -> AdviceNames:
    """Return flags for a run of `caldera train`, whose settings name its data, else arguments."""
    return FLAGS if "data" in record.settings else ARGUMENTS
