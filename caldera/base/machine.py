"""Description of this machine, and the environment variables set by mpiexec and srun.

One description serves the cache keys of measurements, the records of runs, the benchmarks, the
planner and `caldera info`. Facts that need higher layers, such as the vector extensions that
kernels are compiled for, are added there.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np

from caldera.base.children import run_program

_CONTAINER_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
"""Files with the memory limit of a container."""


@dataclass(frozen=True)
class Machine:
    """Facts that do not change while a process runs.

    - `cpu`: the model; `architecture`: its instruction set; `cores`: their total number.
    - `memory`: bytes, 0 if unknown.
    - `libraries`: versions of Python, of NumPy and of the BLAS that NumPy was built with.
    """

    node: str
    system: str
    architecture: str
    cpu: str
    cores: int
    memory: int
    libraries: Mapping[str, str]


@cache
def this_machine() -> Machine:
    """The machine this process runs on.

    >>> this_machine().cores >= 1
    True
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return Machine(
        node=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory=_meminfo("MemTotal") or _physical_memory(),
        libraries={
            "python": platform.python_version(),
            "numpy": np.__version__,
            "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        },
    )


@cache
def memory_id() -> list[str | int]:
    """Return an identifier that is equal for processes that can share memory through files.

    A container may have the name of another machine, or share a machine but not its memory. The
    identifier therefore includes the booted kernel and its file system for shared memory.

    >>> memory_id() == memory_id()
    True
    """
    boot, mounted = "", 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        mounted = os.stat("/dev/shm").st_dev
    return [platform.node(), boot, mounted]


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores this process may use, which can be fewer than the machine has.

    A scheduler may bind the process to a subset, and a container may limit its processor time. Two
    hyper-threads of a core count once: they share its execution units.

    >>> 1 <= usable_cores() <= this_machine().cores
    True
    """
    return math.ceil(min(len(_cores_of(_usable_processors(), root)), _processor_quota(root)))


def usable_numa_nodes(root: Path = Path("/")) -> list[int]:
    """Return the NUMA nodes whose processors this process may use; [0] if the system reports none.

    A node is usually a socket with local memory.

    >>> usable_numa_nodes()[0] >= 0
    True
    """
    nodes = root / "sys/devices/system/node"
    usable = _usable_processors()
    found = []
    for node in nodes.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            if usable & _numbers_in((node / "cpulist").read_text()):
                found.append(int(node.name.removeprefix("node")))
    return sorted(found) or [0]


def _numbers_in(text: str) -> set[int]:
    """Parse the kernel's format "0-3,8,10-11"; a node without processors has an empty list."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _usable_processors() -> set[int]:
    """Return the processors, as the system numbers them, that a scheduler bound this process to."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores_of(numbers: Iterable[int], root: Path) -> set[str]:
    """Return the cores that processors, as Linux numbers them, are hyper-threads of."""
    found = set()
    for number in numbers:
        name = str(number)
        # The kernel lists all hyper-threads of the same core, and may not know.
        with suppress(OSError):
            topology = root / "sys/devices/system/cpu" / f"cpu{number}" / "topology"
            name = (topology / "thread_siblings_list").read_text().strip() or name
        found.add(name)
    return found


def _processor_quota(root: Path) -> float:
    """Return the number of processors that the control groups of this process allow, at least 1."""
    return max(1.0, min(map(_group_quota, processor_groups(root)), default=math.inf))


def processor_groups(root: Path = Path("/")) -> list[Path]:
    """Return the folders of the control groups that limit this process's processor time.

    Version 2 has one tree of groups, version 1 one for each kind of limit. In a container the group
    that the system names is often the root of the mounted tree, so its parents are read too, whose
    limits apply as well.

    >>> all(isinstance(each, Path) for each in processor_groups())
    True
    """
    found: list[Path] = []
    groups = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            place = PurePosixPath(path.lstrip("/"))
            for tree in (controllers, "cpu") if controllers else ("", "unified"):
                found += [groups / tree / group for group in (place, *place.parents)]
    return found


def _group_quota(group: Path) -> float:
    """Return the number of processors a control group may use; infinity without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
        return math.inf if int(quota) <= 0 else int(quota) / int(period)
    return math.inf


def available_memory() -> int:
    """Return bytes that are free or can be freed now; 0 where that is not known."""
    return _meminfo("MemAvailable")


def usable_memory() -> int:
    """Return the memory of the machine, or of the container if that has less; 0 if not known."""
    found = [this_machine().memory]
    for path in _CONTAINER_LIMITS:
        # There may be no container, or one without a limit ("max").
        with suppress(OSError, ValueError):
            found.append(int(Path(path).read_text()))
    return min(filter(None, found), default=0)


def _cpu_model() -> str:
    """Return the model of the CPU; x86 names it in words, arm by the numbers of maker and part."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        for name in ("model name", "CPU implementer", "CPU part"):
            found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
            if found:
                facts[name] = found[1].strip()
    return " ".join([platform.machine(), *facts.values()] if facts else platform.uname())


def _meminfo(name: str) -> int:
    with suppress(OSError, ValueError):
        found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def _physical_memory() -> int:
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


# --- programs that know more


@dataclass(frozen=True)
class CardState:
    """The first card of this machine at one moment; sizes are in bytes.

    >>> CardState("example", "1", "9.0", total=100, used=30).free
    70
    """

    name: str
    driver: str
    capability: str
    total: int
    used: int

    @property
    def free(self) -> int:
        """Bytes that are free."""
        return self.total - self.used


_CARD_FIELDS = ("name", "driver_version", "compute_cap", "memory.total", "memory.used")


def card_state() -> CardState | None:
    """Return the GPU as its driver describes it; None if there is no GPU, or no driver answers."""
    query = f"--query-gpu={','.join(_CARD_FIELDS)}"
    # The driver may have to wake the GPU up.
    lines = answer("nvidia-smi", "--id=0", query, "--format=csv,noheader,nounits", seconds=30.0)
    return card_state_from(lines[0]) if lines else None


def card_state_from(line: str) -> CardState | None:
    """Parse the answer of nvidia-smi; None if it has another format.

    >>> card_state_from("NVIDIA H200, 580.159.04, 9.0, 143771, 10").name
    'NVIDIA H200'
    """
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != len(_CARD_FIELDS) or not (parts[3].isdigit() and parts[4].isdigit()):
        return None
    name, driver, capability, total, used = parts
    return CardState(name, driver, capability, int(total) << 20, int(used) << 20)


def answer(program: str, *arguments: str, seconds: float = 10.0) -> list[str]:
    """Return the lines that another program prints; none if it is not there or does not answer."""
    path = shutil.which(program)
    done = path and run_program(path, *arguments, seconds=seconds)
    if not done or done.returncode:
        return []
    return done.stdout.decode(errors="replace").splitlines()
