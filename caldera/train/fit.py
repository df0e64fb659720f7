"""`fit` and `evaluate`: build a run from the user's arguments and execute it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from caldera.base.arguments import require, shown
from caldera.base.config import settings
from caldera.comm.supervision import REQUEUE, REQUEUED
from caldera.data import Data, IterableData, Pipeline
from caldera.optim import LossScale
from caldera.train.batch_source import BatchSource, HostSource
from caldera.train.callbacks import INTERRUPT, WARNINGS, Callback, StopOnSignal
from caldera.train.data_adapters import Parts, warn_of_raw_units
from caldera.train.debug.nonfinite import StopAtNonFinite
from caldera.train.progress import Progress
from caldera.train.resident import resident
from caldera.train.run import Run, ValidationData, loader_for
from caldera.train.saving.checkpointer import Checkpointer
from caldera.train.saving.snapshot import reinitialise
from caldera.train.step import Facts, StepPlans, facts_of, trace_network
from caldera.train.strategy import RunSetup, SingleProcessStrategy, Strategy, default_strategy
from caldera.train.tracking.history import History
from caldera.train.tracking.summary import training_config
from caldera.train.training_data import (
    TrainingData,
    learn_schema,
    sample_count,
    warn_of_one_class,
)

if TYPE_CHECKING:
    from caldera.train.model import Model


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `Model.fit` other than the data."""

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


def make_steps(
    model: Model,
    data: TrainingData | Data | IterableData,
    strategy: Strategy | None = None,
    *,
    source: BatchSource | None = None,
) -> StepPlans:
    """Return the plans that train a model on data of this form."""
    given = TrainingData.of(model, data)
    steps = StepPlans(
        model,
        model.objective,
        model.optimizer,
        model.metrics,
        strategy or SingleProcessStrategy(),
        loss_scale=LossScale(device=model.device) if model.precision == "float16" else None,
        weighted=given.is_weighted,
        targets=given.targets,
        source=source or HostSource(open_sizes=bool(model.open_axes)),
    )
    return steps.centre_on(given)


def run_setup(model: Model, strategy: Strategy, batch_size: int | None = None) -> RunSetup:
    """Return the description of a run for a strategy."""
    return RunSetup(
        model,
        model.optimizer,
        model.device,
        batch_size or model.batch_size,
        model.precision,
        trace=partial(trace_network, model, several_ranks=strategy.is_distributed),
        is_new=not model.steps_done,
        reinitialise=partial(reinitialise, model),
        owner=model.token,
    )


_usual_strategy = cache(default_strategy)
_WARNED = frozenset(f"signal {number.name}" for number in WARNINGS)


def fit(model: Model, data: Any, options: FitOptions) -> History:
    """Train; see `Model.fit`."""
    strategy, state = _agree_on_state(model, options)
    parts = Parts.of(data, options.validation, options.sample_weights, state[0])
    given = TrainingData.of(
        model, parts.train, parts.sample_weights, options.class_weights, adopts=True
    )
    held_out = _begin(model, strategy, state, parts, given, options)
    if strategy.communicator.rank == 0:
        warn_of_one_class(model, given.pipeline, given.sample)
        warn_of_raw_units(model, given.pipeline)
        parts.warn_of_test(model, options.callbacks)
    facts, steps = _steps(model, strategy, given)
    run, saver = _run(model, strategy, steps, given, held_out, options)
    if saver is not None and options.resume:
        saver.restore(run)
    history = run.go()
    history.selection = parts.selection(model, options.callbacks)
    model.epochs_done = run.loader.epoch
    model.steps_done = int(steps.random.numpy()[1])
    model.kept_steps.keep(facts, steps)
    if saver is not None and history.stopped in _WARNED and os.environ.get(REQUEUE):
        # mpiexec ends all ranks when one exits: the checkpoint must be complete by then.
        strategy.communicator.Barrier()
        raise SystemExit(REQUEUED)
    return history


def _agree_on_state(model: Model, options: FitOptions) -> tuple[Strategy, list[int]]:
    """Return the strategy, and rank 0's seed and counts of epochs and steps.

    The held-out samples, the order of samples and all random numbers are derived from these.
    """
    require(
        not options.resume or options.checkpoint is not None,
        "fit",
        "checkpoint= with resume=True",
        "no checkpoint folder",
        "pass the folder of the run, for example fit(..., checkpoint='run/', resume=True)",
    )
    strategy = _usual_strategy() if options.parallel is None else _checked(options.parallel)
    known = [model.seed, model.epochs_done, model.steps_done]
    return strategy, strategy.communicator.bcast_object(known)


def _begin(
    model: Model,
    strategy: Strategy,
    state: list[int],
    parts: Parts,
    given: TrainingData,
    options: FitOptions,
) -> TrainingData | None:
    """Compare the settings of all ranks, start the strategy and return the validation data."""
    strategy.agree(_facts(model, given, parts.validation, options, strategy))
    given.check(model)
    _check_batch(model, strategy, given, options)
    seed, model.epochs_done, model.steps_done = state
    model.seed = strategy.rank_seed(seed)
    strategy.begin(run_setup(model, strategy, options.batch_size))
    learn_schema(model, given.pipeline)
    return None if parts.validation is None else TrainingData.of(model, parts.validation)


def _check_batch(
    model: Model, strategy: Strategy, given: TrainingData, options: FitOptions
) -> None:
    """Raise if the optimizer needs all samples and parameters in one step but does not get them."""
    optimizer, data = model.optimizer, given.pipeline
    if not optimizer.needs_batch:
        return
    where, count = type(optimizer).__name__, options.batch_size or model.batch_size
    samples = None if data.is_stream else len(data)
    require(
        samples is not None and count >= samples,
        where,
        "the full batch in each step",
        f"batch_size={count} of {'a stream' if samples is None else f'{samples} samples'}",
        f"pass batch_size={samples}" if samples else "pass arrays or a data set with a length",
    )
    require(
        strategy.replicas_are_equal,
        where,
        "one process or parallel.DataParallel",
        type(strategy).__name__,
        "take an optimizer of single parameters, such as optim.AdamW",
    )


def _steps(model: Model, strategy: Strategy, given: TrainingData) -> tuple[Facts | None, StepPlans]:
    """Return the plans of the last run if they serve this run, else new ones."""
    source = _source(model, given, strategy)
    facts = facts_of(model, strategy, source, weighted=given.is_weighted, targets=given.targets)
    steps = model.kept_steps.take(facts, model)
    if steps is None:
        return facts, make_steps(model, given, strategy, source=source)
    return facts, steps.centre_on(given)


def _run(
    model: Model,
    strategy: Strategy,
    steps: StepPlans,
    given: TrainingData,
    held_out: TrainingData | None,
    options: FitOptions,
) -> tuple[Run, Checkpointer | None]:
    """Return the run and the callback that saves it."""
    saver = options.checkpoint
    if saver is not None and not isinstance(saver, Checkpointer):
        saver = Checkpointer(saver)
    size = options.batch_size
    if model.whole_batches and not given.pipeline.is_stream:
        size = min(size, len(given.pipeline))
    loader = loader_for(
        strategy,
        given.pipeline,
        size,
        shuffle=options.shuffle,
        seed=model.seed,
        drop_last=model.whole_batches,
    )
    loader.restore(loader.state() | {"epoch": model.epochs_done})
    run = Run(
        model,
        steps,
        loader,
        epochs=options.epochs,
        callbacks=_callbacks(options, saver, strategy),
        validation=None if held_out is None else _validation(model, held_out, strategy),
        weights=given.weights,
    )
    return run, saver


def _facts(
    model: Model,
    given: TrainingData,
    held_out: Pipeline | None,
    options: FitOptions,
    strategy: Strategy,
) -> dict[str, Any]:
    """Return the settings that must be equal on all ranks."""
    facts = {
        "samples": given.count,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "shuffle": options.shuffle,
        "weights": given.is_weighted,
        "validation": "none" if held_out is None else sample_count(held_out),
        "checkpoint": options.checkpoint is not None,
        "resume": options.resume,
        "precision": model.precision,
        "device": model.device.kernels,
        # Checkpointers gather the parts of all ranks.
        "checkpointers": sum(isinstance(each, Checkpointer) for each in options.callbacks),
    }
    if strategy.communicator.size > 1:
        # Ranks read samples by number: other data of the same size would go unnoticed.
        facts |= training_config(model) | given.digests(held_out)
    return facts


def _callbacks(
    options: FitOptions, saver: Checkpointer | None, strategy: Strategy
) -> list[Callback]:
    """Return the user's callbacks and the callbacks of every run."""
    # Only a run that can be saved may take a request to end as one to save first.
    signals = INTERRUPT if saver is None else (*INTERRUPT, *WARNINGS)
    found: list[Callback] = [StopOnSignal(signals), StopAtNonFinite(), *options.callbacks]
    if saver is not None:
        found.append(saver)
    # One rank speaks for all.
    return [*found, Progress(options.verbose if strategy.communicator.rank == 0 else 0)]


def _source(model: Model, given: TrainingData, strategy: Strategy) -> BatchSource:
    """Return data resident on the device, or else a source that feeds batches from the host."""
    if model.open_axes:
        return HostSource(open_sizes=True)
    there = resident(model, given.pipeline, given.weights)
    if there is not None:
        return there
    if given.weights is not None and given.weights.by_class is not None:
        # They go by the labels of a batch that is finished.
        return HostSource()
    # Ranks make their plans together, so no rank may change its plans separately.
    may_change = not (strategy.is_distributed or settings.deterministic)
    return HostSource.to(model.device, given.pipeline, given.inputs, may_change=may_change)


def _validation(model: Model, data: TrainingData, strategy: Strategy) -> ValidationData:
    """Prepare validation data.

    Separate plans are made for several ranks and for data resident on the device; otherwise the
    plans stored in the model serve.
    """
    there = None if model.open_axes else resident(model, data.pipeline)
    evaluating = strategy.evaluating()
    if there is None and not evaluating.is_distributed:
        return ValidationData(data)
    return ValidationData(data, make_steps(model, data, evaluating, source=there))


def evaluate(
    model: Model, data: Any, batch_size: int, parallel: Strategy | None = None
) -> dict[str, Any]:
    """Return the loss and metrics of a model on data; see `Model.evaluate`."""
    given = TrainingData.of(model, data, where="evaluate")
    if parallel is None:
        steps = model.evaluation_steps(given)
    else:
        strategy = _checked(parallel)
        if strategy.communicator.size > 1:
            facts = {"samples": given.count, "batch_size": batch_size}
            strategy.agree(facts | given.digests())
        steps = make_steps(model, given, strategy.evaluating())
    return steps.evaluated(loader_for(steps.strategy, given.pipeline, batch_size, shuffle=False))


def _checked(parallel: Strategy) -> Strategy:
    require(
        isinstance(parallel, Strategy),
        "parallel",
        "a strategy",
        shown(parallel),
        "make one of caldera.parallel, as in parallel=parallel.DataParallel()",
    )
    return parallel
