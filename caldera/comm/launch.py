"""Starting several processes with the mpiexec that belongs to this Python."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caldera.base.machine import usable_cores
from caldera.comm.mpi_implementation import launcher
from caldera.errors import ConfigError

RESTART = "CALDERA_RESTART"
"""How often a program was started again; `caldera run` sets this variable."""
_PR_SET_PDEATHSIG = 1
_HOSTS = r"[^:,]+(:\d+)?(,[^:,]+(:\d+)?)*"
_SENT = ("CALDERA_", "MPI4PY_", "OMPI_MCA_", "OMP_", "OPENBLAS_", "PYTHON")
"""Variables that ranks on other machines need as well."""


@dataclass(frozen=True)
class Launch:
    """A command that starts all ranks, and the environment it needs."""

    command: list[str]
    environment: dict[str, str]

    def start(self, attempt: int = 0) -> subprocess.Popen[bytes]:
        """Start it. On Linux the system ends it if this process is killed before it is over."""
        return subprocess.Popen(
            self.command,
            env={**self.environment, RESTART: str(attempt)},
            preexec_fn=_ends_with_parent(),
        )


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
    starter = launcher(environment)
    mpi = starter.implementation
    if survive and not mpi.survives:
        raise ConfigError.build(
            "run --survive",
            expected="an MPI with ULFM (Open MPI 5)",
            got=f"{mpi} ({starter.path})",
            hint="--restarts starts all ranks again",
        )
    defaults = {name: value for name, value in mpi.defaults.items() if name not in environment}
    added = {**mpi.variables, **defaults}
    added["CALDERA_THREADS"] = environment.get("CALDERA_THREADS") or str(_threads(ranks, hosts))
    command = [starter.path, "-n", str(ranks), *mpi.arguments]
    if survive:
        command += mpi.survives
    if hosts is not None:
        command += [mpi.hosts, hosts]
    if hosts is not None and mpi.sends:
        names = sorted({*environment, *added, RESTART})
        command += [word for name in names if name.startswith(_SENT) for word in (mpi.sends, name)]
    words = [sys.executable, *program] if program[0].endswith(".py") else list(program)
    return Launch([*command, *words], {**environment, **added})


def _threads(ranks: int, hosts: str | None) -> int:
    """The cores of a machine shared out: several pools that each want all of them only wait."""
    if hosts is not None:
        ranks = max(int(host.partition(":")[2] or 1) for host in hosts.split(","))
    return max(1, usable_cores() // ranks)
