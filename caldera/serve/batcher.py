"""Dynamic batching: simultaneous requests are computed together.

No request waits for later ones: a request is computed immediately if the model is free, and the
requests that arrive during a computation form the next batch. A service with little load therefore
has the lowest latency, and a busy service computes large batches, which take less time per sample.
This module also contains the counters of the service, in the text format of Prometheus.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from caldera.errors import CalderaError
from caldera.serve.http import Limits, Refusal

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Histogram: the number of values up to each bound.

    >>> seconds = Histogram((0.1, 1.0))
    >>> for value in (0.05, 0.1, 0.5, 3.0):
    ...     seconds.add(value)
    >>> print("\\n".join(seconds.lines("wait")))
    wait_bucket{le="0.1"} 2
    wait_bucket{le="1.0"} 3
    wait_bucket{le="+Inf"} 4
    wait_sum 3.65
    wait_count 4
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self._counts)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """Return the lines of this histogram."""
        names = [*map(str, self._bounds), "+Inf"]
        buckets = [
            f'{name}_bucket{{le="{bound}"}} {count}'
            for bound, count in zip(names, accumulate(self._counts), strict=True)
        ]
        return [*buckets, f"{name}_sum {self.total:.9g}", f"{name}_count {self.count}"]


class Metrics:
    """Requests, samples and batches since the start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.samples = 0
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(SIZES)

    def text(self, model: str, waiting: int) -> str:
        """Return all counters in the text format of Prometheus."""
        requests = [
            f"caldera_requests_total{_labels({'path': path, 'status': str(status)})} {count}"
            for (path, status), count in sorted(self.requests.items())
        ]
        lines = [
            *_head("caldera_model_info", "gauge", "The model that is served."),
            f"caldera_model_info{_labels({'model': model})} 1",
            *_head("caldera_requests_total", "counter", "Requests, by path and status."),
            *requests,
            *_head("caldera_samples_total", "counter", "Samples that were predicted."),
            f"caldera_samples_total {self.samples}",
            *_head("caldera_waiting_samples", "gauge", "Samples that wait for their turn."),
            f"caldera_waiting_samples {waiting}",
            *_head("caldera_batch_size", "histogram", "Samples that were computed together."),
            *self.batches.lines("caldera_batch_size"),
            *_head("caldera_predict_seconds", "histogram", "From a request to its answer."),
            *self.seconds.lines("caldera_predict_seconds"),
        ]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _labels(values: Mapping[str, str]) -> str:
    """Return labels in braces; quotes, backslashes and new lines are escaped."""
    inside = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())
    return "{" + ",".join(inside) + "}"


Predict = Callable[[np.ndarray], np.ndarray]
QUICK = 1e-3
"""Seconds for a whole batch, below which it is computed where requests are read: to have a thread
do it would take longer."""


@dataclass
class _Waiting:
    x: np.ndarray
    answer: asyncio.Future[np.ndarray]


class Batcher:
    """Queue that computes waiting samples in batches.

    `predict` is called only with the sizes of `sizes_up_to`, to limit the number of plans.
    """

    def __init__(self, predict: Predict, limits: Limits, metrics: Metrics) -> None:
        self._predict = predict
        self._limits = limits
        self._metrics = metrics
        self._queue: deque[_Waiting] = deque()
        self._running = False
        self._thread: ThreadPoolExecutor | None = None
        self.waiting = 0
        """Samples that are not computed yet."""

    def warm_up(self, sample: np.ndarray) -> float:
        """Make the plans of all sizes; the seconds of the largest batch, once it is planned."""
        for size in sizes_up_to(self._limits.batch_size):
            batch = np.repeat(sample, size, axis=0)
            self._predict(batch)
        times = []
        for _ in range(3):
            began = time.perf_counter()
            self._predict(batch)
            times.append(time.perf_counter() - began)
        if min(times) > QUICK:
            self.use_thread()
        return min(times)

    def use_thread(self) -> None:
        """Compute in a thread from now on, while other requests are read."""
        self._thread = ThreadPoolExecutor(1, "caldera-serve")

    async def submit(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs for some samples, as soon as they are computed."""
        if self.waiting and self.waiting + len(x) > self._limits.waiting:
            raise Refusal.build(
                503,
                "/predict",
                expected=f"at most {self._limits.waiting} samples that wait",
                got=f"{self.waiting} and {len(x)} more",
                hint="try again in a moment",
                headers={"retry-after": "1"},
            )
        loop = asyncio.get_running_loop()
        waiting = _Waiting(x, loop.create_future())
        self._queue.append(waiting)
        self.waiting += len(x)
        if not self._running:
            self._running = True
            # After all requests that have already come were read: they go together.
            loop.call_soon(self._next, loop)
        return await waiting.answer

    def close(self) -> None:
        """Let the thread go."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    # --- one batch after the other

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._take()
        if not batch:
            self._running = False
        elif self._thread is None:
            self._answer(batch, self._outcomes(batch))
            loop.call_soon(self._next, loop)
        else:
            done = loop.run_in_executor(self._thread, self._outcomes, batch)

            def answered(found: asyncio.Future[list[np.ndarray | Exception]]) -> None:
                self._answer(batch, found.result())
                self._next(loop)

            done.add_done_callback(answered)

    def _take(self) -> list[_Waiting]:
        """Take the first requests that fit into a batch; an oversized one is taken separately."""
        batch: list[_Waiting] = []
        total = 0
        while self._queue:
            first = self._queue[0]
            if first.answer.done():
                # The client has given up.
                self.waiting -= len(self._queue.popleft().x)
                continue
            if batch and total + len(first.x) > self._limits.batch_size:
                break
            batch.append(self._queue.popleft())
            total += len(first.x)
        return batch

    def _outcomes(self, batch: list[_Waiting]) -> list[np.ndarray | Exception]:
        """Return the outputs or the exception for each request."""
        try:
            x = batch[0].x if len(batch) == 1 else np.concatenate([each.x for each in batch])
            outputs = self._in_parts(x)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            # Computed separately: an invalid request must not affect the rest of the batch.
            return [outcome for each in batch for outcome in self._outcomes([each])]
        ends = np.cumsum([len(each.x) for each in batch])[:-1]
        return list(np.split(outputs, ends))

    def _in_parts(self, x: np.ndarray) -> np.ndarray:
        most = self._limits.batch_size
        parts = []
        for start in range(0, len(x), most):
            part = x[start : start + most]
            size = next(size for size in sizes_up_to(most) if size >= len(part))
            missing = size - len(part)
            filled = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])
            parts.append(self._predict(filled if missing else part)[: len(part)])
            self._metrics.batches.add(len(part))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _answer(self, batch: list[_Waiting], outcomes: list[np.ndarray | Exception]) -> None:
        for each, outcome in zip(batch, outcomes, strict=True):
            self.waiting -= len(each.x)
            if each.answer.done():
                continue
            if isinstance(outcome, CalderaError):
                each.answer.set_exception(Refusal(422, str(outcome)))
            elif isinstance(outcome, Exception):
                each.answer.set_exception(outcome)
            else:
                self._metrics.samples += len(outcome)
                each.answer.set_result(outcome)


def sizes_up_to(most: int) -> list[int]:
    """Return the sizes of batches: powers of two, and the largest.

    >>> sizes_up_to(48)
    [1, 2, 4, 8, 16, 32, 48]
    """
    return sorted({*(1 << power for power in range(most.bit_length())), most})
