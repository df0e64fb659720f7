"""From options to a model with its optimizer, ready to be trained."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from caldera import optim
from caldera.base.arguments import require
from caldera.cli.options import CONSTANT, names_of
from caldera.cli.zoo import ZOO, make_layers
from caldera.data import Data, Dataset
from caldera.data.decisions import least_rows
from caldera.errors import ConfigError
from caldera.io.csv_files import as_float
from caldera.nn import BatchNorm, ColumnEmbedding, Rescale
from caldera.nn.losses import Loss, losses
from caldera.optim import Optimizer, epoch_rules, schedules
from caldera.train.callbacks import Callback, EarlyStopping, KeepBest, Target, TimeLimit
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork
from caldera.train.tables.intervals import with_interval
from caldera.train.tables.members import MOST_ONE_HOT
from caldera.train.tables.training import TableRun
from caldera.train.tracking.evaluation import best_threshold
from caldera.train.tracking.history import History
from caldera.train.tracking.leaderboard import meaning_of, rows_of

_RATE_ARGUMENTS = ("initial", "peak", "then")
"""Argument names under which schedules receive the learning rate."""
_WHOLE_RUN = ("cosine", "one_cycle")
"""Schedules that cover the whole run by default."""
_MAIN = "main"
_CLIPS = {"clip_norm": optim.ClipNorm, "clip_value": optim.ClipValue}
VALIDATION_PART = 0.2
"""Default fraction of the samples held out when the options require model selection."""
BEST_F1 = "best-f1"
INTERVAL_PART = 0.2
"""Fraction of a time limit in which intervals are learnt."""


def resolved(options: Mapping[str, Any], found: Dataset) -> dict[str, Any]:
    """Return the options completed from the data: loss, scale, vocabulary size."""
    reads_words = ZOO[options["model"]].reads_words
    is_table = len(found.shape) == 1 and not reads_words
    usual: dict[str, Any] = {
        "loss": "cross_entropy" if found.classes else "mean_squared",
        # The columns of a table that was read here are on one scale already.
        "normalise": is_table and (found.schema is None or not found.schema.columns),
    }
    if reads_words:
        text = None if found.schema is None else found.schema.text
        usual["vocabulary"] = _vocabulary(found) if text is None else text.size
    if choosing(options):
        usual["validation_part"] = VALIDATION_PART
    return usual | dict(options)


def choosing(options: Mapping[str, Any]) -> list[str]:
    """Return the options by which results on validation data decide about the model.

    >>> choosing({"keep_best": True, "schedule": "reduce_on_plateau", "epochs": 5})
    ['keep_best', 'schedule']
    """
    found = [name for name in ("patience", "keep_best", "target_accuracy") if options.get(name)]
    if options.get("threshold") == BEST_F1:
        found.append("threshold")
    if "interval" in options:
        found.append("interval")
    monitor = options.get("schedule_monitor", "val_loss")
    if options.get("schedule") == "reduce_on_plateau" and monitor.startswith("val_"):
        found.append("schedule")
    return found


def held_out(found: Dataset, options: Mapping[str, Any]) -> Dataset:
    """Return the data set with a validation part, if the options require one.

    Without one, options that select a model are an error: the test data would make the selection.
    """
    part = options.get("validation_part", 0.0)
    if part:
        return found.hold_out(part, options["seed"])
    if choosing(options):
        raise ConfigError.build(
            "validation_part",
            expected=f"above 0 with {', '.join(choosing(options))}",
            got="0",
            hint="a choice made with the test data cannot be tested on them: hold out a part of "
            f"the training data, as in --validation-part {VALIDATION_PART}",
        )
    return found


def make_class_weights(options: Mapping[str, Any]) -> str | dict[str, float] | None:
    """Return the class weights in the form that `fit` accepts.

    >>> make_class_weights({"class_weights": ["faulty=10"]})
    {'faulty': 10.0}
    """
    given = options.get("class_weights")
    if given is None or given == ["balanced"]:
        return None if given is None else "balanced"
    found = {}
    for each in given:
        name, _, weight = each.rpartition("=")
        if not name or as_float(weight) is None:
            raise ConfigError.build(
                "class_weights",
                expected="balanced, or CLASS=NUMBER, such as faulty=10",
                got=repr(each),
            )
        found[name] = float(weight)
    return found


def set_threshold(
    options: Mapping[str, Any],
    model: Model,
    found: Dataset,
    history: History,
    table: TableRun | None = None,
) -> None:
    """Set the probability from which the model predicts the rarer of two classes, if it is given.

    It is chosen on predictions out of fold or on the held-out part. The history records the choice.
    """
    given = options.get("threshold")
    if given is None:
        return
    number = as_float(given)
    valid = given == BEST_F1 or (number is not None and 0 < number < 1)
    require(valid, "--threshold", f"{BEST_F1}, or a probability between 0 and 1", repr(given))
    if number is None and table is not None and found.classes == 2:
        rarer = int(np.bincount(table.targets, minlength=2).argmin())
        number = best_threshold(table.predictions[:, rarer], table.targets == rarer).probability
    samples = found.train if found.validation is None else found.validation
    model.choose_threshold(samples, number)
    if given == BEST_F1 and history.selection is not None:
        history.selection = replace(history.selection, by=(*history.selection.by, "F1"))


def check_interval(options: Mapping[str, Any], found: Dataset) -> None:
    """Raise an error if intervals are requested that the data set has no values for."""
    coverage, schema = options.get("interval"), found.schema
    if coverage is None:
        return
    inside = "a probability between 0 and 1"
    require(0 < coverage < 1, "--interval", inside, coverage, "write 0.9 for 90%")
    is_table = schema is not None and schema.target is not None and schema.series is None
    is_value = is_table and not found.classes
    got = f"classes in {found.name}" if found.classes else found.name
    require(is_value, "--interval", "a table with one value to predict", got)


def check_interval_rows(options: Mapping[str, Any], found: Dataset) -> None:
    """Raise an error if there are too few rows for the coverage of the intervals."""
    coverage = options.get("interval")
    if coverage is None:
        return
    is_held_out = found.validation is not None
    rows = len(found.train if found.validation is None else found.validation)
    least = least_rows(coverage)
    expected = f"at least {least:,} rows to measure errors on, for a coverage of {coverage:g}"
    hint = "request a smaller coverage" + (" or a larger --validation-part" if is_held_out else "")
    require(rows >= least, "--interval", expected, f"{rows:,}", hint)


def with_ends(
    options: Mapping[str, Any],
    model: NeuralNetwork,
    found: Dataset,
    table: TableRun | None = None,
    verbose: int | None = 0,
) -> NeuralNetwork:
    """Return the model, with intervals if they are requested.

    Their ends are learnt from errors out of fold or on the held-out part.
    """
    coverage = options.get("interval")
    if coverage is None:
        return model
    if table is None:
        assert found.validation is not None  # held out for this option
        x, y = rows_of(found.validation, 0)
        errors = y - meaning_of(model, x)
    else:
        x = found.train.batch(table.rows)[0]
        errors = table.targets - table.predictions[:, 0]
    seconds = INTERVAL_PART * options["time"] if "time" in options else None
    seed = options["seed"]
    return with_interval(model, x, errors, coverage, seed=seed, seconds=seconds, verbose=verbose)


def make_model(options: Mapping[str, Any], found: Dataset) -> NeuralNetwork:
    """Return the network that the options name, for samples like these."""
    options = resolved(options, found)
    steps = total_steps(options, len(found.train))
    spans = found.schema.category_spans if found.schema is not None else []
    series = found.train if "past" in options else None
    return make_network(options, found.shape, found.outputs, steps, spans, series)


def make_network(
    options: Mapping[str, Any],
    input_shape: Sequence[int] | None,
    outputs: int | None,
    steps: int,
    category_spans: Sequence[tuple[int, int]] = (),
    series: Data | None = None,
) -> NeuralNetwork:
    """Build the network that the options name.

    The sample shape is `input_shape`, or the published one. With a `series` the network starts with
    a `Rescale` layer fitted to it.
    """
    network = ZOO[options["model"]]
    own = _own(options, "model", "normalise", "embedding")
    layers = make_layers(options["model"], own, input_shape, outputs)
    embedding = options.get("embedding")
    if embedding and not category_spans:
        raise ConfigError.build(
            "embedding", expected="a table with columns of categories", got="none"
        )
    wide = [(start, stop) for start, stop in category_spans if stop - start > MOST_ONE_HOT]
    if embedding or wide:
        spans = category_spans if embedding else wide
        layers.insert(1, ColumnEmbedding(spans, embedding, name="embedding"))
    if options.get("normalise"):
        layers.insert(1, BatchNorm(name="normalise"))
    if series is not None:
        layers.insert(1, Rescale.fit(series, name="rescale"))
    loss: Any = make_loss(options)
    weights: Mapping[str, float] = {}
    if network.heads and options.get("auxiliary", True):
        weights = network.heads
        loss = dict.fromkeys((_MAIN, *weights), loss)
    return NeuralNetwork(
        layers,
        loss=loss,
        loss_weights=weights,
        optimizer=make_optimizer(options, steps),
        batch_size=make_batch_size(options),
        epochs=options["epochs"],
        metrics=options.get("metrics"),
        dtype=options["dtype"],
        precision=options.get("precision"),
        seed=options["seed"],
        device=options.get("device"),
    )


def _own(options: Mapping[str, Any], group: str, *special: str) -> dict[str, Any]:
    """Return the options of a group that were given, but for the first, which has its name."""
    own = (name for name in names_of([group]) if name not in (group, *special))
    return {name: options[name] for name in own if name in options}


def make_batch_size(options: Mapping[str, Any]) -> int | optim.GrowingBatch:
    """Return the batch size that the options ask for, or how it grows.

    >>> make_batch_size({"batch_size": 32, "batch_growth": 2.0}).value
    32
    """
    prefix = "batch_growth"
    own = {key: value for key, value in options.items() if key.startswith(f"{prefix}_")}
    if prefix in options:
        arguments = {key.removeprefix(f"{prefix}_"): value for key, value in own.items()}
        return optim.GrowingBatch(options["batch_size"], factor=options[prefix], **arguments)
    if own:
        raise ConfigError.build(next(iter(own)), expected="batch_growth with it", got="none")
    return int(options["batch_size"])


def total_steps(options: Mapping[str, Any], samples: int) -> int:
    """Return the number of batches in a whole run.

    >>> total_steps({"batch_size": 32, "epochs": 10}, 100)
    40
    """
    size = make_batch_size(options)
    if isinstance(size, int):
        return math.ceil(samples / size) * options["epochs"]
    steps = 0
    for _ in range(options["epochs"]):
        steps += math.ceil(samples / size.value)
        size.after_epoch({})
    return steps


def make_loss(options: Mapping[str, Any]) -> Loss:
    """Return the loss that the options name.

    >>> make_loss({"loss": "cross_entropy", "label_smoothing": 0.1}).label_smoothing
    0.1
    """
    arguments = {key: options[key] for key in ("label_smoothing",) if key in options}
    return losses.make(options.get("loss", "cross_entropy"), **arguments)


def make_optimizer(options: Mapping[str, Any], steps: int) -> Optimizer:
    """Build the optimizer that the options name, for a run of `steps` steps.

    >>> make_optimizer({"optimizer": "sgd", "momentum": 0.9, "clip_norm": 1.0}, 100).momentum
    0.9
    >>> make_optimizer({"optimizer": "sgd", "beta1": 0.9}, 100)
    Traceback (most recent call last):
    caldera.errors.ConfigError: optimizer sgd: expected an argument it takes, got 'beta1'; ...
    """
    name = options["optimizer"]
    arguments = _own(options, "optimizer", "decay", *_CLIPS)
    if "decay" in options:
        if "weight_decay" not in options:
            raise ConfigError.build("decay", expected="weight_decay, its strength", got="none")
        arguments["decay"] = optim.decays.make(
            options["decay"], strength=arguments.pop("weight_decay")
        )
    clips = [make(options[key]) for key, make in _CLIPS.items() if key in options]
    if len(clips) > 1:
        raise ConfigError.build("clip", expected="clip_norm or clip_value", got="both")
    if clips:
        arguments["clip"] = clips[0]
    if options.get("schedule", CONSTANT) != CONSTANT:
        rate = options.get("learning_rate", optim.get(name).arguments()["learning_rate"])
        updates = max(steps // options.get("accumulate", 1), 1)
        arguments["learning_rate"] = make_schedule(options, rate, updates)
    else:
        for key in options:
            if key.startswith("schedule_"):
                raise ConfigError.build(key, expected="a schedule that it belongs to", got="none")
    return optim.get(name, **arguments)


def make_schedule(
    options: Mapping[str, Any], rate: float, steps: int
) -> optim.Schedule | optim.EpochRule:
    """Build the schedule that the options name, for this learning rate and number of steps.

    >>> make_schedule({"schedule": "cosine", "schedule_warm_up": 10}, 0.1, 500)
    Cosine(peak=0.1, steps=500, warm_up=10, final=0.0)
    >>> make_schedule({"schedule": "exponential"}, 0.1, 500)
    Traceback (most recent call last):
    caldera.errors.ConfigError: schedule exponential: expected schedule_factor, got none
    """
    name = options["schedule"]
    family: Any = schedules if name in schedules else epoch_rules
    known = dict(list(inspect.signature(family[name].__init__).parameters.items())[1:])
    arguments: dict[str, Any] = {next(key for key in _RATE_ARGUMENTS if key in known): rate}
    if name in _WHOLE_RUN:
        arguments["steps"] = steps
    prefix = "schedule_"
    arguments |= {
        key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)
    }
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise ConfigError.build(f"schedule {name}", expected=f"{prefix}{key}", got="none")
    return family.make(name, **arguments)


def make_callbacks(options: Mapping[str, Any]) -> list[Callback]:
    """Return the callbacks that end a run early or keep the best epoch.

    >>> [type(each).__name__ for each in make_callbacks({"patience": 3, "time_limit": 60.0})]
    ['EarlyStopping', 'TimeLimit']
    """
    makers: Mapping[str, Callable[[Any], Callback]] = {
        "patience": lambda epochs: EarlyStopping("val_loss", epochs),
        "keep_best": lambda _: KeepBest("val_loss"),
        "target_accuracy": lambda level: Target("val_accuracy", level),
        "time_limit": TimeLimit,
        "time": TimeLimit,
    }
    given = [name for name in makers if name in options and options[name] is not False]
    return [makers[name](options[name]) for name in given]


def _vocabulary(found: Dataset) -> int:
    """Return the vocabulary size, derived from the largest word index."""
    largest = [int(part.x.max()) for part in (found.train, found.test) if len(part)]
    return max(largest, default=0) + 1
