"""Choices that hold: whatever a machine would choose now, the same kernels serve again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import pytest

from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.kernels.table import Kernel, KernelTable
from caldera.kernels.tuning import choose
from caldera.kernels.tuning.choice_store import ChoiceCache, choice_cache, using
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.measure import TuningResult
from tests.unit.kernels.fake_kernels import FakeKernels, product_node
from tests.unit.kernels.test_microbatch import _greedy, _node

pytestmark = pytest.mark.usefixtures("own_folder")


def _by_chance(node: Node, rivals: Sequence[Kernel], seconds: float) -> TuningResult:
    """A machine on which nobody can tell which kernel is faster."""
    return TuningResult({kernel.name: SystemRandom().uniform(1e-3, 2e-3) for kernel in rivals})


def _chosen(table: KernelTable, node: Node, folder: Path, cached: ChoiceCache) -> str:
    """As by a process that knows nothing of what others have measured."""
    with settings.override(cache_dir=folder), using(cached):
        return Choices(table).kernel(node, "cpu").name


def test_another_process_chooses_what_is_held(
    kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in "abcdefgh":
        kernels.add(name)
    monkeypatch.setitem(choose.TIMERS, "cpu", _by_chance)
    cached, node = ChoiceCache(), product_node()
    first = _chosen(kernels.table, node, tmp_path / "first", cached)
    again = {_chosen(kernels.table, node, tmp_path / f"{turn}", cached) for turn in range(8)}
    assert again == {first}
    # A kernel that is not there any more cannot serve.
    gone = ChoiceCache(dict.fromkeys(cached.kernels, "gone"))
    assert _chosen(kernels.table, node, tmp_path / "gone", gone) in "abcdefgh"


def test_a_batch_is_cut_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sizes of slices go by the times of all of them."""
    table = KernelTable()
    for kernel in (_greedy("greedy", 1, 1.0), _greedy("greedier", 1, 1.0)):
        table.add(kernel)
    monkeypatch.setitem(choose.TIMERS, "cpu", _by_chance)
    node, cached = _node("conv2d"), ChoiceCache()
    with settings.override(workspace_limit=4):
        first = _chosen(table, node, tmp_path / "first", cached)
        assert " by greed" in first
        free = {_chosen(table, node, tmp_path / f"free{i}", ChoiceCache()) for i in range(8)}
        assert len(free) > 1
        again = {_chosen(table, node, tmp_path / f"{turn}", cached) for turn in range(8)}
    assert again == {first}


def test_what_serves_a_first_run_is_held_apart(
    kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card the first run takes what is there, and the second what was measured."""
    kernels.add("usual", priority=1)
    kernels.add("fast")
    times = {"usual": 2e-3, "fast": 1e-3}
    monkeypatch.setitem(choose.TIMERS, "cpu", lambda node, rivals, limit: TuningResult(dict(times)))
    cached, choices, node = ChoiceCache(), Choices(kernels.table), product_node()
    for _ in range(2):
        with using(cached):
            assert choices.kernel(node, "cpu", measure=False).name == "usual"
            assert choices.kernel(node, "cpu").name == "fast"
    assert choices.kernel(node, "cpu", measure=False).name == "fast"


def test_a_thread_holds_for_itself() -> None:
    seen = []
    with using(ChoiceCache()) as cached:
        thread = threading.Thread(target=lambda: seen.append(choice_cache()))
        thread.start()
        thread.join()
        assert choice_cache() is cached
    assert seen == [None]
    assert choice_cache() is None
