"""Data arguments of `fit`, `evaluate` and `predict`, and the validation split.

Inputs follow the order of a network's inputs: arrays, dicts of arrays by name, texts, or
sequences of different lengths. Validation uses separate data, or a part held out from the
training data.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import require
from caldera.core.tensor.dtype import real_array_of, refuse_masked
from caldera.data import Data, Dataset, IterableData, Pipeline, RaggedData
from caldera.data.datasets.splits import split_rows
from caldera.data.schema import listed
from caldera.data.sources.indexed_data import TARGETS, is_data_loader, is_indexed
from caldera.data.tables.reading import check_one_part, scalar_columns
from caldera.errors import ConfigError, DataError
from caldera.nn import Dense, Input
from caldera.nn.convolution import Convolution
from caldera.nn.losses import REGRESSION
from caldera.train.arguments import arrays as checked_arrays
from caldera.train.callbacks import Callback
from caldera.train.predictors import filled_up
from caldera.train.step_graph import main_output
from caldera.train.tracking.history import Selection

if TYPE_CHECKING:
    from caldera.train.model import Model


_CHANNELS = (1, 3, 4)
_FAR = 100.0
"""Mean size of a column of inputs from which networks train badly."""
_MOST_MEASURED = 100_000
"""Approximate number of values that this size is measured on."""


def joined(model: Model, data: Any, targets: Any, where: str) -> Any:
    """Return inputs and targets as one pair (x, y); data sets with targets stay unchanged."""
    check_one_part(data, where)
    if isinstance(data, Mapping) and targets is None and model.objective.losses:
        data, targets = _apart(data)
    if isinstance(data, Mapping):
        data = _by_name(data, model.input_names(), "inputs", where)
    if isinstance(targets, Mapping):
        targets = _by_name(targets, list(model.objective.losses), "targets", where)
    if targets is None and isinstance(data, tuple) and len(data) == 2:
        return (data[0], _column(model, data[1]))
    if targets is None:
        _refuse_table(model, data, where)
        return data
    has_targets = isinstance(data, Data | IterableData | Dataset) or is_data_loader(data)
    require(
        not has_targets and (not is_indexed(data) or isinstance(data, list | tuple)),
        where,
        "data that have their targets, or arrays of inputs and of targets",
        f"{type(data).__name__} and separate targets",
        "pass only the data; validation= accepts separate validation data",
        error=DataError,
    )
    inputs = data if isinstance(data, tuple) else (data,)
    return (*inputs, *(targets if isinstance(targets, tuple) else (_column(model, targets),)))


def _refuse_table(model: Model, data: Any, where: str) -> None:
    """Raise an error for a table whose columns include the target."""
    columns = scalar_columns(data) if model.objective.losses else []
    if columns:
        raise DataError.build(
            where,
            expected="samples with inputs and targets",
            got=f"a table with the columns {listed(columns)}",
            hint=f"fit cd.data.table(table, {columns[-1]!r}).train, which reads numbers, "
            "categories and dates",
        )


def _column(model: Model, targets: Any) -> Any:
    """Return scalar targets as a column if the network has one output number per sample."""
    losses = list(model.objective.losses.values())
    task = model.objective.task
    is_row = isinstance(targets, np.ndarray | list) or hasattr(targets, "to_numpy")
    if not is_row or len(losses) > 1 or task is None or task.kind != REGRESSION:
        return targets
    refuse_masked(targets, "targets")
    try:
        (output, *_) = model.signature.outputs.values()
        found = np.asarray(targets)
    except (ConfigError, ValueError):
        # A network without shapes yet, or rows of different lengths: later checks report these.
        return targets
    is_column = output == (1,) and found.ndim == 1 and found.dtype.kind in "iuf"
    return found[:, None] if is_column else targets


def joined_validation(model: Model, given: Any) -> Any:
    """Return the validation data in the form of the training data, or the part to hold out."""
    is_pair = isinstance(given, tuple) and len(given) == 2
    if is_pair and isinstance(given[0], tuple | Mapping):
        return joined(model, given[0], given[1], "fit")
    return joined(model, given, None, "fit") if is_pair or isinstance(given, Mapping) else given


def own_batch_size(data: Any) -> int | None:
    """Return the batch size of data that come in batches, such as PyTorch's `DataLoader`."""
    size = data.batch_size if is_data_loader(data) else None
    return size if isinstance(size, int) else None


def _apart(data: Mapping[Any, Any]) -> tuple[Any, Any]:
    """Split a dict into inputs and the target, which is found by its name."""
    names = [name for name in TARGETS if name in data]
    if len(names) != 1:
        return data, None
    return {name: each for name, each in data.items() if name != names[0]}, data[names[0]]


def _by_name(given: Mapping[Any, Any], names: Sequence[str], what: str, where: str) -> Any:
    """Return the values of a dict in the order of `names`; a single one may have any name."""
    if len(given) == 1 and len(names) <= 1:
        return next(iter(given.values()))
    if names and set(given) == set(names):
        return tuple(given[name] for name in names)
    expected = (
        f"{what} called {', '.join(names)}" if names else "one input, as a list of layers has"
    )
    raise DataError.build(
        where,
        expected=expected,
        got=", ".join(map(str, given)) or "an empty dict",
        hint="name them as forward does" if what == "inputs" else "name them as the losses are",
    )


# --- images


def refuse_channels_last(model: Model, data: Pipeline) -> None:
    """Check that images have the layout (channels, height, width).

    Other layouts raise if the network's input shape shows the mismatch, and warn if they only look
    like channels-last images.
    """
    if data.is_ragged or data.is_stream:
        return
    shape = data.shape
    if len(shape) != 3 or shape[-1] not in _CHANNELS or shape[0] in _CHANNELS:
        return
    specs = model.input_specs()
    if specs is not None and specs[0][0] == (shape[2], shape[0], shape[1]):
        raise DataError.build(
            type(model).__name__,
            expected=f"channels, height and width, {specs[0][0]}",
            got=f"{shape}, with the channels last",
            hint="move them with np.moveaxis(x, -1, 1), or begin the network with "
            f"nn.Input({shape}, layout='NHWC'), which takes them as they are",
        )
    layers = list(model.walk())
    told = any(getattr(layer, "layout", "NCHW") == "NHWC" for layer in layers)
    if not told and any(isinstance(layer, Convolution) for layer in layers):
        warnings.warn(
            f"fit: samples of shape {shape} look like channels-last images, but the first axis "
            f"is the channel axis, here with {shape[0]} channels. Start the network with "
            f"nn.Input({shape}, layout='NHWC'), or move them with np.moveaxis(x, -1, 1)",
            stacklevel=5,
        )


# --- what is predicted


class Predicted(np.ndarray):
    """Predictions for a table: an array with `notes` on unusual input values.

    The notes list values that had to be filled in and values far outside the training data. Arrays
    computed from this one have no notes.

    >>> found = Predicted.of(np.zeros((2, 1)), ["column 'age': 1 missing"])
    >>> found.notes, type(found + 1).__name__
    (("column 'age': 1 missing",), 'ndarray')
    """

    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, outputs: np.ndarray, notes: Sequence[str]) -> Predicted:
        """Return an array with notes."""
        found = outputs.view(cls)
        found.notes = tuple(notes)
        return found

    def __array_finalize__(self, source: Any) -> None:
        self.notes = getattr(source, "notes", ())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def prediction_arrays(model: Model, inputs: tuple[Any, ...]) -> list[np.ndarray]:
    """Return inputs to predict as arrays."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        given = _by_name(inputs[0], model.input_names(), "inputs", "predict")
        inputs = given if isinstance(given, tuple) else (given,)
    if len(inputs) == 1 and isinstance(inputs[0], tuple):
        is_built = model._signature is not None
        wanted = len(model.signature.inputs if is_built else model.input_names())
        inputs = inputs[0] if 1 < wanted == len(inputs[0]) else inputs
    schema = model.schema
    if schema is not None and schema.text is not None and _are_texts(inputs[0]):
        inputs = (schema.text.transform(inputs[0]), *inputs[1:])
    arrays = checked_arrays(inputs)
    if model.open_lengths and len(arrays) == 1 and model.takes_mask:
        # The sequences of an array all have one length.
        arrays.append(np.ones(arrays[0].shape[:2], bool))
    return arrays


def _are_texts(given: Any) -> bool:
    return isinstance(given, str) or (
        isinstance(given, Sequence | np.ndarray)
        and len(given) > 0
        and all(isinstance(each, str) for each in given)
    )


def as_ragged(model: Model, inputs: tuple[Any, ...]) -> RaggedData | list[np.ndarray] | None:
    """Return samples of different sizes, for a network that takes those; None for all else."""
    if not model.open_axes or len(inputs) != 1 or not isinstance(inputs[0], list):
        return None
    refuse_masked(inputs[0], "predict")
    try:
        given = [np.asarray(each) for each in inputs[0]]
    except ValueError:
        # The conversion to an array reports the error later.
        return None
    if len({each.shape for each in given}) < 2:
        return None
    # Padding that no mask shows would count.
    is_masked = any(getattr(layer, "mask_zero", False) for layer in model.walk())
    if not model.open_lengths or not (is_masked or model.takes_mask):
        return given
    # Rounding lengths up keeps the number of plans small for arbitrary lengths.
    buckets = sorted({filled_up(len(each)) for each in given if each.ndim})
    return RaggedData(given, buckets=buckets, mask=model.takes_mask)


def predict_ragged(
    model: Model, data: RaggedData | list[np.ndarray], batch_size: int | None
) -> np.ndarray:
    """Predict samples of different sizes; outputs of different sizes become an array of arrays.

    Sequences are padded if a mask marks the real steps; other samples are computed together with
    samples of the same size.
    """
    found: list[Any] = [None] * len(data)
    if isinstance(data, list):
        for shape in dict.fromkeys(each.shape for each in data):
            rows = np.array([row for row, each in enumerate(data) if each.shape == shape])
            outputs = model.predict(np.stack([data[row] for row in rows]), batch_size=batch_size)
            for row, output in zip(rows, outputs, strict=True):
                found[row] = output
        return _joined(found)
    lengths, per_step = data.lengths, _gives_steps(model)
    bucket = np.searchsorted(data.buckets, lengths)
    for number in np.unique(bucket):
        rows = np.flatnonzero(bucket == number)
        outputs = model.predict(*data.batch(rows), batch_size=batch_size)
        for row, output in zip(rows, outputs, strict=True):
            found[row] = output[: lengths[row]] if per_step else output
    return _joined(found)


def _gives_steps(model: Model) -> bool:
    """Return True if the main output has a value for each step: its size follows the length."""

    def size(length: int) -> tuple[int, ...]:
        specs = [((length, *shape[1:]), dtype) for shape, dtype in model.signature.inputs]
        _, outputs, _ = model.expressions_for(specs, model.samples_traced)
        return main_output(outputs, model.objective)[1].shape[1:2]

    length = model.signature.inputs[0][0][0]
    return size(length) != size(length - 1 or 2)


def _joined(found: list[Any]) -> np.ndarray:
    if len({each.shape for each in found}) == 1:
        return np.stack(found)
    whole = np.empty(len(found), object)
    whole[:] = found
    return whole


@dataclass(frozen=True)
class Parts:
    """Samples to train with, with their weights, and samples to validate with."""

    train: Any
    sample_weights: Any
    validation: Pipeline | None
    part: float | None = None
    """Fraction of the training data reserved for validation."""
    given: Any = None
    """Validation data passed by the user."""

    @classmethod
    def of(cls, data: Any, validation: Any, sample_weights: Any, seed: int) -> Parts:
        """Split the arguments of `fit`. The same seed holds out the same samples."""
        if validation is None:
            return cls(data, sample_weights, None)
        if not isinstance(validation, int | float):
            return cls(data, sample_weights, Pipeline.of(validation), given=validation)
        pipeline = Pipeline.of(data)
        _check(pipeline, validation)
        train, apart = split_rows(pipeline, validation, seed)
        require(
            len(train) and len(apart),
            "fit",
            f"enough samples to hold out a part of {validation:g}",
            len(pipeline),
            error=DataError,
        )
        if sample_weights is not None:
            weights = real_array_of(sample_weights, "fit sample_weights")
            require(
                weights.shape == (len(pipeline),),
                "fit",
                f"one weight for each of {len(pipeline)} samples",
                weights.shape,
                error=DataError,
            )
            sample_weights = weights[train]
        held = pipeline.subset(apart)
        return cls(pipeline.subset(train), sample_weights, held, part=float(validation))

    def selection(self, model: Model, callbacks: Sequence[Callback]) -> Selection | None:
        """Describe the choices made by validation data; None without validation."""
        if self.validation is None:
            return None
        known = ("loss", "val_loss")
        rules = [*model.optimizer.epoch_rules, *model.between_epochs]
        columns = [each.decides_by for each in callbacks]
        columns += [rule.decides_by(known) for rule in rules]
        by = tuple(dict.fromkeys(name for name in columns if name.startswith("val_")))
        samples = None if self.validation.is_stream else len(self.validation)
        return Selection(by, samples, self.part, self.validation.is_test, self.given)

    def warn_of_test(self, model: Model, callbacks: Sequence[Callback]) -> None:
        """Warn if test samples are used for a choice."""
        found = self.selection(model, callbacks)
        if found is not None and found.is_test and found.by:
            warnings.warn(
                f"fit: {', '.join(found.by)} on the test samples of a data set chooses the model, "
                "so that results on them will be too good; hold out a part of the training data "
                "with fit(..., validation=0.2)",
                stacklevel=4,
            )


def _check(data: Pipeline, part: float) -> None:
    require(
        not isinstance(part, bool) and 0 < part < 1,
        "fit",
        "validation data, or a part of the data between 0 and 1",
        repr(part),
    )
    require(
        not data.is_stream,
        "fit",
        "indexable samples, to hold out a part",
        "a stream",
        "pass other data as validation",
        error=DataError,
    )
    changed = [stage.name for stage in data.own_stages if stage.is_random]
    require(
        not changed,
        "fit",
        "samples to hold out that are not changed at random",
        f"a pipeline with {', '.join(changed)}",
        "hold them out first: parts = dataset.hold_out(0.2), then "
        "fit(data.Pipeline(parts.train, stages), validation=parts.validation)",
    )


def warn_of_raw_units(model: Model, data: Pipeline) -> None:
    """Warn if rows in raw units are the input of a network whose first layer is dense."""
    network, stored = model.sequence(), None if len(data.stages) else data.stored()
    if network is None or stored is None or model.epochs_done:
        return
    x = stored.arrays[0]
    first = next((each for each in network.layers if not isinstance(each, Input)), None)
    if x.ndim != 2 or x.dtype.kind != "f" or not x.size or not isinstance(first, Dense):
        return
    some = x[:: max(1, len(x) * x.shape[1] // _MOST_MEASURED)]
    size = np.sqrt(np.square(some, dtype=np.float64).mean(axis=0))
    place = int(size.argmax())
    if size[place] > _FAR:
        warnings.warn(
            f"fit: column {place} of the inputs has the mean size {size[place]:.3g}; arrays are "
            "used as they are. Start the network with nn.Rescale.fit(x) or nn.BatchNorm(), or "
            "read tables with cd.data.table, which scales columns",
            stacklevel=4,
        )
