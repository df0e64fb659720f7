"""Data of a run, read and checked once, with the model built for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.data import Pipeline
from caldera.errors import DataError
from caldera.nn.task import MULTICLASS
from caldera.train.data_adapters import refuse_channels_last
from caldera.train.data_checks import (
    adopt_targets,
    check_schema,
    check_targets,
    data_digest,
    weights_digest,
)
from caldera.train.sample_weights import SampleWeights

if TYPE_CHECKING:
    from caldera.train.model import Model


@dataclass(frozen=True)
class TrainingData:
    """Data that suit a built model: `sample` is a batch of one, inputs and targets."""

    pipeline: Pipeline
    sample: tuple[np.ndarray, ...]
    inputs: int
    weights: SampleWeights | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        data: Any,
        by_sample: Any = None,
        by_class: Any = None,
        where: str = "fit",
        *,
        adopts: bool = False,
    ) -> TrainingData:
        """Build the model for the data and raise an error if shapes, schema or targets differ.

        With `adopts` the losses are set to the form of the targets (`Loss.for_targets`), and
        targets are left to `check`: ranks whose models differ must first find that out. Data that
        were checked already are returned unchanged.
        """
        if isinstance(data, TrainingData):
            return data
        pipeline = Pipeline.of(data)
        refuse_channels_last(model, pipeline)
        weights = SampleWeights.of(pipeline, by_sample, by_class)
        sample = pipeline.blank()
        count = 1 if pipeline.is_stream else len(pipeline)
        if len(sample) < 2 or not count:
            raise DataError.build(
                where,
                expected="samples with inputs and targets",
                got=f"{len(sample)} arrays of {count} samples",
                hint="pass (x, y)",
            )
        model.ensure_built(sample, inputs=pipeline.inputs, open_lengths=pipeline.is_ragged)
        check_schema(model, pipeline)
        given = cls(pipeline, sample, len(model.signature.inputs), weights)
        if by_class is not None and given.targets > 1:
            raise DataError.build(
                where,
                expected="one array of targets for class_weights",
                got="several",
                hint="weigh the samples with sample_weights instead",
            )
        classes = _classes(model)
        if weights is not None and classes is not None:
            weights.check_classes(classes)
        if adopts:
            adopt_targets(model, sample)
        else:
            given.check(model)
        return given

    def check(self, model: Model) -> None:
        """Raise an error if the targets do not suit the losses of the model."""
        check_targets(model, self.pipeline, self.sample, weighted=self.is_weighted)

    @property
    def is_weighted(self) -> bool:
        """True if samples or classes have weights."""
        return self.weights is not None

    @property
    def targets(self) -> int:
        """Number of target arrays of a sample."""
        return len(self.sample) - self.inputs

    @property
    def count(self) -> str:
        """Number of samples in words."""
        return sample_count(self.pipeline)

    def digests(self) -> dict[str, str]:
        """Return names for samples and weights that ranks compare."""
        return {
            "data": data_digest(self.pipeline),
            "weights of samples": weights_digest(self.weights),
        }


def sample_count(data: Pipeline) -> str:
    """Return the number of samples in words."""
    return "a stream" if data.is_stream else f"{len(data)}"


def _classes(model: Model) -> int | None:
    """Return the number of classes of the main output, None if it has no classes."""
    name, loss = next(iter(model.objective.losses.items()))
    task, shape = loss.task(), model.signature.outputs.get(name)
    if task is None or task.kind != MULTICLASS or shape is None:
        return None
    return (1, *shape)[task.axis]
