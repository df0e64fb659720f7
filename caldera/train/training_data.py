"""Data of a run, read and checked once, with the model built for them.

Targets must suit their losses, and columns and classes must be the same as in earlier training of
the model. Errors are described in terms of the data. Ranks compare digests of their data to detect
that they received different data.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import require
from caldera.data import Data, IterableData, Pipeline, Schema
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError
from caldera.nn.ctc import CTCLoss
from caldera.nn.losses import MULTICLASS, REGRESSION, SEQUENCE, CrossEntropy, FunctionLoss, Loss
from caldera.train.data_adapters import refuse_channels_last
from caldera.train.sample_weights import SampleWeights

if TYPE_CHECKING:
    from caldera.train.model import Model


MOST_LOOKED_AT = 1 << 24
"""Maximum number of target values checked before training and before each evaluation."""
MOST_AVERAGED = 4096
"""Approximate number of samples averaged for the mean of the targets."""


@dataclass(frozen=True)
class _Output:
    """An output that has a loss, and its targets in a small batch."""

    name: str
    loss: Loss
    prediction: tuple[int, ...]
    target: np.ndarray
    number: int
    """Index of the targets among a sample's arrays."""

    @property
    def what(self) -> str:
        return type(self.loss).__name__


def check_targets(
    model: Model, data: Data | IterableData, sample: Sequence[np.ndarray], *, weighted: bool
) -> None:
    """Refuse outputs and targets that do not fit their losses; `sample` is a small batch.

    Where samples are `weighted`, one of weight 0 may have any class.
    """
    for output in _outputs(model, sample):
        _check_output(output, model.signature.last_ops[output.name])
        _check_kind(output, model.dtype)
        if weighted:
            continue
        loss, targets = output.loss, _labels(data, output)
        loss.check_targets(targets)
        if isinstance(loss, CrossEntropy) and not loss.probabilities:
            _check_range(targets, output.prediction[loss.axis], output.what)
        if isinstance(loss, CTCLoss):
            loss.check_room(targets, output.prediction)


def adopt_targets(model: Model, sample: Sequence[np.ndarray]) -> None:
    """Adapt the losses to the form of their targets: see `Loss.for_targets`."""
    known = dict(model.objective.losses)
    for output in _outputs(model, sample):
        known[output.name] = output.loss.for_targets(output.target.shape, output.prediction)
    if known != dict(model.objective.losses):
        model.loss = known if len(known) > 1 else next(iter(known.values()))


def warn_of_one_class(model: Model, data: Pipeline, sample: Sequence[np.ndarray]) -> None:
    """Warn if all targets are the same class or label."""
    for output in _outputs(model, sample):
        task, labels = output.loss.task(), _labels(data, output)
        if task is None or task.kind == REGRESSION:
            continue
        if len(labels) > 1 and np.all(labels == labels.flat[0]):
            warnings.warn(
                f"fit: all {len(labels)} targets are {labels.flat[0]}; a model can only learn "
                "this constant. Provide samples of every class",
                stacklevel=4,
            )


def _outputs(model: Model, sample: Sequence[np.ndarray]) -> Iterator[_Output]:
    inputs, known = len(model.signature.inputs), model.objective.losses
    targets = len(sample) - inputs
    require(
        targets in (1, len(known)),
        "targets",
        f"an array for each of the {len(known)} losses, or one for all",
        targets,
        "pass (x, y), or (x1, x2, y1, y2) for several",
        error=DataError,
    )
    for place, (name, loss) in enumerate(known.items()):
        if name in model.signature.outputs:
            number = inputs + (place if targets > 1 else 0)
            prediction = (len(sample[number]), *model.signature.outputs[name])
            yield _Output(name, loss, prediction, sample[number], number)


def _check_output(output: _Output, last_op: str) -> None:
    task = output.loss.task()
    if task is None:
        return
    require(
        task.kind != MULTICLASS or output.prediction[task.axis] != 1,
        f"outputs for {output.what}",
        "a number for each of at least 2 classes",
        "1 class, for which a softmax is constant",
        "give the last layer 2 outputs, or use loss='binary_cross_entropy', with targets 0.0 "
        "and 1.0 in a column; a single class cannot be learned",
    )
    of_classes = task.kind in (MULTICLASS, SEQUENCE)
    twice = {"softmax", "sigmoid"} | (set() if of_classes else {"log_softmax"})
    if task.logits and last_op in twice:
        own = "softmax" if of_classes else "sigmoid"
        raise ConfigError.build(
            f"outputs for {output.what}",
            expected=f"numbers from which it takes {own} itself",
            got=f"the output of {last_op}",
            hint="remove that last layer, which the loss applies already; "
            f"op.{own}(model.predict(x)) returns probabilities",
        )


_FUNCTION = (
    "a function takes targets in the shape of the predictions; for others write a class of "
    "nn.losses.Loss with per_sample(prediction, target), and target_spec(prediction_shape, dtype) "
    "that returns the shape and dtype of the targets"
)


def _check_kind(output: _Output, float_dtype: object) -> None:
    target = output.target
    shape, dtype = output.loss.target_spec(output.prediction, float_dtype)
    require(
        dtype.kind != "i" or target.dtype.kind in "iub",
        f"targets for {output.what}",
        "the number of a class for each sample, as int64",
        f"targets of {target.dtype}",
        "loss=nn.losses.CrossEntropy(probabilities=True) accepts rows of probabilities, such "
        "as one-hot rows; fit sets it automatically"
        if target.shape == output.prediction
        else "predict values with loss='mean_squared', or convert classes with y.astype('int64')",
        error=DtypeError,
    )
    shapes = target.shape[1:], shape[1:]
    require(
        target.shape[1:] == shape[1:],
        f"targets for {output.what}",
        f"targets of shape {shape[1:]} for each sample",
        target.shape[1:],
        _FUNCTION if isinstance(output.loss, FunctionLoss) else _reshaped(*shapes),
        error=ShapeError,
    )


def _labels(data: Data | IterableData, output: _Output) -> np.ndarray:
    """Return all labels if they are stored unchanged in an array; else the sample's labels."""
    pipeline = Pipeline.of(data)
    stored = None if pipeline.changes_targets else pipeline.stored()
    if stored is None:
        return output.target
    labels = stored.arrays[output.number]
    rows = np.arange(len(labels)) if stored.rows is None else stored.rows
    # Of very many labels, evenly spaced ones are read, as they may be stored on disk.
    every = max(1, len(rows) * max(labels[:1].size, 1) // MOST_LOOKED_AT)
    return labels[rows[::every]] if every > 1 or stored.rows is not None else labels


def _reshaped(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if (*given, 1) == wanted:
        return "one value for each sample is a column: y[:, None]"
    if given == (*wanted, 1):
        return "one class for each sample is a row of numbers: y[:, 0]"
    if not given:
        return "the last layer returns several numbers for each sample; reduce its outputs to one"
    return "the last layer and the targets must agree"


def _check_range(labels: np.ndarray, classes: int, what: str) -> None:
    if not labels.size:
        return
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < classes:
        return
    hint = "number the classes from 0, as cd.data.arrays(x, y) does"
    if low >= 0:
        hint = f"give the last layer {high + 1} outputs, or {hint}"
    raise DataError.build(
        f"targets for {what}",
        expected=f"classes from 0 to {classes - 1}, one for each output",
        got=f"{low} to {high}",
        hint=hint,
    )


def check_schema(model: Model, data: Pipeline) -> None:
    """Raise if the columns or classes of data differ from the model's schema.

    Only names can be compared: arrays have none, and are accepted unchecked.
    """
    if model.schema is None:
        return
    given = schema_of_inputs(model, data.schema)
    if given is not None:
        model.schema.check(given, type(model).__name__)
        _check_tokenizers(model, given)


def _check_tokenizers(model: Model, given: Schema) -> None:
    known = model.schema.text if model.schema is not None else None
    require(
        known is None or given.text is None or given.text == known,
        type(model).__name__,
        "texts with the numbers it was trained on",
        "ids of a different tokenizer",
        "read them with "
        "data.texts(..., schema=model.schema); or set model.schema = None to train for others",
        error=DataError,
    )


def learn_schema(model: Model, data: Pipeline) -> None:
    """Store the schema of the training data in the model."""
    given = schema_of_inputs(model, data.schema)
    if given is None:
        return
    known = model.schema or Schema()
    if model.schema is None and model.steps_done:
        # The trained outputs already have a scale, which must not change.
        target = None if given.target is None else replace(given.target, number=None)
        given = replace(given, target=target, series=None)
    # More classes may have come since, but none has another number.
    classes = max(known.classes, given.classes, key=len)
    knows = known.columns or known.target or known.series
    model.schema = replace(known if knows else given, classes=classes)


def schema_of_inputs(model: Model, schema: Schema | None) -> Schema | None:
    """Return the schema of data, without columns that differ from the model's inputs.

    A stage of a pipeline may have transformed them.
    """
    if schema is None or not schema.columns:
        return schema
    (shape, _), *_ = model.signature.inputs
    if shape == (len(schema.features),):
        return schema
    return replace(schema, columns=(), ignored=(), reasons=())


ROWS = 16
"""Number of samples digested if each must be read separately, which may take long."""
BYTES = 1 << 22
"""Number of bytes digested of samples stored in arrays."""


def data_digest(data: Pipeline | None) -> str:
    """Return a name for data, from samples that are evenly spaced; "" for none and for a stream,
    which cannot be read twice.

    >>> import numpy as np
    >>> from caldera.data import Pipeline
    >>> x = np.zeros((100, 3))
    >>> data_digest(Pipeline(x)) == data_digest(Pipeline(x + 1))
    False
    """
    if data is None or data.is_stream or not len(data):
        return ""
    first, again = (_digest(_rows(data)) for _ in range(2))
    # Samples that are made by chance, other ones each time, have no name.
    return first if first == again else "random"


def weights_digest(weights: SampleWeights | None) -> str:
    """Return a name for the weights of samples and classes."""
    if weights is None:
        return ""
    return _digest(each for each in (weights.by_sample, weights.by_class) if each is not None)


def _rows(data: Pipeline) -> Iterable[np.ndarray]:
    source, count = data.source, len(data)
    stored = data.stored()
    wanted = ROWS
    if stored is not None:
        wanted = max(ROWS, BYTES // max(sum(each[:1].nbytes for each in stored.arrays), 1))
    numbers = np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(np.int64))
    return source.raw_batch(numbers)  # type: ignore[union-attr]


def _digest(arrays: Iterable[np.ndarray]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for array in arrays:
        made.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype == object:
            # Samples that are still encoded.
            for each in array.flat:
                made.update(bytes(each))
        else:
            made.update(np.ascontiguousarray(array).view(np.uint8).data)
    return made.hexdigest()


@dataclass(frozen=True)
class TrainingData:
    """Data that suit a built model; `sample` is a batch with one sample, inputs and targets."""

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
        require(
            len(sample) > bool(model.objective.losses) and count,
            where,
            "samples with inputs and targets",
            f"{len(sample)} arrays of {count} samples",
            "pass (x, y)",
            error=DataError,
        )
        model.ensure_built(sample, inputs=pipeline.inputs, open_lengths=pipeline.is_ragged)
        if not pipeline.is_ragged:
            model.sign_for(sample)
        check_schema(model, pipeline)
        given = cls(pipeline, sample, len(model.signature.inputs), weights)
        require(
            by_class is None or given.targets <= 1,
            where,
            "one array of targets for class_weights",
            "several",
            "weigh the samples with sample_weights instead",
            error=DataError,
        )
        classes = _classes(model)
        if weights is not None and classes is not None:
            weights.check_classes(classes)
        if adopts:
            adopt_targets(model, sample)
        else:
            given.check(model)
        return given

    def centre(self, model: Model) -> np.ndarray:
        """Return the mean of some targets of the first loss; 0 for classes or unknown targets."""
        output = next(_outputs(model, self.sample), None)
        found = np.zeros(1) if output is None else _labels(self.pipeline, output)
        if found.dtype.kind != "f" or not found.size:
            return np.zeros(1)
        some = found[:: 1 + len(found) // MOST_AVERAGED].astype(np.float64)
        return np.nan_to_num(some.reshape(len(some), -1).mean(axis=0), posinf=0.0, neginf=0.0)

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

    def digests(self, held_out: Pipeline | None = None) -> dict[str, str]:
        """Return names for samples, weights and validation data, which ranks compare."""
        return {
            "data": data_digest(self.pipeline),
            "weights of samples": weights_digest(self.weights),
            "validation data": data_digest(held_out),
        }


def sample_count(data: Pipeline) -> str:
    """Return the number of samples in words."""
    return "a stream" if data.is_stream else f"{len(data)}"


def _classes(model: Model) -> int | None:
    """Return the number of classes of the main output, None if it has no classes."""
    task = model.objective.task
    shape = model.signature.outputs.get(next(iter(model.objective.losses), ""))
    if task is None or task.kind != MULTICLASS or shape is None:
        return None
    return (1, *shape)[task.axis]
