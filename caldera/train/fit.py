"""`fit` and `evaluate`: from what a user passes to a run over it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.comm import world
from caldera.config import settings
from caldera.data import Data, IterableData, Pipeline
from caldera.errors import ConfigError, DataError
from caldera.optim import LossScale
from caldera.parallel.data.data_parallel import DataParallel
from caldera.strategy import SingleProcessStrategy, Strategy
from caldera.train.batch_source import BatchSource, HostSource
from caldera.train.callbacks import INTERRUPT, WARNINGS, Callback, StopOnSignal
from caldera.train.debug.nonfinite import StopAtNonFinite
from caldera.train.progress import Progress
from caldera.train.rank_consistency import training_config
from caldera.train.resident import resident
from caldera.train.run import Run, loader_for
from caldera.train.sample_weights import SampleWeights
from caldera.train.saving.checkpointer import Checkpointer
from caldera.train.step import Steps, trace_network
from caldera.train.target_checks import check_targets
from caldera.train.tracking.history import History

if TYPE_CHECKING:
    from caldera.train.model import Model


def sample_of(data: Pipeline) -> tuple[np.ndarray, ...]:
    """A batch of one sample, inputs and targets, for its shapes and dtypes."""
    found = data.blank()
    count = 1 if data.is_stream else len(data)
    if len(found) < 2 or not count:
        raise DataError.build(
            "fit", expected="samples with inputs and targets",
            got=f"{len(found)} arrays of {count} samples", hint="pass (x, y)",
        )  # fmt: skip
    return found


def make_steps(
    model: Model,
    data: Data | IterableData,
    strategy: Strategy | None = None,
    *,
    weighted: bool = False,
    source: BatchSource | None = None,
) -> Steps:
    """The plans for training a model on data like this, built for its shapes."""
    sample = sample_of(Pipeline.of(data))
    model.ensure_built(sample)
    check_targets(model, data, sample, weighted=weighted)
    inputs = len(model.signature.inputs)
    steps = Steps(
        model,
        model.objective,
        model.optimizer,
        model.metrics,
        strategy or SingleProcessStrategy(),
        loss_scale=LossScale(device=model.device) if model.precision == "float16" else None,
        weighted=weighted,
        targets=len(sample) - inputs,
        source=source or HostSource(),
    )
    steps.strategy.prepare(
        partial(trace_network, model, several_ranks=steps.strategy.is_distributed)
    )
    return steps


@cache
def usual_strategy() -> Strategy:
    """How to train if nobody says: over all processes that were started together."""
    everyone = world()
    return SingleProcessStrategy() if everyone.size == 1 else DataParallel(communicator=everyone)


def fit(
    model: Model,
    data: Any,
    *,
    validation: Any,
    epochs: int,
    batch_size: int,
    shuffle: bool,
    verbose: int | None,
    callbacks: Sequence[Callback],
    checkpoint: Any,
    resume: bool,
    parallel: Strategy | None,
    sample_weights: Any,
    class_weights: Any,
) -> History:
    """Train; see `Model.fit`."""
    pipeline = Pipeline.of(data)
    weights = SampleWeights.of(pipeline, sample_weights, class_weights)
    model.ensure_built(sample_of(pipeline))
    strategy = usual_strategy() if parallel is None else _checked(parallel)
    held_out = None if validation is None else Pipeline.of(validation)
    strategy.agree({
        "samples": _length(pipeline), "epochs": epochs, "batch_size": batch_size,
        "shuffle": shuffle, "weights": weights is not None, "validation": _length(held_out),
        "checkpoint": checkpoint is not None, "resume": resume, "precision": model.precision,
        "device": model.device.kernels,
        # These put together what ranks have parts of.
        "checkpointers": sum(isinstance(each, Checkpointer) for each in callbacks),
        **(training_config(model) if strategy.communicator.size > 1 else {}),
    })  # fmt: skip
    # The order of the samples and all random numbers follow from these.
    known = [model.seed, model.epochs_done, model.steps_done]
    seed, model.epochs_done, model.steps_done = strategy.communicator.bcast_object(known)
    model.seed = strategy.rank_seed(seed)
    strategy.begin(model, model.optimizer)
    steps = make_steps(
        model, pipeline, strategy, weighted=weights is not None,
        source=resident(model, pipeline, weights) or _fed(model, pipeline, weights, strategy),
    )  # fmt: skip
    loader = loader_for(strategy, pipeline, batch_size, shuffle=shuffle, seed=model.seed)
    loader.restore(loader.state() | {"epoch": model.epochs_done})
    saver = Checkpointer(checkpoint) if checkpoint is not None else None
    if resume and saver is None:
        raise ConfigError.build(
            "fit", expected="checkpoint= with resume=True", got="no checkpoint folder",
            hint="say where the run was saved, as in fit(..., checkpoint='run/', resume=True)",
        )  # fmt: skip
    # Only a run that can be saved may take a request to end as one to save first.
    signals = INTERRUPT if saver is None else (*INTERRUPT, *WARNINGS)
    watchers: list[Callback] = [StopOnSignal(signals), StopAtNonFinite(), *callbacks]
    if saver is not None:
        watchers.append(saver)
    # One rank speaks for all.
    watchers.append(Progress(verbose if strategy.communicator.rank == 0 else 0))
    run = Run(
        model,
        steps,
        loader,
        epochs=epochs,
        history=History(),
        callbacks=watchers,
        validation=held_out,
        evaluator=None if held_out is None else _evaluator(model, held_out, strategy.evaluating()),
        weights=weights,
    )
    if saver is not None and resume:
        saver.restore(run)
    history = run.go()
    model.epochs_done = loader.epoch
    model.steps_done = int(steps.random.numpy()[1])
    return history


def evaluate(
    model: Model, data: Any, batch_size: int, parallel: Strategy | None = None
) -> dict[str, Any]:
    """The loss and metrics of a model on data; see `Model.evaluate`."""
    pipeline = Pipeline.of(data)
    strategy = SingleProcessStrategy() if parallel is None else _checked(parallel).evaluating()
    if parallel is None:
        steps = model.evaluation_steps(pipeline)
    else:
        model.ensure_built(sample_of(pipeline))
        steps = make_steps(model, pipeline, strategy)
    return steps.evaluated(loader_for(strategy, pipeline, batch_size, shuffle=False))


def _checked(parallel: Strategy) -> Strategy:
    if not isinstance(parallel, Strategy):
        raise ConfigError.build(
            "parallel", expected="a strategy", got=repr(parallel),
            hint="make one of caldera.parallel, as in parallel=parallel.DataParallel()",
        )  # fmt: skip
    return parallel


def _length(data: Pipeline | None) -> str:
    """How many samples data have, in words."""
    if data is None:
        return "none"
    return "a stream" if data.is_stream else f"{len(data)}"


def _fed(
    model: Model, pipeline: Pipeline, weights: SampleWeights | None, strategy: Strategy
) -> HostSource:
    """Batches that are fed; a device may take part in making them."""
    if weights is not None and weights.by_class is not None:
        # They go by the labels of a batch that is finished.
        return HostSource()
    # Ranks make their plans together, so none of them may change its own.
    may_change = not (strategy.is_distributed or settings.deterministic)
    inputs = len(model.signature.inputs)
    return HostSource.to(model.device, pipeline, inputs, may_change=may_change)


def _evaluator(model: Model, data: Pipeline, strategy: Strategy) -> Steps | None:
    """Plans that evaluate over several ranks, or on data that lie on the device; None if those
    serve that the model keeps."""
    there = resident(model, data)
    if there is None and not strategy.is_distributed:
        return None
    return make_steps(model, data, strategy, source=there)
