"""What the service counts, in the text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How often a value was at most each bound.

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
        """How many values there were."""
        return sum(self._counts)

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        """The lines of this histogram."""
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
        """Everything, as Prometheus reads it."""
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


def _labels(values: Mapping[str, str]) -> str:
    """Labels in braces; quotes, backslashes and new lines are escaped."""
    inside = []
    for name, value in values.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        inside.append(f'{name}="{escaped}"')
    return "{" + ",".join(inside) + "}"
