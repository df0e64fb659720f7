"""A call of `fit`: the loop over epochs and batches, and its state for callbacks."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.comm import Communicator
from caldera.core.memory import Device, Event, PendingRead
from caldera.data import Batch, Loader, Pipeline, Share
from caldera.errors import CommError
from caldera.train.callbacks import Callback
from caldera.train.sample_weights import SampleWeights
from caldera.train.step import StepPlans
from caldera.train.strategy import NO_VOTES, Strategy
from caldera.train.tracking.history import History
from caldera.train.training_data import TrainingData

if TYPE_CHECKING:
    from caldera.train.model import Model


@dataclass(frozen=True)
class ValidationData:
    """Data to evaluate on after each epoch, with the model's plans unless `steps` are given."""

    given: TrainingData
    steps: StepPlans | None = None

    @property
    def data(self) -> Pipeline:
        """The samples, as callbacks read them."""
        return self.given.pipeline

    def results(self, model: Model) -> dict[str, Any]:
        """Return the loss and the metrics of a model on the data."""
        if self.steps is None:
            return model.evaluate(self.given)
        size, strategy = model.batch_size, self.steps.strategy
        return self.steps.evaluated(loader_for(strategy, self.data, size, shuffle=False))


class Run:
    """State of a training run: its position, its results, and whether it should stop.

    Callbacks receive it. `stop(reason)` ends the run after the current batch. On several ranks,
    each has a separate `Run` with the same history; a request on one rank takes effect on all
    ranks, one batch later.

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
        steps: StepPlans,
        loader: Loader,
        *,
        epochs: int,
        callbacks: Sequence[Callback],
        validation: ValidationData | None = None,
        weights: SampleWeights | None = None,
    ) -> None:
        self.model = model
        self.steps = steps
        self.loader = loader
        self.epochs = epochs
        self.history = History()
        self.callbacks = list(callbacks)
        self.validation = validation
        self._weights = weights
        self._throttle = LaunchThrottle(model.device)
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self.stopped = ""
        self._stop_reason = ""
        self._wants_save = False
        self._tally: PendingRead | None = None
        # The caller may train in an `except` block.
        self._handled = sys.exception()
        self.must_save = False
        """Whether somebody asked for a checkpoint to be saved after this batch."""
        self.started = time.perf_counter()
        self._epoch_started = self.started

    # --- what callbacks ask

    @property
    def batches(self) -> int | None:
        """Batches in this epoch; None for a stream, which has no length."""
        return None if self.loader.data.is_stream else len(self.loader)

    @property
    def communicator(self) -> Communicator:
        """Communicator of all participating ranks; `rank` 0 prints and writes files for all."""
        return self.steps.strategy.communicator

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.started

    @property
    def failed(self) -> bool:
        """True in `run_ends` if an exception of this run is on its way."""
        return sys.exception() is not self._handled

    def loss(self) -> float:
        """Return the mean loss of this epoch so far.

        Reading it waits for the device, which is then idle until the next step is launched: see
        `Callback`.
        """
        return self.steps.training_totals.loss()

    def stop(self, reason: str) -> None:
        """End the run after this batch; on several ranks, after the next one.

        Where ranks take independent steps, the run ends at their next exchange.
        """
        if self.communicator.size == 1:
            self.stopped = self.stopped or reason
        else:
            self._stop_reason = self._stop_reason or reason

    def save_soon(self) -> None:
        """Ask all ranks to save a checkpoint after the next batch."""
        self._wants_save = True

    def agree(self) -> None:
        """Stop if any rank requested it; a collective call."""
        if self.communicator.size > 1 and not self.stopped:
            reasons = self.communicator.gather_objects(self._stop_reason)
            self.stopped = next(filter(None, reasons), "")

    # --- running

    def go(self) -> History:
        """Train until the last epoch, or until a stop is requested."""
        try:
            self._call_callbacks("run_begins")
            while self.epoch < self.epochs and not self.stopped:
                self._one_epoch()
            self.steps.strategy.end()
        except KeyboardInterrupt:
            # Others would wait for this rank.
            if self.communicator.size > 1:
                raise
            self.stop("interrupted")
        except SystemExit as left:
            if self.communicator.size > 1:
                # The remaining ranks would wait for this one: they receive no message when a rank
                # just ends.
                raise CommError.build(
                    "fit",
                    expected=f"rank {self.communicator.rank} of {self.communicator.size} to train "
                    "with the remaining ranks",
                    got=f"its end, by {left!r}",
                    hint="run.stop(reason) ends the run on all ranks",
                ) from left
            raise
        finally:
            self._call_callbacks("run_ends")
        self.history.stopped = self.stopped
        return self.history

    def _one_epoch(self) -> None:
        self._epoch_started = time.perf_counter()
        if self.batch == 0:
            self.steps.training_totals.reset()
        self._call_callbacks("epoch_begins")
        self.steps.strategy.shard()
        for batch in self.steps.batches(self.loader):
            votes = (float(bool(self._stop_reason)), float(self._wants_save))
            self.steps.train(batch, self.weights_of(batch), votes)
            tally = self.steps.strategy.after_step(votes)
            self._throttle.step_launched()
            self.batch += 1
            self.step += 1
            self._obey_requests(tally)
            self._call_callbacks("batch_ends")
            if self.stopped:
                break
        self.steps.strategy.unshard()
        if not self.stopped:
            self._close_epoch()

    def _obey_requests(self, tally: Sequence[float] | None) -> None:
        """Apply the requests that ranks made before this batch, or before their last exchange."""
        if self.communicator.size == 1:
            return
        if self.steps.strategy.is_distributed:
            tally = self._tally_of_step()
        self.must_save = tally is not None and tally[1] > 0
        if tally is not None:
            self._wants_save = False
            if tally[0] > 0:
                self.agree()

    def _tally_of_step(self) -> Sequence[float]:
        """Return the number of ranks with each vote, for strategies whose steps send votes."""
        tally, now = self._tally, self.steps.tally.tensor.memory.begin_read()
        # A device may still be at work on this batch; the previous batch will finish soon.
        tally, self._tally = (now, None) if self.model.device.is_host else (tally, now)
        return NO_VOTES if tally is None else tally.numbers().tolist()

    def _close_epoch(self) -> None:
        results = self.steps.training_totals.results(self.steps.strategy.epoch_sums)
        if self.validation is not None:
            found = self.validation.results(self.model)
            results |= {f"val_{name}": each for name, each in found.items()}
        # Ranks with independent steps differ in their values: rank 0's values count.
        own = time.perf_counter() - self._epoch_started, self.model.optimizer.known_rate()
        results["seconds"], rate = self.communicator.bcast_object(own)
        self.history.add(self.epoch, results, rate)
        self.epoch += 1
        self.batch = 0
        self._adapt(results)
        self._call_callbacks("epoch_ends")
        self.agree()

    def _adapt(self, results: dict[str, Any]) -> None:
        """Let what acts between epochs change the learning rate or the batch size."""
        self.model.optimizer.after_epoch(results)
        for rule in self.model.between_epochs:
            if rule.controls == "batch_size":
                self.loader.batch_size = int(rule.after_epoch(results))

    def weights_of(self, batch: Batch | Share) -> np.ndarray | None:
        """Return the weights of a batch's samples.

        None if all count the same, or the device has them.
        """
        if self._weights is None or isinstance(batch, Share):
            return None
        return self._weights.of_batch(batch)

    def _call_callbacks(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)


def loader_for(strategy: Strategy, data: Pipeline, batch_size: int, **options: Any) -> Loader:
    """Return the batches of this rank: it reads its own samples and no others."""
    rank, ranks = strategy.reader
    return Loader(data, batch_size, rank=rank, ranks=ranks, parts=strategy.batch_parts, **options)


RUN_AHEAD_S = 0.5
"""Maximum lead of the host in seconds, so that time limits and stops refer to the device."""


class LaunchThrottle:
    """Limits the lead of step launches over the device.

    Steps are launched faster than a device computes them, so that it is never idle. But a time
    limit, Ctrl-C or a progress bar should not refer to a state that the device reaches a minute
    later. So now and then the host waits for a step that it launched half a second ago. If the
    device has finished that step, there is no wait.

    >>> from caldera.core.memory import device
    >>> from caldera.train.run import LaunchThrottle
    >>> ahead = LaunchThrottle(device("loopback"))
    >>> for _ in range(100):
    ...     ahead.step_launched()
    """

    def __init__(self, device: Device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        self._next = float("inf") if device.is_host else 0.0
        self._marks: deque[Event] = deque()

    def step_launched(self) -> None:
        """Record a launch; wait if the device is too far behind."""
        now = self._clock()
        if now < self._next:
            return
        if len(self._marks) == 2:
            self._marks.popleft().settle()
            now = self._clock()
        self._marks.append(self._device.stream.record())
        self._next = now + RUN_AHEAD_S / 2
