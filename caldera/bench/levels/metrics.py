"""Metrics: separate objects, shared by all levels.

A metric is called at the start, after each step and after each epoch. Its result at the end is a
number, or a list of samples. It reads the fields of `Watched`. A custom metric takes ten lines.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from caldera.bench.levels.validation import Difference
from caldera.bench.parts import Array
from caldera.bench.statistics import Estimate, median_of
from caldera.bench.timing import peak_memory, reset_peak_memory
from caldera.comm import Communicator, Count, Counts
from caldera.compiler.plan.timing import cpu_peaks
from caldera.core.tensor.dtype import float32

Result = float | list[float] | None


@dataclass
class Watched:
    """State of a measurement that metrics can read.

    >>> Watched("training").step
    0
    """

    level: str
    flops: float = 0.0
    """Floating-point operations of a step; 0 if unknown."""
    nbytes: float = 0.0
    """Bytes that a step must read and write; 0 if unknown."""
    communicator: Communicator | None = None
    step: int = 0
    epoch: int = 0
    step_seconds: float = 0.0
    """Seconds of the last step."""
    data_seconds: float = 0.0
    """Seconds of waiting for the last batch."""
    seconds: float = 0.0
    """Seconds since the start, without the time of the metrics."""
    loss: float | None = None
    accuracy: float | None = None
    """Test accuracy after an epoch."""
    results: list[Array] = field(default_factory=list)
    """Results of the last call, at the levels of operators and networks."""


class Measure(ABC):
    """Base class of metrics.

    >>> class LongestStep(Measure):
    ...     name, unit = "longest step", "s"
    ...     def begin(self, watched):
    ...         self.longest = 0.0
    ...     def step(self, watched):
    ...         self.longest = max(self.longest, watched.step_seconds)
    ...     def result(self):
    ...         return self.longest
    >>> metric = LongestStep()
    >>> metric.begin(Watched("network"))
    >>> metric.step(Watched("network", step_seconds=0.25))
    >>> metric.result()
    0.25
    """

    name: str = ""
    unit: str = ""

    def begin(self, watched: Watched) -> None:  # noqa: B027 - most begin with nothing
        """Called before the first step."""

    def step(self, watched: Watched) -> None:  # noqa: B027 - some look at epochs alone
        """Called after each step."""

    def epoch(self, watched: Watched) -> None:  # noqa: B027 - operators have none
        """Called after each epoch, with the test accuracy."""

    @abstractmethod
    def result(self) -> Result:
        """Return a number, or a list of samples; None if it is unknown."""

    def summary(self, results: Sequence[Result]) -> Estimate | None:
        """Return a number with its 95% interval, from the results of several runs."""
        rounds = [each if isinstance(each, list) else [each] for each in results]
        known = [[v for v in each if v is not None and math.isfinite(v)] for each in rounds]
        known = [each for each in known if each]
        return median_of(known) if known else None


class WallTime(Measure):
    """Seconds of every step.

    >>> WallTime().summary([[1.0, 1.2], [1.1]]).value
    1.1
    """

    name, unit = "wall time", "s"
    watches = "step_seconds"

    def begin(self, watched: Watched) -> None:
        self._samples: list[float] = []

    def step(self, watched: Watched) -> None:
        self._samples.append(getattr(watched, self.watches))

    def result(self) -> Result:
        return self._samples


class FlopRate(WallTime):
    """Floating-point operations a second, of each step.

    >>> FlopRate().unit
    'FLOP/s'
    """

    name, unit = "FLOP rate", "FLOP/s"

    def begin(self, watched: Watched) -> None:
        super().begin(watched)
        self._flops = watched.flops

    def result(self) -> Result:
        return [self._flops / each for each in self._samples] if self._flops else None


class Roofline(WallTime):
    """Fraction of this machine's peak performance: least possible time over the median.

    >>> Roofline().name
    'share of the roofline'
    """

    name, unit = "share of the roofline", ""

    def begin(self, watched: Watched) -> None:
        super().begin(watched)
        work = watched.flops or watched.nbytes
        self._least = (
            cpu_peaks().least_seconds(watched.flops, watched.nbytes, float32) if work else 0.0
        )

    def result(self) -> Result:
        if not self._least or not self._samples:
            return None
        return self._least / float(np.median(self._samples))


class Memory(Measure):
    """The most bytes the process had.

    >>> Memory().unit
    'B'
    """

    name, unit = "peak memory", "B"

    def begin(self, watched: Watched) -> None:
        reset_peak_memory()

    def result(self) -> Result:
        return float(peak_memory())


class BytesMoved(Measure):
    """Bytes that must be read and written, of all steps.

    >>> BytesMoved().name
    'bytes moved'
    """

    name, unit = "bytes moved", "B"

    def begin(self, watched: Watched) -> None:
        self._total = 0.0

    def step(self, watched: Watched) -> None:
        self._total += watched.nbytes

    def result(self) -> Result:
        return self._total or None


class TimeToAccuracy(Measure):
    """Seconds until the test accuracy was reached, evaluation included; infinite if it never was.

    >>> TimeToAccuracy(0.9).name
    'time to 0.9'
    """

    unit = "s"

    def __init__(self, target: float) -> None:
        self.target = target
        self.name = f"time to {target:g}"

    def begin(self, watched: Watched) -> None:
        self._seconds = math.inf

    def epoch(self, watched: Watched) -> None:
        if watched.accuracy is not None and watched.accuracy >= self.target:
            self._seconds = min(self._seconds, watched.seconds)

    def result(self) -> Result:
        return self._seconds


class AccuracyMeasure(Measure):
    """The last accuracy on test data; over several seeds, their mean and spread.

    >>> found = AccuracyMeasure().summary([0.90, 0.92])
    >>> round(found.value, 2), found.low < 0.9 < 0.92 < found.high
    (0.91, True)
    """

    name, unit = "test accuracy", ""

    def begin(self, watched: Watched) -> None:
        self._last: float | None = None

    def epoch(self, watched: Watched) -> None:
        self._last = watched.accuracy

    def result(self) -> Result:
        return self._last

    def summary(self, results: Sequence[Result]) -> Estimate | None:
        known = [each for each in results if isinstance(each, float)]
        if not known:
            return None
        middle = float(np.mean(known))
        spread = 2.0 * float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
        return Estimate(middle, middle - spread, middle + spread)


class Curve(Measure):
    """Seconds and test accuracy after each epoch, in order.

    >>> Curve().name
    'curve'
    """

    name, unit = "curve", "s, accuracy"

    def begin(self, watched: Watched) -> None:
        self.points: list[tuple[float, float]] = []

    def epoch(self, watched: Watched) -> None:
        self.points.append((watched.seconds, watched.accuracy or 0.0))

    def result(self) -> Result:
        return [number for point in self.points for number in point]


class EqualityMeasure(Measure):
    """Difference of results from a reference's: the largest, the L2 norm, and its position.

    >>> metric = EqualityMeasure([np.array([2.0])])
    >>> metric.begin(Watched("operator"))
    >>> metric.step(Watched("operator", results=[np.array([3.0])]))
    >>> metric.result(), metric.difference.l2
    (0.5, 0.5)
    """

    name, unit = "difference", ""

    def __init__(self, expected: Sequence[Array]) -> None:
        self._expected = list(expected)
        self.difference: Difference | None = None

    def step(self, watched: Watched) -> None:
        # Compared once: calls on the same inputs return the same results.
        if self.difference is None and watched.results:
            self.difference = Difference.of(watched.results, self._expected)

    def result(self) -> Result:
        return None if self.difference is None else self.difference.largest


class Bias(Measure):
    """Bias of a random operator: mean of its results minus the expected value, in standard errors.

    >>> Bias(np.zeros(1)).unit
    'standard errors'
    """

    name, unit = "bias", "standard errors"

    def __init__(self, expected: Array) -> None:
        self._expected = np.asarray(expected, np.float64)

    def begin(self, watched: Watched) -> None:
        self._count = 0
        self._sum = np.zeros_like(self._expected)
        self._squares = np.zeros_like(self._expected)

    def step(self, watched: Watched) -> None:
        if watched.results:
            apart = np.asarray(watched.results[0], np.float64) - self._expected
            self._count += 1
            self._sum += apart
            self._squares += apart**2

    def result(self) -> Result:
        if self._count < 2:
            return None
        mean = self._sum / self._count
        error = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0.0) / (self._count - 1))
        certain = error <= 1e-12 * np.maximum(1.0, np.abs(self._expected))
        scaled = np.where(
            certain,
            np.where(np.abs(mean) > 1e-6, np.inf, 0.0),
            np.abs(mean) / np.where(certain, 1.0, error),
        )
        return float(scaled.max())


class Communication(Measure):
    """Bytes that this rank sent.

    >>> Communication().unit
    'B'
    """

    name, unit = "bytes sent", "B"

    def begin(self, watched: Watched) -> None:
        self._communicator = watched.communicator
        self._mark = Counts() if self._communicator is None else self._communicator.traffic.mark()

    def _count(self) -> Count | None:
        if self._communicator is None:
            return None
        return self._communicator.traffic.since(self._mark).total

    def result(self) -> Result:
        found = self._count()
        return None if found is None else float(found.bytes_sent)


class MessageCount(Communication):
    """Messages that this rank sent.

    >>> MessageCount().name
    'messages sent'
    """

    name, unit = "messages sent", ""

    def result(self) -> Result:
        found = self._count()
        return None if found is None else float(found.messages)


class DatasetLatency(WallTime):
    """Seconds of waiting for each batch.

    >>> DatasetLatency().name
    'dataset latency'
    """

    name, unit = "dataset latency", "s"
    watches = "data_seconds"

    def result(self) -> Result:
        return self._samples or None


class Energy(Measure):
    """Joules of the processor packages, if the machine reports them (Linux's powercap).

    >>> Energy(Path("nowhere")).result() is None
    True
    """

    name, unit = "energy", "J"

    def __init__(self, folder: Path = Path("/sys/class/powercap")) -> None:
        self._counters = sorted(folder.glob("intel-rapl:?/energy_uj"))
        self._start: list[tuple[int, int]] = []

    def begin(self, watched: Watched) -> None:
        self._start = self._read()

    def result(self) -> Result:
        end = self._read()
        if not end or len(end) != len(self._start):
            return None
        # A counter wraps around at its range.
        return sum((b - a) % most for (a, most), (b, _) in zip(self._start, end, strict=True)) / 1e6

    def _read(self) -> list[tuple[int, int]]:
        found = []
        for path in self._counters:
            with suppress(OSError, ValueError):
                most = int((path.parent / "max_energy_range_uj").read_text()) + 1
                found.append((int(path.read_text()), most))
        return found


def plain_results(metrics: Sequence[Measure]) -> dict[str, Any]:
    """Return the results by name, with their units, as a file has them.

    >>> plain_results([Energy(Path("nowhere"))])
    {'energy': {'unit': 'J', 'value': None}}
    """
    return {each.name: {"unit": each.unit, "value": each.result()} for each in metrics}


Metric, Accuracy, Equality, Messages = Measure, AccuracyMeasure, EqualityMeasure, MessageCount
"""Public names."""
