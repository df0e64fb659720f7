"""Choosing among the kernels of an op by measuring them on the real shapes.

The candidates are all kernels that support a node; the eligible ones respect the workspace limit.
The first of these decides: a kernel fixed by the user; the only kernel; a choice cached for a
repeated computation; a choice stored on disk, unless it was measured on a busy machine and this one
is quieter now; a measurement of the kernels that earlier
measurements favour, if the time budget allows; a prediction from earlier measurements; the highest
priority. A deterministic run does not measure.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from caldera.base.config import settings
from caldera.base.noise import LEAST_S, QUIET, others_now
from caldera.base.plain_data import json_digest
from caldera.core.graph import Node
from caldera.kernels.common.binding import at_most_workspace, workspace_limit
from caldera.kernels.table import TABLE, Kernel, KernelTable
from caldera.kernels.tuning.choice_store import (
    ORACLE,
    KernelChoice,
    Source,
    cached_or,
    decisive,
    named,
    winner,
)
from caldera.kernels.tuning.cost_model import features
from caldera.kernels.tuning.database import TuningRecord, tuning_key
from caldera.kernels.tuning.fixed import Fixed, FixedKernels, cannot_serve
from caldera.kernels.tuning.measure import (
    TuningBudget,
    TuningResult,
    measure,
    reference_seconds,
    slowdown,
)
from caldera.kernels.tuning.threads import SHORT_S, with_a_shared_one, with_thread_counts
from caldera.kernels.workspace import (
    SLICED,
    BatchedNode,
    best_sizes,
    divided,
    keeping_to,
    least_workspace,
)

Timer = Callable[..., TuningResult]
"""Takes a node, kernels, seconds, perhaps the inputs to use, and whether to be `thorough`."""

TIMERS: dict[str, Timer] = {"cpu": measure}
"""Timers by family of devices; on families without one the priorities decide.

The GPU package adds its timer here on import.
"""
SMALL, SMALL_ON_CPU = 1 << 14, 1 << 17
"""Operations and bytes together, below which kernels are not measured.

A call takes less than 10 us then, and to compile a rival more than the steps of an hour may gain.
"""
SLICE_S = 5e-6
"""Assumed seconds per additional slice, without a measurement."""
SLOW_FLOPS: dict[str, Callable[[], float]] = {"cpu": lambda: 5e9}
"""Operations per second that any kernel of a family reaches, to find nodes that take too long."""


class Choices(FixedKernels):
    """Every choice made in this process or remembered on disk; `choices` is the one in use.

    >>> from caldera.kernels.tuning.choose import choices
    >>> choices.fix("matmul", "reference")
    >>> print(choices.table().splitlines()[1].split("  ")[-1])
    fixed by hand
    >>> choices.unfix("matmul")
    """

    def __init__(self, table: KernelTable = TABLE) -> None:
        super().__init__(table)
        self._exhaustive = 0
        self._budget = TuningBudget()
        self._noise = -math.inf, 0.0
        # Choices that were measured in this process.
        self._tried: set[tuple[Path, str]] = set()

    # --- choosing

    def kernel(
        self,
        node: Node,
        family: str,
        others: Sequence[Kernel] = (),
        *,
        measure: bool = True,
        limit: int | None = None,
        fixed: Fixed | None = None,
    ) -> Kernel:
        """Return the kernel that runs this node on devices of this family: one of the table, or of
        those made for this very node."""
        return self.choose(node, family, others, measure=measure, limit=limit, fixed=fixed).kernel

    def choose(
        self,
        node: Node,
        family: str,
        others: Sequence[Kernel] = (),
        *,
        measure: bool = True,
        limit: int | None = None,
        fixed: Fixed | None = None,
    ) -> KernelChoice:
        """Choose the kernel for this node, and return it with the reason.

        Without `measure` it is a stored choice or a guess. `limit` is the bytes of workspace for
        this node, by default from the settings. A kernel that needs more processes the batch in
        slices. If all kernels exceed the limit, the kernel with the smallest workspace serves.
        `fixed` has the kernels that were fixed when a plan was built, as they may have changed
        since.
        """
        if limit is not None:
            with at_most_workspace(limit):
                found = self.choose(node, family, others, measure=measure, fixed=fixed)
            return replace(found, kernel=keeping_to(found.kernel, limit))
        candidates = self._table.candidates(node, family, others=others)
        by_hand = (self._fixed if fixed is None else fixed).get((node.op.name, family))
        chosen = None if by_hand is None else named(candidates, by_hand.name)
        if by_hand is not None and chosen is None and not by_hand.optional:
            raise cannot_serve(node, by_hand.name, "which does not support it", candidates)
        if len(candidates) == 1:
            return KernelChoice(candidates[0], None, "only")
        contenders = _contenders(candidates)
        is_small = by_hand is None and _is_small(node, family)
        if is_small and contenders[0].workspace(node) <= workspace_limit():
            # The common case in small networks: the first kernel serves, without checking the rest.
            return KernelChoice(contenders[0], None, "only" if len(contenders) == 1 else "guess")
        allowed = max(workspace_limit(), least_workspace(node, contenders))
        if chosen is not None and chosen.workspace(node) <= allowed:
            return KernelChoice(chosen, None, "fixed")
        if chosen is not None and (cuts := self._divisions(node, [chosen], allowed, False)[0]):
            return KernelChoice(cuts[0], None, "fixed")
        if chosen is not None and by_hand is not None and not by_hand.optional:
            need = f"which needs {chosen.workspace(node)} bytes of workspace, where {allowed}"
            raise cannot_serve(node, chosen.name, f"{need} are allowed", candidates)
        eligible = [kernel for kernel in contenders if kernel.workspace(node) <= allowed]
        if len(eligible) == len(contenders):
            return self._select(node, eligible, candidates, measure)
        can_measure = measure and not _is_small(node, family)
        cuts, is_measured = self._divisions(node, candidates, allowed, can_measure)
        if cuts and not is_measured:
            first = eligible[0] if contenders[0] in eligible else cuts[0]
            return KernelChoice(first, None, "guess")
        return self._select(node, [*eligible, *cuts], candidates, measure)

    def _select(
        self, node: Node, eligible: Sequence[Kernel], candidates: Sequence[Kernel], measure: bool
    ) -> KernelChoice:
        """Choose among the eligible kernels: by a measurement if possible, else by priority."""
        if len(eligible) == 1:
            return KernelChoice(eligible[0], None, "only")
        guess = KernelChoice(eligible[0], None, "guess")
        if _is_small(node, guess.kernel.family) or not all(kernel.measured for kernel in eligible):
            return guess
        return self._tuned(node, eligible, candidates, measure) or guess

    def _tuned(
        self, node: Node, eligible: Sequence[Kernel], candidates: Sequence[Kernel], measure: bool
    ) -> KernelChoice | None:
        """Return the choice that is cached, remembered, measured now or predicted.

        None without any.
        """
        # The oracle serves if all contenders prove to be wrong.
        oracle = [each for each in candidates if each.name == ORACLE and each not in eligible]
        kernels = [*eligible, *oracle]
        key = tuning_key(node, kernels[0].family, kernels)
        if key is None:
            return None
        digest = json_digest(key)

        def choose() -> KernelChoice | None:
            known = self._lookup(digest, key, kernels, node)
            if measure and (known is None or self._can_improve(known, digest)):
                known = self._tune(node, key, kernels) or known
            return known or self._predict(node, key, eligible)

        may_cut = node.op.name in SLICED
        with self._lock:
            return cached_or(choose, digest, with_thread_counts(kernels), measure, is_timed=may_cut)

    # --- in slices

    def _divisions(
        self, node: Node, kernels: Sequence[Kernel], limit: int, measure: bool
    ) -> tuple[list[Kernel], bool]:
        """Return the fastest way to take the batch in slices, each by one of these kernels within
        the limit, and the way with the fewest slices; whether slices were measured for that."""
        batch = BatchedNode.of(node)
        if batch is None:
            return [], False
        rest = limit - batch.term_bytes
        with at_most_workspace(max(0, rest)):
            eligible: dict[int, list[Kernel]] = {}
            for size in batch.sizes:
                part = batch.part(size)
                row = [each for each in _contenders(kernels) if each.supports(part)]
                eligible[size] = [each for each in row if each.workspace(part) <= rest]
            best = self._slices(batch, eligible, kernels, measure)
            guess = {
                size: (row[0], row[0].estimate(batch.part(size)) + SLICE_S)
                for size, row in eligible.items()
                if row
            }
        found = guess if best is None else best
        between = batch.adding_seconds
        ways = [best_sizes(batch.entries, {n: time for n, (_, time) in found.items()}, between)]
        if best is not None:
            # A slice measured separately may fit into the cache, unlike the whole batch.
            ways.append(best_sizes(batch.entries, dict.fromkeys(found, 1.0)))
        slices = {tuple((found[size][0], size) for size in sizes): None for sizes in ways if sizes}
        return [divided(batch, each, limit) for each in slices], best is not None

    def _slices(
        self,
        batch: BatchedNode,
        eligible: dict[int, list[Kernel]],
        candidates: Sequence[Kernel],
        measure: bool,
    ) -> dict[int, tuple[Kernel, float]] | None:
        """Return the fastest kernel for each size of slices, and its seconds.

        None if one is not known.
        """
        found: dict[int, tuple[Kernel, float]] = {}
        for size, row in eligible.items():
            if not row:
                continue
            if not all(kernel.measured for kernel in row):
                return None
            choice = self._tuned(batch.part(size), row, candidates, measure)
            if choice is None or choice.times is None:
                return None
            if choice.kernel.name in choice.times:
                found[size] = (choice.kernel, choice.times[choice.kernel.name])
        return found

    def seconds_within(
        self, node: Node, kernel: Kernel, limit: int, *, measure: bool
    ) -> dict[str, float] | None:
        """The seconds that a kernel takes which keeps to a limit of workspace, if that is known."""
        with at_most_workspace(limit):
            found = self._tuned(node, [kernel], [kernel], measure)
        return None if found is None else found.times

    # --- remembered, measured or predicted

    def _lookup(
        self, digest: str, key: dict[str, Any], kernels: Sequence[Kernel], node: Node
    ) -> KernelChoice | None:
        """Return the remembered choice, if its kernel is among these."""
        record = self._record(digest, key)
        if record is None:
            return None
        able = decisive(kernels, is_provisional=record.is_provisional)
        chosen = named(able, record.chosen)
        if chosen is None and record.is_provisional and any(k.name in record.times for k in able):
            chosen = winner(able, record.times, node)
        if chosen is None:
            return None
        measured: Source = "provisional" if record.is_provisional else "remembered"
        return KernelChoice(chosen, record.times, "predicted" if record.is_predicted else measured)

    def _can_improve(self, known: KernelChoice, digest: str) -> bool:
        """Return True if a measurement now may replace a choice.

        A provisional choice is measured again once in a process, if the machine is much quieter.
        """
        place = settings.cache_dir, digest
        if known.source != "provisional" or place in self._tried:
            return known.source == "predicted"
        return bool(self._exhaustive) or self._noise_now() < self._known[place].noise / 2

    def _noise_now(self) -> float:
        """Return the number of cores that others take at present; it is updated twice a second."""
        now = perf_counter()
        if now - self._noise[0] > LEAST_S:
            self._noise = now, max(others_now(), self._slowdown(reference_seconds()))
        return self._noise[1]

    def _slowdown(self, pace: float) -> float:
        fastest = self._model().fastest_pace("cpu")
        return 0.0 if fastest is None else slowdown(pace, fastest)

    def _tune(
        self, node: Node, key: dict[str, Any], kernels: Sequence[Kernel]
    ) -> KernelChoice | None:
        """Measure the promising kernels and remember the winner; None if that is not possible."""
        contenders = _contenders(kernels)
        family = contenders[0].family
        timer = TIMERS.get(family)
        left = self._budget.left
        if timer is None or settings.deterministic:
            return None
        if not self._exhaustive:
            promising = with_a_shared_one(self._model().promising(node, contenders), contenders)
            found = self._predict(node, key, contenders) if len(promising) == 1 else None
            if found is not None and self._is_settled(node, promising[0], found):
                return found
            contenders = [kernel for kernel in contenders if kernel in promising]
        expected = node.op.count_flops(node) * (len(contenders) + 1) / SLOW_FLOPS[family]()
        if left <= expected:
            return None
        try:
            with self._budget.spending():
                how = {"thorough": True} if self._exhaustive else {}
                outcome = timer(node, contenders, left, **how)
        except MemoryError:
            return None
        for name, reason in outcome.failures.items():
            warnings.warn(
                f"op.{node.op.name}: kernel {name!r} is left out: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return self._kept(node, key, kernels, outcome)

    def _kept(
        self, node: Node, key: dict[str, Any], kernels: Sequence[Kernel], outcome: TuningResult
    ) -> KernelChoice | None:
        """Remember a measurement and return its choice; None if an earlier one is more reliable."""
        place = settings.cache_dir, json_digest(key)
        before, family = self._known.get(place), kernels[0].family
        noise = max(outcome.noise, self._slowdown(outcome.pace) if family == "cpu" else 0.0)
        self._tried.add(place)
        if before is not None and not before.is_predicted and before.noise <= noise:
            return None
        able = decisive(kernels, is_provisional=noise > QUIET)
        kernel = winner(able, outcome.times, node)
        rows = {
            each.name: features(node, each)
            for each in able
            if each.name in outcome.times and each.name != ORACLE
        }
        record = TuningRecord(key, kernel.name, outcome.times, rows, outcome.pace, noise)
        self._keep(record)
        source: Source = "provisional" if record.is_provisional else "measured"
        return KernelChoice(kernel, outcome.times, source)

    @contextmanager
    def exhaustive(self) -> Iterator[None]:
        """Context manager that measures every candidate kernel, without pruning.

        >>> from caldera.kernels.tuning.choose import Choices
        >>> with Choices().exhaustive():
        ...     pass
        """
        self._exhaustive += 1
        try:
            yield
        finally:
            self._exhaustive -= 1

    def _predict(
        self, node: Node, key: dict[str, Any], contenders: Sequence[Kernel]
    ) -> KernelChoice | None:
        """Return the kernel with the shortest predicted time; None if a prediction is too
        uncertain.
        """
        if settings.threads > 1:
            contenders = [kernel for kernel in contenders if not kernel.serial] or contenders
        found = None if self._exhaustive else self._model().predictions(node, contenders)
        if found is None:
            return None
        times = {name: each.seconds for name, each in found.items()}
        best = next(kernel for kernel in contenders if kernel.name == next(iter(times)))
        if times[best.name] <= SHORT_S:
            best = self._model().promising(node, with_thread_counts([best]))[0]
            times.setdefault(best.name, min(times.values()))
        # A plan that is made later must find the same choice.
        self._note(json_digest(key), TuningRecord(key, best.name, times, is_predicted=True))
        return KernelChoice(best, times, "predicted")

    def _is_settled(self, node: Node, kernel: Kernel, found: KernelChoice) -> bool:
        """Return True if a prediction needs no measurement.

        It is long enough to use all threads, or its best number of threads is known.
        """
        is_long = min((found.times or {}).values(), default=0.0) > SHORT_S
        return is_long or len(self._model().promising(node, with_thread_counts([kernel]))) == 1

    def clear(self) -> None:
        """Forget all measurements, in memory and on disk, and start with a full time budget.

        >>> import tempfile
        >>> import caldera as cd
        >>> with tempfile.TemporaryDirectory() as folder, cd.settings.override(cache_dir=folder):
        ...     cd.choices.clear()
        """
        with self._lock:
            self._forget()
            self._tried.clear()
            self._budget.reset()
            self._generation += 1

    def table(self) -> str:
        """Return a printable table of choices by op and shapes, with the slower kernels.

        >>> from caldera.kernels.tuning.choose import Choices
        >>> print(Choices().table().splitlines()[0].split())
        ['op', 'inputs', 'chosen', 'beat']
        """
        with self._lock:
            return self._table_text({op: each.name for (op, _), each in self._fixed.items()})


def _contenders(candidates: Sequence[Kernel]) -> Sequence[Kernel]:
    """Return the candidates without the oracle, unless it is the only one."""
    return [kernel for kernel in candidates if kernel.name != ORACLE] or candidates


def _is_small(node: Node, family: str) -> bool:
    """Return True if the choice of a kernel hardly matters, by operations and bytes."""
    specs = [given.spec for given in node.inputs] + list(node.outputs)
    work = node.op.count_flops(node) + sum(spec.nbytes for spec in specs)
    return work < (SMALL_ON_CPU if family == "cpu" else SMALL)


choices = Choices()
"""The choices that plans go by."""
