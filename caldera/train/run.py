"""One call of `fit`: the loop over epochs and batches, and what callbacks see of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.data import Batch, IterableData, Loader, Share
from caldera.train.ahead import Ahead
from caldera.train.callbacks import Callback
from caldera.train.history import History
from caldera.train.step import Steps
from caldera.train.weights import Weights

if TYPE_CHECKING:
    from caldera.train.model import Model


class Run:
    """The state of a training run: where it is, what it has seen, and whether it should end.

    Callbacks get it. `stop(reason)` ends the run after the current batch.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> class Brief(cd.Callback):
    ...     def batch_ends(self, run):
    ...         if run.step == 3:
    ...             run.stop("three steps are enough")
    >>> model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", batch_size=2)
    >>> x = np.zeros((8, 1), "float32")
    >>> model.fit((x, x), callbacks=[Brief()], verbose=0).stopped
    'three steps are enough'
    """

    def __init__(
        self,
        model: Model,
        steps: Steps,
        loader: Loader,
        *,
        epochs: int,
        history: History,
        callbacks: Sequence[Callback],
        validation: Any = None,
        evaluator: Steps | None = None,
        weights: Weights | None = None,
    ) -> None:
        self.model = model
        self.steps = steps
        self.loader = loader
        self.epochs = epochs
        self.history = history
        self.callbacks = list(callbacks)
        self.validation = validation
        self._evaluator = evaluator
        self._weights = weights
        self._ahead = Ahead(model.device)
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self.stopped = ""
        self.started = time.perf_counter()
        self._epoch_started = self.started

    # --- what callbacks ask

    @property
    def batches(self) -> int | None:
        """Batches in this epoch; None for a stream, which has no length."""
        return None if isinstance(self.loader.data, IterableData) else len(self.loader)

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.started

    def loss(self) -> float:
        """The mean loss of this epoch so far.

        Reading it waits for the device, which has nothing to do after that until the next step is
        launched: see `Callback`.
        """
        return self.steps.training_totals.loss()

    def stop(self, reason: str) -> None:
        """End the run after this batch."""
        self.stopped = self.stopped or reason

    # --- running

    def go(self) -> History:
        """Train until the last epoch, or until somebody stops it."""
        try:
            self._tell("run_begins")
            while self.epoch < self.epochs and not self.stopped:
                self._one_epoch()
        except KeyboardInterrupt:
            self.stop("interrupted")
        finally:
            self._tell("run_ends")
        self.history.stopped = self.stopped
        return self.history

    def _one_epoch(self) -> None:
        self._epoch_started = time.perf_counter()
        if self.batch == 0:
            self.steps.training_totals.reset()
        self._tell("epoch_begins")
        for batch in self.steps.source.epoch(self.loader):
            self.steps.train(batch, self.weights_of(batch))
            self._ahead.step_launched()
            self.batch += 1
            self.step += 1
            self._tell("batch_ends")
            if self.stopped:
                return
        self._close_epoch()

    def _close_epoch(self) -> None:
        results = self.steps.training_totals.results()
        if self.validation is not None:
            results |= {f"val_{k}": v for k, v in self._validated().items()}
        results["seconds"] = time.perf_counter() - self._epoch_started
        self.history.add(self.epoch, results)
        self.epoch += 1
        self.batch = 0
        self._adapt(results)
        self._tell("epoch_ends")

    def _adapt(self, results: dict[str, Any]) -> None:
        """Let what acts between epochs change the learning rate or the batch size."""
        self.model.optimizer.after_epoch(results)
        for rule in self.model.between_epochs:
            if rule.controls == "batch_size":
                self.loader.batch_size = int(rule.after_epoch(results))

    def _validated(self) -> dict[str, Any]:
        if self._evaluator is None:
            return self.model.evaluate(self.validation)
        loader = Loader(self.validation, self.model.batch_size, shuffle=False)
        return self._evaluator.evaluated(loader)

    def weights_of(self, batch: Batch | Share) -> np.ndarray | None:
        """The weights of a batch's samples; None if all count the same, or the device has them."""
        if self._weights is None or isinstance(batch, Share):
            return None
        return self._weights.of_batch(batch)

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)
