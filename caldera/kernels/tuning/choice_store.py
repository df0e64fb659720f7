"""Chosen kernels with their reasons, their retention across recomputation, and their table.

Each kernel sums in its own order, so the same training with other kernels ends with other bits.
And choices do change: a predicted choice is measured later, another process measures separately,
the tuning budget runs out. A computation that must be repeated exactly caches its choices.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from caldera.base.config import settings
from caldera.base.formatting import table_lines
from caldera.base.plain_data import json_digest
from caldera.core.graph import Node, order_name
from caldera.errors import DeviceError
from caldera.kernels.table import Kernel
from caldera.kernels.tuning import database
from caldera.kernels.tuning.cost_model import CostModel
from caldera.kernels.tuning.database import TuningRecord
from caldera.kernels.tuning.threads import seconds_in_plan, with_thread_counts

Source = Literal["only", "fixed", "remembered", "measured", "provisional", "predicted", "guess"]
"""Origin of a choice; a provisional one was measured while other programs computed."""
ORACLE = "reference"
"""Name of the kernel that checks all kernels. It serves only if there is no alternative."""
HYSTERESIS = 0.03
"""Minimum speedup of a kernel over one of higher priority to replace it."""
NOISE = 0.5
"""Standard deviation, in logarithms of seconds, of times measured while others computed."""
MOST_KNOWN = 1 << 14
"""Choices that a process remembers."""


def _ratios(chosen: str, times: Mapping[str, float]) -> dict[str, float]:
    """Return the time of each kernel relative to the chosen one."""
    own = times.get(chosen, 0.0)
    return {name: each / own for name, each in times.items() if name != chosen and own > 0}


@dataclass(frozen=True)
class KernelChoice:
    """Which kernel serves a node, and why.

    `times` has the seconds a call that each kernel took when it was measured, None if it was not.

    >>> from caldera.kernels.table import Kernel
    >>> from caldera.kernels.tuning.choice_store import KernelChoice
    >>> fast = Kernel("matmul", "cpu", "blas", bind=lambda call: lambda: None)
    >>> KernelChoice(fast, {"blas": 1e-3, "loop": 2e-3}, "measured").beaten
    {'loop': 2.0}
    """

    kernel: Kernel
    times: dict[str, float] | None
    source: Source

    @property
    def beaten(self) -> dict[str, float]:
        """Slower measured kernels, with their time relative to the chosen one."""
        return _ratios(self.kernel.name, self.times or {})


def named(kernels: Iterable[Kernel], name: str | None) -> Kernel | None:
    """Return the kernel of this name, None if no kernel has it."""
    return next((kernel for kernel in kernels if kernel.name == name), None)


def winner(eligible: Sequence[Kernel], times: dict[str, float], node: Node) -> Kernel:
    """Return the fastest kernel, with an advantage for kernels of higher priority."""
    best: Kernel | None = None
    least = math.inf
    for kernel in eligible:
        cost = seconds_in_plan(kernel, times.get(kernel.name, math.inf))
        if cost < least * (1 - HYSTERESIS):
            best, least = kernel, cost
    # If all kernels failed, the oracle serves.
    best = best or named(eligible, ORACLE)
    if best is None:
        raise DeviceError.build(
            f"op.{node.op.name}",
            expected="a kernel whose result equals the reference",
            got=f"none of {', '.join(kernel.name for kernel in eligible)}",
        )
    return best


def decisive(kernels: Sequence[Kernel], *, is_provisional: bool) -> list[Kernel]:
    """Return the kernels that measured times may select.

    On a busy machine fewer threads wait less for a core than all threads do: such times are no
    reason for fewer threads.
    """
    if not is_provisional:
        return with_thread_counts(kernels)
    shared = [kernel for kernel in kernels if not kernel.serial and kernel.name != ORACLE]
    if settings.threads == 1 or not shared:
        return list(kernels)
    return [*shared, *[kernel for kernel in kernels if kernel.name == ORACLE]]


# --- choices cached for a computation that is repeated


@dataclass(frozen=True)
class ChoiceCache:
    """Cached kernel for each node, by a digest of its tuning key.

    It also has the seconds of its contenders if the slices of a batch depend on them.

    >>> from caldera.kernels.tuning.choice_store import ChoiceCache, choice_cache, using
    >>> with using(ChoiceCache()) as cached:
    ...     cached is choice_cache()
    True
    """

    kernels: dict[str, str] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)

    def find(self, digest: str, kernels: Sequence[Kernel]) -> KernelChoice | None:
        """Return the choice for a node, if one of these kernels was chosen."""
        kernel = named(kernels, self.kernels.get(digest))
        if kernel is None:
            return None
        return KernelChoice(kernel, self.times.get(digest), "remembered")


_here = threading.local()


@contextmanager
def using(cache: ChoiceCache) -> Iterator[ChoiceCache]:
    """Context in which this thread's plans take their choices from a cache and add missing ones."""
    before = choice_cache()
    _here.cache = cache
    try:
        yield cache
    finally:
        _here.cache = before


def choice_cache() -> ChoiceCache | None:
    """Return the cache that this thread's plans use; None if they choose freely."""
    return getattr(_here, "cache", None)


def cached_or(
    choose: Callable[[], KernelChoice | None],
    digest: str,
    kernels: Sequence[Kernel],
    is_final: bool,
    *,
    is_timed: bool,
) -> KernelChoice | None:
    """Return the cached choice for a node, else call `choose` and cache its result.

    None, which stands for the first kernel as a guess, is cached too. A choice that is not
    `is_final` is only for a first run, and is cached separately. With `is_timed`, for batches that
    can be sliced, the times of all kernels are cached: the slices follow from them.
    """
    cache = choice_cache()
    if cache is None:
        return choose()
    word = digest if is_final else f"{digest} at first"
    known = cache.find(word, kernels)
    if known is not None:
        return known
    found = choose()
    cache.kernels[word] = (kernels[0] if found is None else found.kernel).name
    if is_timed and found is not None and found.times is not None:
        cache.times[word] = dict(found.times)
    return found


# --- choices of this process, and of those before it


class ChoiceStore:
    """Choices made in this process or remembered on disk, and a model of the times they measured.

    >>> from caldera.kernels.tuning.choice_store import ChoiceStore
    >>> ChoiceStore().known()
    []
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], TuningRecord] = {}
        self._models: dict[Path, CostModel] = {}
        self._lock = threading.RLock()

    def _model(self) -> CostModel:
        """Return the cost model, trained with the measurements on this machine."""
        model = self._models.get(settings.cache_dir)
        if model is None:
            model = self._models[settings.cache_dir] = CostModel()
            for record in database.all_records():
                _teach(model, record)
        return model

    def _record(self, digest: str, key: dict[str, Any]) -> TuningRecord | None:
        """Return the record of a choice, from memory or from disk."""
        record = self._known.get((settings.cache_dir, digest)) or database.load(key)
        if record is not None:
            self._note(digest, record)
        return record

    def _note(self, digest: str, record: TuningRecord) -> None:
        """Remember a choice; those made first make room, and are found on disk."""
        self._known[settings.cache_dir, digest] = record
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _keep(self, record: TuningRecord) -> None:
        """Remember a measured choice in memory and on disk, and train the model with it."""
        _teach(self._model(), record)
        self._note(json_digest(record.key), record)
        try:
            database.store(record)
        except OSError as problem:
            warnings.warn(
                f"choices of kernels are not kept in {settings.cache_dir}: {problem}",
                RuntimeWarning,
                stacklevel=2,
            )

    def known(
        self, imported: dict[tuple[Path, str], TuningRecord] | None = None
    ) -> list[list[Any]]:
        """Return the measured choices that plans of this process go by, as JSON can hold them.

        Choices that the receiver has `imported` already are left out, and the new ones are added
        to them.
        """
        imported = {} if imported is None else imported
        with self._lock:
            # A receiver without room for more may have forgotten earlier choices.
            if len(self._known) >= MOST_KNOWN:
                imported.clear()
            news = {
                place: record
                for place, record in self._known.items()
                if place[0] == settings.cache_dir and imported.get(place) is not record
            }
        imported.update(news)
        return [[record.key, record.chosen, record.times] for record in news.values()]

    def learn(self, known: Sequence[Sequence[Any]]) -> None:
        """Go by the choices that another process made, as `known` gave them.

        >>> from caldera.kernels.tuning.choice_store import ChoiceStore
        >>> mine, theirs = ChoiceStore(), ChoiceStore()
        >>> mine.learn(theirs.known())
        """
        with self._lock:
            for tuning_key, chosen, times in known:
                digest = json_digest(tuning_key)
                record = self._known.get((settings.cache_dir, digest))
                if record is None or record.is_predicted or record.chosen != chosen:
                    self._note(digest, TuningRecord(tuning_key, chosen, times))

    def hold(self) -> None:
        """Mark all predicted choices as final, as `learn` does in the receiving process."""
        with self._lock:
            for place, record in self._known.items():
                if record.is_predicted:
                    self._known[place] = replace(record, is_predicted=False)

    def _forget(self) -> None:
        self._known.clear()
        self._models.clear()
        database.forget()

    def _table_text(self, fixed: Mapping[str, str]) -> str:
        """Lay out the kernels that are fixed by hand, by op, and all choices, for printing."""
        records = {json_digest(record.key): record for record in database.all_records()}
        for (folder, name), record in self._known.items():
            if folder == settings.cache_dir:
                records[name] = record
        rows = [("op", "inputs", "chosen", "beat")]
        rows += [(op, "any", name, "fixed by hand") for op, name in sorted(fixed.items())]
        rows += sorted(map(_row, records.values()))
        return "\n".join(table_lines(rows, left=range(4)))


def _teach(model: CostModel, record: TuningRecord) -> None:
    noise = NOISE if record.is_provisional else 0.0
    model.learn(*record.kind, record.times, record.features, record.pace, noise)


def _row(record: TuningRecord) -> tuple[str, str, str, str]:
    """Return op, inputs, the chosen kernel and the kernels that it beat."""
    inputs = " ".join(_input(*written) for written in record.key["inputs"])
    chosen = record.chosen
    if chosen in record.times:
        chosen += f" {_duration(record.times[chosen])}"
    beaten = _ratios(record.chosen, record.times)
    others = [
        f"{name} {_duration(record.times[name])} ({ratio:.2f}x)"
        for name, ratio in sorted(beaten.items(), key=lambda each: each[1])
    ]
    return record.key["op"], inputs, chosen, ", ".join(others)


def _input(shape: Sequence[int], dtype: str, order: Sequence[int] | None = None) -> str:
    text = f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"
    return text if order is None else f"{text} {order_name(tuple(order))}"


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
