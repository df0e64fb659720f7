"""`fit` and `evaluate`: from what a user passes to a run over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.data import Data, IterableData, Loader, as_data
from caldera.errors import ConfigError, DataError
from caldera.optim import LossScale
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
    steps = make_steps(
        model, source, parallel, weighted=weights is not None,
        source=resident(model, source, weights),
    )  # fmt: skip
    communicator = steps.strategy.communicator
    loader = Loader(
        source, batch_size, shuffle=shuffle, seed=model.seed,
        rank=communicator.rank, ranks=communicator.size,
    )  # fmt: skip
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
    watchers.append(Progress(verbose))
    held_out = None if validation is None else as_data(validation)
    run = Run(
        model,
        steps,
        loader,
        epochs=epochs,
        history=History(),
        callbacks=watchers,
        validation=held_out,
        evaluator=None if held_out is None else _evaluator(model, held_out),
        weights=weights,
    )
    if saver is not None and resume:
        saver.restore(run)
    history = run.go()
    model.epochs_done = loader.epoch
    model.steps_done = int(steps.random.numpy()[1])
    return history


def evaluate(model: Model, data: Any, batch_size: int) -> dict[str, Any]:
    """The loss and metrics of a model on data."""
    source = as_data(data)
    return model.evaluation_steps(source).evaluated(Loader(source, batch_size, shuffle=False))


def _evaluator(model: Model, data: Data | IterableData) -> Steps | None:
    """Plans that evaluate on data that lie on the device; None if they have to be fed."""
    there = resident(model, data)
    return None if there is None else make_steps(model, data, source=there)
