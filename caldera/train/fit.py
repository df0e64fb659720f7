"""`fit` and `evaluate`: from what a user passes to a run over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.config import settings
from caldera.data import Data, IterableData, Loader, Pipeline
from caldera.errors import ConfigError, DataError
from caldera.nn.task import MULTICLASS
from caldera.optim import LossScale
from caldera.train.batch_source import BatchSource, HostSource
from caldera.train.callbacks import INTERRUPT, WARNINGS, Callback, StopOnSignal
from caldera.train.data_adapters import Parts, refuse_channels_last
from caldera.train.data_checks import (
    adopt_targets,
    check_schema,
    check_targets,
    data_digest,
    learn_schema,
    warn_of_one_class,
    weights_digest,
)
from caldera.train.debug.nonfinite import StopAtNonFinite
from caldera.train.progress import Progress
from caldera.train.resident import resident
from caldera.train.run import Run, ValidationData, loader_for
from caldera.train.sample_weights import SampleWeights
from caldera.train.saving.checkpointer import Checkpointer
from caldera.train.saving.snapshot import reinitialise
from caldera.train.step import StepPlans, facts_of, trace_network
from caldera.train.strategy import RunSetup, SingleProcessStrategy, Strategy, default_strategy
from caldera.train.tracking.history import History
from caldera.train.tracking.summary import training_config

if TYPE_CHECKING:
    from caldera.train.model import Model


@dataclass(frozen=True)
class FitOptions:
    """What `Model.fit` was given beside the data."""

    epochs: int
    batch_size: int
    validation: Any = None
    shuffle: bool = True
    verbose: int | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint: Any = None
    resume: bool = False
    parallel: Strategy | None = None
    sample_weights: Any = None
    class_weights: Any = None


@dataclass(frozen=True)
class TrainingData:
    """Data that a model has been built for: `sample` is a batch of one, inputs and targets."""

    pipeline: Pipeline
    sample: tuple[np.ndarray, ...]
    weights: SampleWeights | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        data: Any,
        by_sample: Any = None,
        by_class: Any = None,
        where: str = "fit",
    ) -> TrainingData:
        """Look at data once, and build the model for it."""
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
        if by_class is not None and len(sample) - len(model.signature.inputs) > 1:
            raise DataError.build(
                where,
                expected="one array of targets for class_weights",
                got="several",
                hint="weigh the samples with sample_weights instead",
            )
        classes = _classes(model)
        if weights is not None and classes is not None:
            weights.check_classes(classes)
        return cls(pipeline, sample, weights)


def _classes(model: Model) -> int | None:
    """How many classes the main output tells apart, if it does."""
    name, loss = next(iter(model.objective.losses.items()))
    task, shape = loss.task(), model.signature.outputs.get(name)
    if task is None or task.kind != MULTICLASS or shape is None:
        return None
    return (1, *shape)[task.axis]


def make_steps(
    model: Model,
    data: TrainingData | Data | IterableData,
    strategy: Strategy | None = None,
    *,
    source: BatchSource | None = None,
) -> StepPlans:
    """The plans for training a model on data like this, built for its shapes."""
    found = data if isinstance(data, TrainingData) else TrainingData.of(model, data)
    weighted = found.weights is not None
    check_targets(model, found.pipeline, found.sample, weighted=weighted)
    return StepPlans(
        model,
        model.objective,
        model.optimizer,
        model.metrics,
        strategy or SingleProcessStrategy(),
        loss_scale=LossScale(device=model.device) if model.precision == "float16" else None,
        weighted=weighted,
        targets=len(found.sample) - len(model.signature.inputs),
        source=source or HostSource(open_lengths=model.open_lengths),
    )


def run_setup(model: Model, strategy: Strategy, batch_size: int | None = None) -> RunSetup:
    """What a strategy is told of a run."""
    return RunSetup(
        model,
        model.optimizer,
        model.device,
        batch_size or model.batch_size,
        model.precision,
        trace=partial(trace_network, model, several_ranks=strategy.is_distributed),
        is_new=not model.steps_done,
        reinitialise=partial(reinitialise, model),
    )


_usual_strategy = cache(default_strategy)


def fit(model: Model, data: Any, options: FitOptions) -> History:
    """Train; see `Model.fit`."""
    if options.resume and options.checkpoint is None:
        raise ConfigError.build(
            "fit",
            expected="checkpoint= with resume=True",
            got="no checkpoint folder",
            hint="say where the run was saved, as in fit(..., checkpoint='run/', resume=True)",
        )
    strategy = _usual_strategy() if options.parallel is None else _checked(options.parallel)
    # What is held out, the order of the samples and all random numbers follow from these.
    known = [model.seed, model.epochs_done, model.steps_done]
    seed, epochs_done, steps_done = strategy.communicator.bcast_object(known)
    parts = Parts.of(data, options.validation, options.sample_weights, seed)
    given = TrainingData.of(model, parts.train, parts.sample_weights, options.class_weights)
    adopt_targets(model, given.sample)
    held_out = parts.validation
    strategy.agree(_facts(model, given, held_out, options, strategy))
    model.seed, model.epochs_done, model.steps_done = (
        strategy.rank_seed(seed),
        epochs_done,
        steps_done,
    )
    strategy.begin(run_setup(model, strategy, options.batch_size))
    learn_schema(model, given.pipeline)
    if held_out is not None:
        check_schema(model, held_out)
    source = _source(model, given, strategy)
    facts = facts_of(
        model,
        strategy,
        source,
        weighted=given.weights is not None,
        targets=len(given.sample) - len(model.signature.inputs),
    )
    steps = model.kept_steps.take(facts, model)
    if steps is None:
        steps = make_steps(model, given, strategy, source=source)
    else:
        check_targets(model, given.pipeline, given.sample, weighted=given.weights is not None)
    if strategy.communicator.rank == 0:
        warn_of_one_class(model, given.pipeline, given.sample)
        parts.warn_of_test(model, options.callbacks)
    loader = _loader(model, given, options, strategy)
    saver = Checkpointer(options.checkpoint) if options.checkpoint is not None else None
    run = Run(
        model,
        steps,
        loader,
        epochs=options.epochs,
        callbacks=_callbacks(options, saver, strategy),
        validation=None if held_out is None else _validation(model, held_out, strategy),
        weights=given.weights,
    )
    if saver is not None and options.resume:
        saver.restore(run)
    history = run.go()
    history.selection = parts.selection(model, options.callbacks)
    model.epochs_done = loader.epoch
    model.steps_done = int(steps.random.numpy()[1])
    model.kept_steps.keep(facts, steps)
    return history


def _facts(
    model: Model,
    given: TrainingData,
    held_out: Pipeline | None,
    options: FitOptions,
    strategy: Strategy,
) -> dict[str, Any]:
    """What has to be the same on all ranks."""
    several = strategy.communicator.size > 1
    return {
        "samples": _length(given.pipeline),
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "shuffle": options.shuffle,
        "weights": given.weights is not None,
        "validation": _length(held_out),
        "checkpoint": options.checkpoint is not None,
        "resume": options.resume,
        "precision": model.precision,
        "device": model.device.kernels,
        # These put together what ranks have parts of.
        "checkpointers": sum(isinstance(each, Checkpointer) for each in options.callbacks),
        **(training_config(model) if several else {}),
        # Ranks take turns with samples by their numbers: as many others would do as well.
        **(_same_data(given, held_out) if several else {}),
    }


def _same_data(given: TrainingData, held_out: Pipeline | None = None) -> dict[str, str]:
    return {
        "data": data_digest(given.pipeline),
        "weights of samples": weights_digest(given.weights),
        "validation data": data_digest(held_out),
    }


def _length(data: Pipeline | None) -> str:
    """How many samples data have, in words."""
    if data is None:
        return "none"
    return "a stream" if data.is_stream else f"{len(data)}"


def _loader(model: Model, given: TrainingData, options: FitOptions, strategy: Strategy) -> Loader:
    loader = loader_for(
        strategy, given.pipeline, options.batch_size, shuffle=options.shuffle, seed=model.seed
    )
    loader.restore(loader.state() | {"epoch": model.epochs_done})
    return loader


def _callbacks(
    options: FitOptions, saver: Checkpointer | None, strategy: Strategy
) -> list[Callback]:
    """Those of the user, and those that every run has."""
    # Only a run that can be saved may take a request to end as one to save first.
    signals = INTERRUPT if saver is None else (*INTERRUPT, *WARNINGS)
    found: list[Callback] = [StopOnSignal(signals), StopAtNonFinite(), *options.callbacks]
    if saver is not None:
        found.append(saver)
    # One rank speaks for all.
    return [*found, Progress(options.verbose if strategy.communicator.rank == 0 else 0)]


def _source(model: Model, given: TrainingData, strategy: Strategy) -> BatchSource:
    """Data that lie on the device; else batches that are fed, which it may take part in making."""
    if model.open_lengths:
        return HostSource(open_lengths=True)
    there = resident(model, given.pipeline, given.weights)
    if there is not None:
        return there
    if given.weights is not None and given.weights.by_class is not None:
        # They go by the labels of a batch that is finished.
        return HostSource()
    # Ranks make their plans together, so none of them may change its own.
    may_change = not (strategy.is_distributed or settings.deterministic)
    inputs = len(model.signature.inputs)
    return HostSource.to(model.device, given.pipeline, inputs, may_change=may_change)


def _validation(model: Model, data: Pipeline, strategy: Strategy) -> ValidationData:
    """With plans of its own over several ranks, or on data that lie on the device; else those
    serve that the model keeps."""
    there = None if model.open_lengths else resident(model, data)
    evaluating = strategy.evaluating()
    if there is None and not evaluating.is_distributed:
        return ValidationData(data)
    return ValidationData(data, make_steps(model, data, evaluating, source=there))


def evaluate(
    model: Model, data: Any, batch_size: int, parallel: Strategy | None = None
) -> dict[str, Any]:
    """The loss and metrics of a model on data; see `Model.evaluate`."""
    given = TrainingData.of(model, data, where="evaluate")
    if parallel is None:
        # The plans are there for the next time, but these are other data.
        check_targets(model, given.pipeline, given.sample, weighted=False)
        steps = model.evaluation_steps(given)
    else:
        strategy = _checked(parallel)
        if strategy.communicator.size > 1:
            facts = {"samples": _length(given.pipeline), "batch_size": batch_size}
            strategy.agree({**facts, **_same_data(given)})
        steps = make_steps(model, given, strategy.evaluating())
    return steps.evaluated(loader_for(steps.strategy, given.pipeline, batch_size, shuffle=False))


def _checked(parallel: Strategy) -> Strategy:
    if not isinstance(parallel, Strategy):
        raise ConfigError.build(
            "parallel",
            expected="a strategy",
            got=repr(parallel),
            hint="make one of caldera.parallel, as in parallel=parallel.DataParallel()",
        )
    return parallel
