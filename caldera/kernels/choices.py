"""Chosen kernels with their reasons, their retention across recomputation, and their table.

Each kernel sums in its own order, so the same training with other kernels ends with other bits.
And choices do change: a predicted choice is measured later, another process measures separately,
the tuning budget runs out. A computation that must be repeated exactly holds its choices.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from caldera.base.formatting import table_lines
from caldera.core.graph.memory_format import order_name
from caldera.core.graph.node import Node
from caldera.errors import DeviceError
from caldera.kernels.table import Kernel
from caldera.kernels.thread_counts import seconds_in_plan
from caldera.kernels.tuning_cache import TuningRecord


def ratios(chosen: str, times: dict[str, float]) -> dict[str, float]:
    """How many times as long as the chosen kernel each of the others took."""
    own = times.get(chosen, 0.0)
    return {name: each / own for name, each in times.items() if name != chosen and own > 0}


def table_text(fixed: Mapping[str, str], records: Iterable[TuningRecord]) -> str:
    """What was fixed by hand, by op, and what was chosen, to be printed."""
    rows = [("op", "inputs", "chosen", "beat")]
    rows += [(op, "any", name, "fixed by hand") for op, name in sorted(fixed.items())]
    rows += sorted(_row(record) for record in records)
    return "\n".join(table_lines(rows, left=range(4)))


def _row(record: TuningRecord) -> tuple[str, str, str, str]:
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


Source = Literal["only", "fixed", "remembered", "measured", "predicted", "guess"]
ORACLE = "reference"
"""The kernel that others are checked against. It serves only where there is no other."""
HYSTERESIS = 0.03
"""How much faster a kernel must be to displace one of higher priority."""


@dataclass(frozen=True)
class KernelChoice:
    """Which kernel serves a node, and why.

    `times` has the seconds a call that each kernel took when it was measured, None if it was not.

    >>> from caldera.kernels.choices import KernelChoice
    >>> from caldera.kernels.table import Kernel
    >>> fast = Kernel("matmul", "cpu", "blas", bind=lambda call: lambda: None)
    >>> KernelChoice(fast, {"blas": 1e-3, "loop": 2e-3}, "measured").beaten
    {'loop': 2.0}
    """

    kernel: Kernel
    times: dict[str, float] | None
    source: Source

    @property
    def beaten(self) -> dict[str, float]:
        """The other kernels that were measured: how many times as long each took."""
        return ratios(self.kernel.name, self.times or {})


def winner(within: Sequence[Kernel], times: dict[str, float], node: Node) -> Kernel:
    """The fastest kernel, with an advantage for those of higher priority."""
    best: Kernel | None = None
    least = math.inf
    for kernel in within:
        cost = seconds_in_plan(kernel, times.get(kernel.name, math.inf))
        if cost < least * (1 - HYSTERESIS):
            best, least = kernel, cost
    if best is None:
        # All of them failed, so the oracle has to do it.
        best = next((kernel for kernel in within if kernel.name == ORACLE), None)
    if best is None:
        raise DeviceError.build(
            f"op.{node.op.name}",
            expected="a kernel that computes what the oracle does",
            got=f"none of {', '.join(kernel.name for kernel in within)}",
        )
    return best


_here = threading.local()


@dataclass(frozen=True)
class HeldChoices:
    """The kernel for each node, by a digest of its tuning key; and the seconds of its rivals where
    those say into which slices a batch is cut.

    >>> from caldera.kernels.choices import HeldChoices, held_choices, holding
    >>> with holding(HeldChoices()) as held:
    ...     held is held_choices()
    True
    """

    kernels: dict[str, str] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)

    def find(self, digest: str, kernels: Sequence[Kernel]) -> KernelChoice | None:
        """What was chosen for a node, if that is one of these kernels."""
        name = self.kernels.get(digest)
        kernel = next((each for each in kernels if each.name == name), None)
        return (
            None if kernel is None else KernelChoice(kernel, self.times.get(digest), "remembered")
        )


@contextmanager
def holding(held: HeldChoices) -> Iterator[HeldChoices]:
    """Inside, plans that this thread makes go by these choices, and those they lack are added."""
    before = held_choices()
    _here.held = held
    try:
        yield held
    finally:
        _here.held = before


def held_choices() -> HeldChoices | None:
    """Those that plans of this thread go by; None if they choose freely."""
    return getattr(_here, "held", None)


def held_or(
    choose: Callable[[], KernelChoice | None],
    digest: str,
    kernels: Sequence[Kernel],
    is_final: bool,
    *,
    is_timed: bool,
) -> KernelChoice | None:
    """What is held for a node, else what `choose` chooses, which is held from now on. None, the
    first kernel as a guess, is held too.

    What is not `is_final` serves a first run alone, and is a choice of its own. With `is_timed`,
    where a batch can be cut, the times of all kernels are held: they say how it is.
    """
    held = held_choices()
    if held is None:
        return choose()
    word = digest if is_final else f"{digest} at first"
    known = held.find(word, kernels)
    if known is not None:
        return known
    found = choose()
    held.kernels[word] = (kernels[0] if found is None else found.kernel).name
    if is_timed and found is not None and found.times is not None:
        held.times[word] = dict(found.times)
    return found
