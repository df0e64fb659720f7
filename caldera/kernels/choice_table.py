"""Remembered choices as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from caldera.base.amounts import table_lines
from caldera.core.graph.memory_format import order_name
from caldera.kernels.tuning_cache import Record


def ratios(chosen: str, times: dict[str, float]) -> dict[str, float]:
    """How many times as long as the chosen kernel each of the others took."""
    own = times.get(chosen, 0.0)
    return {name: each / own for name, each in times.items() if name != chosen and own > 0}


def table_text(fixed: Mapping[str, str], records: Iterable[Record]) -> str:
    """What was fixed by hand, by op, and what was chosen, to be printed."""
    rows = [("op", "inputs", "chosen", "beat")]
    rows += [(op, "any", name, "fixed by hand") for op, name in sorted(fixed.items())]
    rows += sorted(_row(record) for record in records)
    return "\n".join(table_lines(rows, left=range(4)))


def _row(record: Record) -> tuple[str, str, str, str]:
    """Op, inputs, what was chosen and what it beat."""
    inputs = " ".join(_input(*written) for written in record.key["inputs"])
    chosen = record.chosen
    if chosen in record.times:
        chosen += f" {_duration(record.times[chosen])}"
    beaten = ratios(record.chosen, record.times)
    others = [
        f"{name} {_duration(record.times[name])} ({ratio:.2f}x)"
        for name, ratio in sorted(beaten.items(), key=lambda each: each[1])
    ]
    return record.key["op"], inputs, chosen, ", ".join(others)


def _input(shape: Sequence[int], dtype: str, order: Sequence[int] | None = None) -> str:
    text = f"{_size(shape)} {dtype}"
    return text if order is None else f"{text} {order_name(tuple(order))}"


def _size(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
