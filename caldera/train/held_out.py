"""What `fit` trains on, and what it validates on: other data, or a part that is held out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.data import Pipeline
from caldera.data.datasets.dataset import split_rows
from caldera.errors import ConfigError, DataError
from caldera.train.callbacks import Callback
from caldera.train.tracking.history import Selection

if TYPE_CHECKING:
    from caldera.train.model import Model


@dataclass(frozen=True)
class Parts:
    """Samples to train with, with their weights, and samples to validate with."""

    train: Any
    sample_weights: Any
    validation: Pipeline | None
    part: float | None = None
    """The part of the training data that was held out."""
    given: Any = None
    """What a user gave as validation data."""

    @classmethod
    def of(cls, data: Any, validation: Any, sample_weights: Any, seed: int) -> Parts:
        """From what `fit` was given. The same seed holds out the same samples."""
        if validation is None:
            return cls(data, sample_weights, None)
        if not isinstance(validation, int | float):
            return cls(data, sample_weights, Pipeline.of(validation), given=validation)
        pipeline = Pipeline.of(data)
        _check(pipeline, validation)
        train, apart = split_rows(pipeline, validation, seed)
        if not len(train) or not len(apart):
            raise DataError.build(
                "fit",
                expected=f"enough samples to hold out {validation:g} of them",
                got=f"{len(pipeline)}",
            )
        if sample_weights is not None:
            weights = np.asarray(sample_weights)
            if weights.shape != (len(pipeline),):
                raise DataError.build(
                    "fit",
                    expected=f"one weight for each of {len(pipeline)} samples",
                    got=f"{weights.shape}",
                )
            sample_weights = weights[train]
        held = pipeline.subset(apart)
        return cls(pipeline.subset(train), sample_weights, held, part=float(validation))

    def selection(self, model: Model, callbacks: Sequence[Callback]) -> Selection | None:
        """What was chosen by the validation data; None if there are none."""
        if self.validation is None:
            return None
        known = ("loss", "val_loss")
        rules = [model.optimizer.epoch_rule, *model.between_epochs]
        columns = [each.decides_by for each in callbacks]
        columns += [rule.decides_by(known) for rule in rules if rule is not None]
        by = tuple(dict.fromkeys(name for name in columns if name.startswith("val_")))
        samples = None if self.validation.is_stream else len(self.validation)
        return Selection(by, samples, self.part, self.validation.is_test, self.given)

    def warn_of_test(self, model: Model, callbacks: Sequence[Callback]) -> None:
        """Say so if what chooses looks at samples to test with."""
        found = self.selection(model, callbacks)
        if found is not None and found.is_test and found.by:
            warnings.warn(
                f"fit: {', '.join(found.by)} on the test samples of a data set chooses the model, "
                "so that results on them will be too good; hold out a part of the training data "
                "with fit(..., validation=0.2)",
                stacklevel=4,
            )


def _check(data: Pipeline, part: float) -> None:
    if isinstance(part, bool) or not 0 < part < 1:
        raise ConfigError.build(
            "fit",
            expected="validation data, or a part of the data between 0 and 1",
            got=repr(part),
        )
    if data.is_stream:
        raise DataError.build(
            "fit",
            expected="samples that have numbers, to hold out some of them",
            got="a stream",
            hint="pass other data as validation",
        )
    changed = [stage.name for stage in data.own_stages if stage.is_random]
    if changed:
        raise ConfigError.build(
            "fit",
            expected="samples to hold out that are not changed at random",
            got=f"a pipeline with {', '.join(changed)}",
            hint="hold them out first: parts = dataset.hold_out(0.2), then "
            "fit(data.Pipeline(parts.train, stages), validation=parts.validation)",
        )
