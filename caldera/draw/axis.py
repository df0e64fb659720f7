"""Axes of a chart: from values to places, and where the ticks stand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0)
_DECADES_FOR_LOG = 2.0
"""Values that span more powers of ten than this are unreadable on a linear axis."""


@dataclass(frozen=True)
class ChartAxis:
    """The values from `low` to `high`, evenly or by their logarithms, and the ticks among them.

    >>> axis = ChartAxis(0.0, 4.0, (0.0, 2.0, 4.0))
    >>> axis.place(1.0), axis.labels()
    (0.25, ['0', '2', '4'])
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    minor: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Return the position of a value along the axis, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shows(self, value: float) -> bool:
        """Return True if the axis can show the value."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def said(self, value: float) -> str:
        """Return a value on the axis as text."""
        return f"{value:g}"

    def labels(self) -> list[str]:
        """Return the tick labels, with the fewest digits that distinguish them."""
        if self.log:
            return [_log_label(tick) for tick in self.ticks]
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else self.ticks[0] or 1.0
        largest = max(abs(tick) for tick in self.ticks)
        if largest and not 1e-4 <= largest < 1e6:
            return [f"{tick:.{_digits(step / largest) + 1}g}" for tick in self.ticks]
        return [f"{tick:.{_digits(step)}f}" for tick in self.ticks]


@dataclass(frozen=True)
class NameAxis(ChartAxis):
    """Names in a row; the value of the first is 0, of the next 1, and so on.

    >>> axis = name_axis(["relu", "tanh"])
    >>> axis.labels(), axis.place(0.5)
    (['relu', 'tanh'], 0.5)
    """

    names: tuple[str, ...] = ()

    def said(self, value: float) -> str:
        """Return the nearest name."""
        return self.names[min(max(round(value), 0), len(self.names) - 1)]

    def labels(self) -> list[str]:
        """Return the names."""
        return list(self.names)


def name_axis(names: Sequence[str]) -> NameAxis:
    """Return an axis of these names, with half a place before the first and after the last."""
    count = max(len(names), 1)
    return NameAxis(-0.5, count - 0.5, tuple(map(float, range(len(names)))), names=tuple(names))


def axis_of(
    values: Iterable[float], *, log: bool | None = None, most: float = math.inf, count: int = 5
) -> ChartAxis:
    """Return an axis for these values, logarithmic on request or for many decades.

    `most` is the maximum possible value, and the axis ends there at the latest.

    >>> axis_of([0.1, 0.9]).ticks
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    >>> axis_of([0.001, 3.0]).log
    True
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if log is None:
        log = low > 0 and math.log10(high / low) > _DECADES_FOR_LOG
    if log:
        positive = [value for value in finite if value > 0] or [0.1, 1.0]
        return _log_axis(min(positive), max(positive))
    return _linear_axis(low, high, most, count)


def whole_axis(values: Sequence[int], count: int = 8) -> ChartAxis:
    """Return an axis of integers from the smallest value to the largest.

    >>> whole_axis([1, 2, 3]).ticks
    (1, 2, 3)
    >>> whole_axis(list(range(1, 101))).ticks
    (20, 40, 60, 80, 100)
    """
    low, high = min(values, default=1), max(values, default=1)
    if low == high:
        return ChartAxis(low - 0.5, low + 0.5, (low,))
    step = max(1, round(_nice_step((high - low) / count)))
    return ChartAxis(low, high, tuple(range(math.ceil(low / step) * step, high + 1, step)))


def _linear_axis(low: float, high: float, most: float, count: int) -> ChartAxis:
    flat = high - low <= 1e-9 * max(abs(low), abs(high))
    room = (abs(high) * 0.1 or 0.5) if flat else 0.04 * (high - low)
    high = min(high + room, max(high, most))
    # The axis includes zero if it is near, so that heights can be compared by eye.
    low = min(low, 0.0) if 0 <= low < 0.4 * high else low - room
    step = _nice_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(_clean(number * step) for number in range(first, last + 1))
    return ChartAxis(ticks[0], ticks[-1], ticks)


def _log_axis(low: float, high: float) -> ChartAxis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if first == last:
        last += 1
    # The ends are the nearest of 1, 2 and 5 times a power of ten; powers have labels.
    steps = [_clean(s * 10.0**power) for power in range(first, last + 1) for s in _STEPS]
    bottom = max(tick for tick in steps if tick <= low * (1 + 1e-9))
    top = min((tick for tick in steps if tick >= high * (1 - 1e-9)), default=steps[-1])
    if bottom == top:
        top = steps[steps.index(bottom) + 1]
    skip = max(1, math.ceil((last - first) / 7))
    powers = [_clean(10.0**power) for power in range(first, last + 1) if power % skip == 0]
    ticks = [tick for tick in powers if bottom <= tick <= top]
    if len(ticks) < 2:
        ticks = [tick for tick in steps if bottom <= tick <= top]
    minor = (
        [_clean(s * 10.0**power) for power in range(first, last + 1) for s in range(2, 10)]
        if last - first <= 4
        else []
    )
    return ChartAxis(
        bottom,
        top,
        tuple(ticks),
        log=True,
        minor=tuple(tick for tick in minor if bottom <= tick <= top and tick not in ticks),
    )


def _nice_step(rough: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((s * power for s in _STEPS if s * power >= rough * (1 - 1e-9)), 10 * power)


def _digits(step: float) -> int:
    return max(0, -math.floor(math.log10(abs(step)) + 1e-9))


def _clean(value: float) -> float:
    """Round off the error of binary fractions: 0.30000000000000004 becomes 0.3."""
    return float(f"{value:.12g}")


def _log_label(value: float) -> str:
    return f"{value:g}" if 1e-3 <= value < 1e5 else f"{value:.0e}".replace("e-0", "e-")
