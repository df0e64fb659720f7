"""`fit` and `evaluate`: from what a user passes to a run over it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.comm import world
from caldera.data import Data, IterableData, Loader, as_data
from caldera.errors import ConfigError, DataError
from caldera.optim import LossScale
from caldera.parallel.data_parallel import DataParallel
from caldera.strategy import Alone, Strategy
from caldera.train.callbacks import Callback
from caldera.train.checkpoint import Checkpointer
from caldera.train.diagnose import StopAtNonFinite
from caldera.train.history import History
from caldera.train.progress import Progress
from caldera.train.resident import resident
from caldera.train.run import Run
from caldera.train.signals import INTERRUPT, WARNINGS, StopOnSignal
from caldera.train.source import Fed, Source
from caldera.train.step import Steps
from caldera.train.targets import check_targets
from caldera.train.weights import Weights

if TYPE_CHECKING:
    from caldera.train.model import Model


def sample_of(data: Data | IterableData) -> tuple[np.ndarray, ...]:
    """A small batch of inputs and targets, for its shapes and dtypes."""
    if isinstance(data, IterableData):
        found = data.blank()
    else:
        found = data.batch(np.arange(min(1, len(data))))
    if len(found) < 2 or not len(found[0]):
        raise DataError.build(
            "fit", expected="samples with inputs and targets",
            got=f"{len(found)} arrays of {len(found[0])} samples", hint="pass (x, y)",
        )  # fmt: skip
    return found


def make_steps(
    model: Model,
    data: Data | IterableData,
    strategy: Strategy | None = None,
    *,
    weighted: bool = False,
    source: Source | None = None,
) -> Steps:
    """The plans for training a model on data like this, built for its shapes."""
    sample = sample_of(data)
    model.ensure_built(sample)
    check_targets(model, data, sample, weighted=weighted)
    inputs = len(model.signature.inputs)
    return Steps(
        model,
        model.objective,
        model.optimizer,
        model.metrics,
        strategy or Alone(),
        loss_scale=LossScale(device=model.device) if model.precision == "float16" else None,
        weighted=weighted,
        targets=len(sample) - inputs,
        source=source or Fed(),
    )


@cache
def usual_strategy() -> Strategy:
    """How to train if nobody says: over all processes that were started together."""
    everyone = world()
    return Alone() if everyone.size == 1 else DataParallel(communicator=everyone)


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
    source = as_data(data)
    weights = Weights.of(source, sample_weights, class_weights)
    model.ensure_built(sample_of(source))
    strategy = usual_strategy() if parallel is None else parallel
    length = None if isinstance(source, IterableData) else len(source)
    strategy.agree({
        "samples": length, "epochs": epochs, "batch_size": batch_size, "shuffle": shuffle,
        "weights": weights is not None, "validation": validation is not None,
        "checkpoint": checkpoint is not None, "resume": resume, "precision": model.precision,
        "device": model.device.kernels,
    })  # fmt: skip
    # The order of the samples and all random numbers follow from these.
    known = [model.seed, model.epochs_done, model.steps_done]
    model.seed, model.epochs_done, model.steps_done = strategy.communicator.bcast_object(known)
    strategy.begin(model, model.optimizer)
    steps = make_steps(
        model, source, strategy, weighted=weights is not None,
        source=resident(model, source, weights),
    )  # fmt: skip
    loader = loader_for(strategy, source, batch_size, shuffle=shuffle, seed=model.seed)
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
    held_out = None if validation is None else as_data(validation)
    run = Run(
        model,
        steps,
        loader,
        epochs=epochs,
        history=History(),
        callbacks=watchers,
        validation=held_out,
        evaluator=None if held_out is None else _evaluator(model, held_out, strategy),
        weights=weights,
    )
    if saver is not None and resume:
        saver.restore(run)
    history = run.go()
    model.epochs_done = loader.epoch
    model.steps_done = int(steps.random.numpy()[1])
    return history


def loader_for(
    strategy: Strategy, data: Data | IterableData, batch_size: int, **settings: Any
) -> Loader:
    """The batches of this rank: it reads its own samples and no others."""
    rank, ranks = strategy.readers
    return Loader(data, batch_size, rank=rank, ranks=ranks, parts=strategy.batch_parts, **settings)


def evaluate(
    model: Model, data: Any, batch_size: int, parallel: Strategy | None = None
) -> dict[str, Any]:
    """The loss and metrics of a model on data; see `Model.evaluate`."""
    source = as_data(data)
    strategy = Alone() if parallel is None else parallel
    if parallel is None:
        steps = model.evaluation_steps(source)
    else:
        model.ensure_built(sample_of(source))
        steps = make_steps(model, source, strategy)
    return steps.evaluated(loader_for(strategy, source, batch_size, shuffle=False))


def _evaluator(model: Model, data: Data | IterableData, strategy: Strategy) -> Steps | None:
    """Plans that evaluate over several ranks, or on data that lie on the device; None if those
    serve that the model keeps."""
    there = resident(model, data)
    if there is None and not strategy.several:
        return None
    return make_steps(model, data, strategy, source=there)
