"""What a process finds out about its machine, on trees of files like those of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caldera.base.config import Settings
from caldera.base.machine import usable_cores, usable_numa_nodes


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 cores, no two of them hyper-threads of one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def test_all_cores_where_nothing_is_said(root: Path) -> None:
    assert usable_cores(root) == 8


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # Version 2: the group itself, one above it, a container that sees its group as the root.
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "1600000 100000"}, 8),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "nonsense"}, 8),
        # Version 1, beside a tree of version 2 without limits.
        (
            {
                "proc/self/cgroup": "4:memory:/m\n2:cpu,cpuacct:/docker/x\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
        ),
        # The quota of another kind of limit is none of time.
        ({"proc/self/cgroup": "3:cpuset:/", "sys/fs/cgroup/cpuset/cpu.max": "100000 100000"}, 8),
    ],
)
def test_quota_of_control_groups(root: Path, files: dict[str, str], expected: int) -> None:
    _write(root, files)
    assert usable_cores(root) == expected


def test_hyper_threads_of_a_core_count_once(root: Path) -> None:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    _write(root, {folder.format(i): f"{i % 4},{i % 4 + 4}" for i in range(8)})
    assert usable_cores(root) == 4


@pytest.mark.parametrize(
    ("processors", "expected"),
    [
        ({0: "0-1,4-5", 1: "2-3,6-7"}, [0, 1]),
        ({0: "0-7", 1: "8-15"}, [0]),  # bound to one of two sockets
        ({0: "0-3", 1: "", 10: "4-7", 2: "garbage"}, [0, 10]),  # a node may be memory alone
        ({}, [0]),
    ],
)
def test_numa_nodes_of_the_processors_that_may_be_used(
    root: Path, processors: dict[int, str], expected: list[int]
) -> None:
    folder = "sys/devices/system/node/node{}/cpulist"
    _write(root, {folder.format(node): text for node, text in processors.items()})
    assert usable_numa_nodes(root) == expected


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("1,2", 1), ("0", None), ("all", None)])
def test_threads_of_openmp_are_a_bound(text: str, expected: int | None) -> None:
    assert Settings({"OMP_NUM_THREADS": text}).threads == (expected or usable_cores())
    assert Settings({"OMP_NUM_THREADS": "100000"}).threads == usable_cores()
    assert Settings({"OMP_NUM_THREADS": text, "CALDERA_THREADS": "3"}).threads == 3
