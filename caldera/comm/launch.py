"""Starting several processes with the mpiexec that belongs to this Python."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caldera.errors import ConfigError
from caldera.machine import usable_cores

RESTART = "CALDERA_RESTART"
"""How often a program was started again; `caldera run` sets this variable."""
_PR_SET_PDEATHSIG = 1
_HOSTS = r"[^:,]+(:\d+)?(,[^:,]+(:\d+)?)*"
_SENT = ("CALDERA_", "OMPI_MCA_", "OMP_", "OPENBLAS_", "PYTHON")
"""Variables that ranks on other machines need as well."""


@dataclass(frozen=True)
class Launch:
    """A command that starts all ranks, and the environment it needs."""

    command: list[str]
    environment: dict[str, str]

    def start(self, attempt: int = 0) -> subprocess.Popen[bytes]:
        """Start it. On Linux the system ends it if this process is killed before it is over."""
        return subprocess.Popen(
            self.command, env={**self.environment, RESTART: str(attempt)},
            preexec_fn=_ends_with_parent(),
        )  # fmt: skip


def _ends_with_parent() -> Callable[[], None] | None:
    """What a child does before its program starts, so that it does not outlive its parent."""
    if sys.platform != "linux":
        return None
    # Before the fork: a child must not load anything.
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def ask() -> None:
        # SIGTERM, which mpiexec takes as the wish to end all ranks.
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return ask


def launch(
    ranks: int,
    program: Sequence[str],
    *,
    hosts: str | None = None,
    survive: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Launch:
    """How to start a program as several ranks; a name that ends in .py is run by this Python.

    `hosts` are machines with the ranks each takes, as in "a:4,b:4". With `survive` the other ranks
    go on when one dies, if this MPI can do that.
    """
    if hosts is not None and not re.fullmatch(_HOSTS, hosts):
        raise ConfigError.build(
            "run --hosts", expected="machines and their ranks, as in a:4,b:4", got=hosts
        )
    starter = _mpiexec(environment)
    is_open_mpi = "Open MPI" in _version(starter) or "OpenRTE" in _version(starter)
    added = {"CALDERA_THREADS": environment.get("CALDERA_THREADS") or str(_threads(ranks, hosts))}
    command = [starter, "-n", str(ranks)]
    if is_open_mpi:
        # Ranks may be more than cores, and threads of a rank must not all be tied to one core.
        command += ["--oversubscribe", "--bind-to", "none"]
        added["OMPI_MCA_mpi_yield_when_idle"] = "1"
        for name in ("OMPI", "PRTE"):
            # A container's only user is root, and Open MPI refuses root unless told twice.
            added[f"{name}_ALLOW_RUN_AS_ROOT"] = added[f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    if survive:
        if not is_open_mpi:
            raise ConfigError.build(
                "run --survive", expected="an MPI with ULFM (Open MPI 5)", got=starter
            )
        command += ["--with-ft", "ulfm"]
    if hosts is not None:
        command += ["--host" if is_open_mpi else "-hosts", hosts]
    if hosts is not None and is_open_mpi:
        # Others send their environment to other machines by themselves.
        names = sorted({*environment, *added, RESTART})
        command += [word for name in names if name.startswith(_SENT) for word in ("-x", name)]
    words = [sys.executable, *program] if program[0].endswith(".py") else list(program)
    return Launch([*command, *words], {**environment, **added})


def _mpiexec(environment: Mapping[str, str]) -> str:
    """The one beside this Python, which is mpi4py's if both came from pip; else the PATH's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = (
        str(beside) if beside.exists() else shutil.which("mpiexec", path=environment.get("PATH"))
    )
    if found is None:
        raise ConfigError.build(
            "run", expected="mpiexec beside this Python or on the PATH", got="none",
            hint="pip install 'caldera[mpi]'",
        )  # fmt: skip
    return found


def _version(starter: str) -> str:
    done = subprocess.run([starter, "--version"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _threads(ranks: int, hosts: str | None) -> int:
    """The cores of a machine shared out: several pools that each want all of them only wait."""
    if hosts is not None:
        ranks = max(int(host.partition(":")[2] or 1) for host in hosts.split(","))
    return max(1, usable_cores() // ranks)
