"""Choosing among the kernels of an op by measuring them on the real shapes.

An answer is looked for in this order: a choice fixed by hand; the only kernel there is; one that is
held, since something is computed again; one remembered on disk; a measurement, if the time for it
is not used up, of those kernels that have a chance by what was measured before; a prediction by
that; else the kernel with the highest priority. A deterministic run measures nothing.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from caldera.base.config import settings
from caldera.base.plain_data import json_digest
from caldera.base.registry import nearest
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import OPS
from caldera.errors import ConfigError
from caldera.kernels import tuning_cache
from caldera.kernels.choices import ORACLE, KernelChoice, Source, held_or, table_text, winner
from caldera.kernels.common.binding import at_most_workspace, workspace_limit
from caldera.kernels.learned_cost import CostModel, features
from caldera.kernels.measure import measure
from caldera.kernels.microbatch import SLICED, BatchedNode, best_sizes, divided, least_workspace
from caldera.kernels.table import TABLE, Kernel, KernelTable
from caldera.kernels.thread_counts import SHORT_S, with_a_shared_one, with_thread_counts
from caldera.kernels.tuning import TuningBudget, TuningResult
from caldera.kernels.tuning_cache import TuningRecord
from caldera.kernels.workspace_share import keeping_to

Fixed = Mapping[tuple[str, str], str]
"""By op and family of devices, the kernel that was fixed by hand."""
Timer = Callable[..., TuningResult]
"""Takes a node, kernels, seconds, perhaps the inputs to use, and whether to be `thorough`."""

TIMERS: dict[str, Timer] = {"cpu": measure}
"""How to time kernels on a family of devices; on other families the priorities decide. Those of a
card put theirs here when they are loaded."""
SMALL = 1 << 14
"""Operations and bytes together, below which calling costs more than computing."""
MOST_KNOWN = 1 << 14
"""Choices that a process remembers."""
SLICE_S = 5e-6
"""Seconds that a further slice costs, where none was measured."""
SLOW_FLOPS: dict[str, Callable[[], float]] = {"cpu": lambda: 5e9}
"""Operations a second that any kernel of a family reaches: says ahead which nodes would take too
long."""


class Choices:
    """Every choice made in this process or remembered on disk; `choices` is the one in use.

    >>> from caldera.kernels.choose import choices
    >>> choices.fix("matmul", "reference")
    >>> print(choices.table().splitlines()[1].split("  ")[-1])
    fixed by hand
    >>> choices.unfix("matmul")
    """

    def __init__(self, table: KernelTable = TABLE) -> None:
        self._table = table
        self._fixed: dict[tuple[str, str], str] = {}
        self._known: dict[tuple[Path, str], TuningRecord] = {}
        self._models: dict[Path, CostModel] = {}
        self._exhaustive = 0
        self._budget = TuningBudget()
        self._lock = threading.RLock()
        self._generation = 0

    @property
    def version(self) -> Hashable:
        """Differs whenever choices made so far may no longer hold; part of the key of a plan.

        >>> from caldera.kernels.choose import Choices
        >>> choices = Choices()
        >>> before = choices.version
        >>> choices.fix("matmul", "reference")
        >>> choices.version == before
        False
        """
        limits = (settings.workspace_limit, settings.workspace_total)
        return self._generation, *limits, settings.accuracy

    @property
    def fixed(self) -> Fixed:
        """What is fixed by hand now, as a plan that is made now keeps it.

        >>> from caldera.kernels.choose import Choices
        >>> choices = Choices()
        >>> choices.fix("matmul", "reference")
        >>> choices.fixed
        {('matmul', 'cpu'): 'reference'}
        """
        with self._lock:
            return dict(self._fixed)

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
        """The kernel that runs this node on devices of this family: one of the table, or of those
        made for this very node."""
        found = self.verdict(node, family, others, measure=measure, limit=limit, fixed=fixed)
        return found.kernel

    def verdict(
        self,
        node: Node,
        family: str,
        others: Sequence[Kernel] = (),
        *,
        measure: bool = True,
        limit: int | None = None,
        fixed: Fixed | None = None,
    ) -> KernelChoice:
        """The kernel for this node, with the reason for it.

        Without `measure` it is one remembered or guessed. `limit` has the bytes of workspace for
        this node, where they are not those of the settings. A kernel that needs more is given the
        batch in slices; where no kernel needs so little, the one that needs least serves. `fixed`
        has what was fixed by hand when a plan was made, where that may have changed since.
        """
        if limit is not None:
            with at_most_workspace(limit):
                found = self.verdict(node, family, others, measure=measure, fixed=fixed)
            return replace(found, kernel=keeping_to(found.kernel, limit))
        able = self._table.candidates(node, family, others=others)
        if len(able) == 1:
            return KernelChoice(able[0], None, "only")
        rivals = [kernel for kernel in able if kernel.name != ORACLE] or able
        name = (self._fixed if fixed is None else fixed).get((node.op.name, family))
        is_small = name is None and _work(node) < SMALL
        if is_small and rivals[0].workspace(node) <= workspace_limit():
            # Most nodes of small networks: the first serves, and nothing is asked of the others.
            return KernelChoice(rivals[0], None, "only" if len(rivals) == 1 else "guess")
        allowed = max(workspace_limit(), least_workspace(node, rivals))
        within = [kernel for kernel in rivals if kernel.workspace(node) <= allowed]
        named = [kernel for kernel in able if kernel.name == name]
        for kernel in named:
            if kernel.workspace(node) <= allowed:
                return KernelChoice(kernel, None, "fixed")
            for cut in self._divisions(node, named, allowed, measure=False)[0]:
                return KernelChoice(cut, None, "fixed")
        if len(within) == len(rivals):
            return self._of_several(node, within, able, measure)
        cuts, is_measured = self._divisions(node, able, allowed, measure and _work(node) >= SMALL)
        if cuts and not is_measured:
            return KernelChoice(within[0] if rivals[0] in within else cuts[0], None, "guess")
        return self._of_several(node, [*within, *cuts], able, measure)

    def _of_several(
        self, node: Node, rivals: Sequence[Kernel], able: Sequence[Kernel], measure: bool
    ) -> KernelChoice:
        if len(rivals) == 1:
            return KernelChoice(rivals[0], None, "only")
        guess = KernelChoice(rivals[0], None, "guess")
        if _work(node) < SMALL or not all(kernel.measured for kernel in rivals):
            return guess
        return self._measured(node, rivals, able, measure) or guess

    def _measured(
        self, node: Node, rivals: Sequence[Kernel], able: Sequence[Kernel], measure: bool
    ) -> KernelChoice | None:
        """What was or is now measured for a node; None if nothing can be."""
        # The oracle serves if all of the others prove to be wrong.
        oracle = [kernel for kernel in able if kernel.name == ORACLE and kernel not in rivals]
        within = [*rivals, *oracle]
        tuning_key = tuning_cache.tuning_key(node, within[0].family, within)
        if tuning_key is None:
            return None
        digest = json_digest(tuning_key)

        def choose() -> KernelChoice | None:
            known = self._recall(digest, tuning_key, within)
            if measure and (known is None or known.source == "predicted"):
                known = self._decide(node, tuning_key, within) or known
            return known or self._predict(node, tuning_key, rivals)

        may_cut = node.op.name in SLICED
        with self._lock:
            return held_or(choose, digest, with_thread_counts(within), measure, is_timed=may_cut)

    # --- in slices

    def _divisions(
        self, node: Node, kernels: Sequence[Kernel], limit: int, measure: bool
    ) -> tuple[list[Kernel], bool]:
        """The fastest way to take the batch in slices, each by one of these kernels within the
        limit, and the way with the fewest slices; whether slices were measured for that."""
        batch = BatchedNode.of(node)
        if batch is None:
            return [], False
        rest = limit - batch.term_bytes
        rivals = [kernel for kernel in kernels if kernel.name != ORACLE] or kernels
        with at_most_workspace(max(0, rest)):
            able: dict[int, list[Kernel]] = {}
            for size in batch.sizes:
                part = batch.part(size)
                row = [each for each in rivals if each.supports(part)]
                able[size] = [each for each in row if each.workspace(part) <= rest]
            oracle = [kernel for kernel in kernels if kernel not in rivals]
            best = self._slices(batch, able, oracle, measure)
            guess = {
                size: (row[0], row[0].estimate(batch.part(size)) + SLICE_S)
                for size, row in able.items()
                if row
            }
        found = guess if best is None else best
        between = batch.adding_seconds
        ways = [best_sizes(batch.entries, {n: time for n, (_, time) in found.items()}, between)]
        if best is not None:
            # What is measured alone may be in cache, which the whole batch is not.
            ways.append(best_sizes(batch.entries, dict.fromkeys(found, 1.0)))
        slices = {tuple((found[size][0], size) for size in sizes): None for sizes in ways if sizes}
        return [divided(batch, each, limit) for each in slices], best is not None

    def _slices(
        self, batch: BatchedNode, able: dict[int, list[Kernel]], oracle: list[Kernel], measure: bool
    ) -> dict[int, tuple[Kernel, float]] | None:
        """The fastest kernel for each size of slices, and its seconds; None if one is not known."""
        found: dict[int, tuple[Kernel, float]] = {}
        for size, row in able.items():
            if not row:
                continue
            if not all(kernel.measured for kernel in row):
                return None
            verdict = self._measured(batch.part(size), row, [*row, *oracle], measure)
            if verdict is None or verdict.times is None:
                return None
            if verdict.kernel.name in verdict.times:
                found[size] = (verdict.kernel, verdict.times[verdict.kernel.name])
        return found

    def seconds_within(
        self, node: Node, kernel: Kernel, limit: int, *, measure: bool
    ) -> dict[str, float] | None:
        """The seconds that a kernel takes which keeps to a limit of workspace, if that is known."""
        with at_most_workspace(limit):
            found = self._measured(node, [kernel], [kernel], measure)
        return None if found is None else found.times

    # --- measuring

    def _recall(
        self, digest: str, key: dict[str, Any], within: Sequence[Kernel]
    ) -> KernelChoice | None:
        record = self._known.get((settings.cache_dir, digest)) or tuning_cache.load(key)
        if record is None:
            return None
        self._note(digest, record)
        named = (each for each in with_thread_counts(within) if each.name == record.chosen)
        source: Source = "predicted" if record.is_predicted else "remembered"
        return KernelChoice(next(named), record.times, source)

    def _decide(
        self, node: Node, tuning_key: dict[str, Any], within: Sequence[Kernel]
    ) -> KernelChoice | None:
        rivals = [kernel for kernel in within if kernel.name != ORACLE] or within
        family = rivals[0].family
        timer = TIMERS.get(family)
        left = self._budget.left
        if timer is None or settings.deterministic:
            return None
        if not self._exhaustive:
            near = with_a_shared_one(self._model().promising(node, rivals), rivals)
            found = self._predict(node, tuning_key, rivals) if len(near) == 1 else None
            if found is not None and self._is_settled(node, near[0], found):
                return found
            rivals = [kernel for kernel in rivals if kernel in near]
        expected = node.op.count_flops(node) * (len(rivals) + 1) / SLOW_FLOPS[family]()
        if left <= expected:
            return None
        try:
            with self._budget.spending():
                how = {"thorough": True} if self._exhaustive else {}
                outcome = timer(node, rivals, left, **how)
        except MemoryError:
            return None
        for name, reason in outcome.failures.items():
            warnings.warn(
                f"op.{node.op.name}: kernel {name!r} is left out: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        kernel = winner(with_thread_counts(within), outcome.times, node)
        timed = [each for each in with_thread_counts(rivals) if each.name in outcome.times]
        rows = {each.name: features(node, each) for each in timed}
        record = TuningRecord(tuning_key, kernel.name, outcome.times, rows, outcome.pace)
        self._model().learn(*record.kind, record.times, record.features, record.pace)
        self._keep(record)
        return KernelChoice(kernel, outcome.times, "measured")

    # --- predicting

    @contextmanager
    def exhaustive(self) -> Iterator[None]:
        """Inside, all kernels are measured, however little chance they have.

        >>> from caldera.kernels.choose import Choices
        >>> with Choices().exhaustive():
        ...     pass
        """
        self._exhaustive += 1
        try:
            yield
        finally:
            self._exhaustive -= 1

    def _model(self) -> CostModel:
        """What was measured on this machine has taught it."""
        model = self._models.get(settings.cache_dir)
        if model is None:
            model = self._models[settings.cache_dir] = CostModel()
            for record in tuning_cache.all_records():
                model.learn(*record.kind, record.times, record.features, record.pace)
        return model

    def _predict(
        self, node: Node, tuning_key: dict[str, Any], rivals: Sequence[Kernel]
    ) -> KernelChoice | None:
        """The kernel that is expected to be fastest; None if too little is known of one."""
        if settings.threads > 1:
            rivals = [kernel for kernel in rivals if not kernel.serial] or rivals
        if self._exhaustive or (found := self._model().predictions(node, rivals)) is None:
            return None
        times = {name: each.seconds for name, each in found.items()}
        best = next(kernel for kernel in rivals if kernel.name == next(iter(times)))
        if times[best.name] <= SHORT_S:
            best = self._model().promising(node, with_thread_counts([best]))[0]
            times.setdefault(best.name, min(times.values()))
        # A plan that is made later must find the same choice.
        digest = json_digest(tuning_key)
        self._note(digest, TuningRecord(tuning_key, best.name, times, is_predicted=True))
        return KernelChoice(best, times, "predicted")

    def _is_settled(self, node: Node, kernel: Kernel, found: KernelChoice) -> bool:
        """Whether a prediction leaves nothing to find out: the best number of threads of a kernel
        that takes long is known."""
        is_long = min((found.times or {}).values(), default=0.0) > SHORT_S
        return is_long or len(self._model().promising(node, with_thread_counts([kernel]))) == 1

    def _note(self, digest: str, record: TuningRecord) -> None:
        """Remember a choice; those made first make room, and are found on disk."""
        self._known[settings.cache_dir, digest] = record
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _keep(self, record: TuningRecord) -> None:
        self._note(json_digest(record.key), record)
        try:
            tuning_cache.store(record)
        except OSError as problem:
            warnings.warn(
                f"choices of kernels are not kept in {settings.cache_dir}: {problem}",
                RuntimeWarning,
                stacklevel=2,
            )

    # --- what a user may do about it

    def fix(self, op: str, kernel_name: str, family: str = "cpu") -> None:
        """Use this kernel for an op wherever it can run, in this process, whatever is faster.

        Plans that exist keep what they have; new ones follow. Where it cannot run, others do:
        `plan.explain()` shows the kernel of each step.

        >>> from caldera.kernels.choose import choices
        >>> choices.fix("matmul", "blas")
        >>> choices.unfix("matmul")
        """
        _check_op("choices.fix", op)
        names = self._table.names(op, family)
        if kernel_name not in names:
            raise ConfigError.build(
                "choices.fix",
                expected=f"a kernel for op.{op}: {', '.join(names) or 'none'}",
                got=repr(kernel_name),
            )
        with self._lock:
            self._fixed[op, family] = kernel_name
            self._generation += 1

    def unfix(self, op: str, family: str = "cpu") -> None:
        """Choose for this op by measuring again.

        >>> from caldera.kernels.choose import choices
        >>> choices.unfix("conv2d")
        """
        _check_op("choices.unfix", op)
        with self._lock:
            self._fixed.pop((op, family), None)
            self._generation += 1

    def known(self, told: dict[tuple[Path, str], TuningRecord] | None = None) -> list[list[Any]]:
        """The measured choices that plans of this process go by, as JSON can hold them.

        Of those that are in `told` already nothing is said again, and it has all of them after it.
        """
        told = {} if told is None else told
        with self._lock:
            # Whoever has no room for more may have forgotten what it was told.
            if len(self._known) >= MOST_KNOWN:
                told.clear()
            news = {
                place: record
                for place, record in self._known.items()
                if place[0] == settings.cache_dir and told.get(place) is not record
            }
        told.update(news)
        return [[record.key, record.chosen, record.times] for record in news.values()]

    def learn(self, known: Sequence[Sequence[Any]]) -> None:
        """Go by the choices that another process made, as `known` gave them.

        >>> from caldera.kernels.choose import Choices
        >>> mine, theirs = Choices(), Choices()
        >>> mine.learn(theirs.known())
        """
        with self._lock:
            for tuning_key, chosen, times in known:
                digest = json_digest(tuning_key)
                record = self._known.get((settings.cache_dir, digest))
                if record is None or record.is_predicted or record.chosen != chosen:
                    self._note(digest, TuningRecord(tuning_key, chosen, times))

    def hold(self) -> None:
        """Take what was predicted until now for chosen, as who is told of it by `learn` does."""
        with self._lock:
            for place, record in self._known.items():
                if record.is_predicted:
                    self._known[place] = replace(record, is_predicted=False)

    def clear(self) -> None:
        """Forget all measurements, in memory and on disk, and start with a full time budget.

        >>> import tempfile
        >>> import caldera as cd
        >>> from caldera.kernels.choose import choices
        >>> with tempfile.TemporaryDirectory() as folder, cd.settings.override(cache_dir=folder):
        ...     choices.clear()
        """
        with self._lock:
            self._known.clear()
            self._models.clear()
            self._budget.reset()
            self._generation += 1
            tuning_cache.forget()

    def table(self) -> str:
        """What was chosen for which op and shapes, and what it beat, to be printed.

        >>> from caldera.kernels.choose import Choices
        >>> print(Choices().table().splitlines()[0].split())
        ['op', 'inputs', 'chosen', 'beat']
        """
        with self._lock:
            records = {json_digest(record.key): record for record in tuning_cache.all_records()}
            for (folder, name), record in self._known.items():
                if folder == settings.cache_dir:
                    records[name] = record
            return table_text({op: name for (op, _), name in self._fixed.items()}, records.values())


def _work(node: Node) -> int:
    """Operations and bytes of a node."""
    specs = [given.spec for given in node.inputs] + list(node.outputs)
    return node.op.count_flops(node) + sum(spec.nbytes for spec in specs)


def _check_op(where: str, op: str) -> None:
    if op not in OPS:
        raise ConfigError.build(where, expected="an op's name", got=repr(op), hint=nearest(op, OPS))


choices = Choices()
"""The choices that plans go by."""
