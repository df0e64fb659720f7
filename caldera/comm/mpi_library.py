"""MPI itself, through mpi4py: which implementation it is, its start, and waits for its messages."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.children import run_program
from caldera.base.config import settings
from caldera.base.registry import optional_import
from caldera.comm.requests import PollBackoff, Request
from caldera.errors import CommError, ConfigError

if TYPE_CHECKING:
    from caldera.comm.mpi import MpiCommunicator


LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
"""Path of the library, or its folder, that mpi4py loads instead of its default."""
UNKNOWN = "unknown MPI"
_ANSWERS_WITHIN_S = 20.0
_ASK_MPI4PY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)


@dataclass(frozen=True)
class MpiImplementation:
    """An MPI implementation and its command-line conventions.

    - `says`: how its mpiexec and its library name themselves before their version.
    - `arguments`: arguments of its mpiexec; `hosts`: its flag for machines, before "a:4,b:4".
    - `sends`: its flag for a variable that ranks on other machines need; empty if it sends all.
    - `survives`: arguments that let the remaining ranks continue when a rank dies (ULFM); empty if
      unsupported.
    - `startup`: start-up protocol between mpiexec and ranks. With a different protocol each rank
      becomes a world of size 1.
    - `variables`: environment variables that its mpiexec requires.
    - `defaults`: default environment variables of its ranks.
    - `tells_local`: environment variable with the number of ranks on the machine.
    """

    name: str
    says: str = ""
    version: str = ""
    arguments: tuple[str, ...] = ()
    hosts: str = "-hosts"
    sends: str = ""
    survives: tuple[str, ...] = ()
    startup: str = "PMI"
    variables: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    tells_local: str = "MPI_LOCALNRANKS"

    def starts(self, library: MpiImplementation) -> bool:
        """Return True unless its mpiexec is known not to start ranks of this library."""
        return not (self.startup and library.startup) or self.startup == library.startup

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


IMPLEMENTATIONS = (
    MpiImplementation(
        "Open MPI",
        r"(?:Open MPI|OpenRTE)\)? v?(\d[\w.]*)",
        # Ranks may be more than cores, and threads of a rank must not all be tied to one core.
        arguments=("--oversubscribe", "--bind-to", "none"),
        hosts="--host",
        sends="-x",
        survives=("--with-ft", "ulfm"),
        startup="PMIx",
        # A container's only user is root, and Open MPI refuses root unless told twice.
        variables={
            f"{name}_ALLOW_RUN_AS_ROOT{again}": "1"
            for name in ("OMPI", "PRTE")
            for again in ("", "_CONFIRM")
        },
        defaults={
            # Ranks that share cores must let each other run while they wait.
            "OMPI_MCA_mpi_yield_when_idle": "1",
            # So that segments leave without asking the receiver, who may be asleep.
            "OMPI_MCA_btl_tcp_eager_limit": str(1 << 19),
            "OMPI_MCA_btl_tcp_max_send_size": str(1 << 19),
        },
        tells_local="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    MpiImplementation("Intel MPI", r"Intel\(R\) MPI Library\D*(\d[\w.]*)"),
    MpiImplementation("MVAPICH", r"MVAPICH\S* Version\s*:\s*(\S+)"),
    # Its mpiexec, Hydra, has the version of the MPICH that contains it.
    MpiImplementation(
        "MPICH", r"(?:MPICH Version\s*:|HYDRA build details:\s+Version:|CRAY MPICH version)\s*(\S+)"
    ),
)
"""Supported MPI implementations; the first whose pattern matches is selected."""


def implementation(text: str) -> MpiImplementation:
    """Return the MPI identified by the output of `mpiexec --version` or `Get_library_version`.

    >>> str(implementation("mpiexec (Open MPI) 5.0.11"))
    'Open MPI 5.0.11'
    >>> str(implementation("MPICH Version:      4.3.2"))
    'MPICH 4.3.2'
    """
    for each in IMPLEMENTATIONS:
        if found := re.search(each.says, text):
            return replace(each, version=found[1])
    return MpiImplementation(UNKNOWN, startup="")


def defaults_for_ranks() -> dict[str, str]:
    """Return environment variables for ranks of any MPI; each library ignores unknown variables.

    The library is known only after it has read its environment.
    """
    return {name: value for each in IMPLEMENTATIONS for name, value in each.defaults.items()}


@dataclass(frozen=True)
class Launcher:
    """An mpiexec, and the MPI that it belongs to."""

    path: str
    implementation: MpiImplementation


def find_launcher(environment: Mapping[str, str] = os.environ) -> Launcher | None:
    """Return the mpiexec of the MPI that mpi4py loads, or None.

    It is searched for next to the named library, next to this Python (where pip installs both), and
    then in the PATH.
    """
    named = environment.get(LIBRARY_VARIABLE, "").split(os.pathsep)[0]
    library = Path(named)
    folders = [(library if library.is_dir() else library.parent).parent / "bin"] if named else []
    folders.append(Path(sys.executable).parent)
    beside = [str(folder / "mpiexec") for folder in folders if (folder / "mpiexec").exists()]
    path = beside[0] if beside else shutil.which("mpiexec", path=environment.get("PATH"))
    return None if path is None else Launcher(path, implementation(_reports(path, "--version")))


def launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Return `find_launcher()`, or raise an error that names the package to install."""
    found = find_launcher(environment)
    if found is None:
        raise ConfigError.build(
            "run",
            expected="mpiexec next to this Python or on the PATH",
            got="none",
            hint="pip install 'caldera[mpi]'",
        )
    return found


def library() -> MpiImplementation | None:
    """Return the MPI that mpi4py loads, or None.

    A subprocess loads it: in this process it would stay loaded, and a broken library would crash
    it.
    """
    said = _reports(sys.executable, "-P", "-c", _ASK_MPI4PY)
    return implementation(said) if said.strip() else None


def _reports(*command: str) -> str:
    done = run_program(*command, seconds=_ANSWERS_WITHIN_S)
    if done is None or done.returncode:
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def in_pool() -> bool:
    """Return True if mpi4py.futures shares the ranks: one runs the program, the others its tasks.

    >>> in_pool()
    False
    """
    core: Any = sys.modules.get("mpi4py.futures._core")
    if core is None or core.SharedPool is not None:
        return core is not None
    with suppress(RuntimeError):
        return core.get_comm_server() is not None
    return False


PACKAGE = "caldera[mpi]"
STALLS_BEFORE_ABORT = 10
"""A job is aborted after this multiple of `settings.stall_s`."""
SHORTEST_NAP_S, LONGEST_NAP_S = 2e-5, 2e-3
SHORTEST_MESSAGE = 1 << 12
"""Bytes below which a message takes no less time."""
SHORTER = 0.8
"""Of the last nap for a message is tried for the next one of that size."""
LOOKS = 8
"""Number of polls after a nap: Open MPI reads its sockets in one call of eight."""


@cache
def mpi() -> Any:
    """Return mpi4py's MPI module, imported (and MPI initialised) at the first call."""
    for name, value in defaults_for_ranks().items():
        os.environ.setdefault(name, value)
    with _all_ranks_start_within(STALLS_BEFORE_ABORT * settings.stall_s):
        return optional_import("mpi4py.MPI", PACKAGE, "training on several processes")


@contextmanager
def _all_ranks_start_within(seconds: float) -> Iterator[None]:
    """Abort if MPI does not start within `seconds`.

    MPI starts when all ranks are present. If one rank exits before, the remaining ranks block
    inside a call that runs no Python, so the alarm is not a Python thread either.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@cache
def loaded() -> MpiImplementation:
    """Return the loaded MPI implementation."""
    return implementation(mpi().Get_library_version())


@cache
def is_gpu_aware() -> bool:
    """Return True if this MPI reports that it accesses GPU memory directly."""
    return reports_gpu_support(ctypes.CDLL(mpi().__file__))


def reports_gpu_support(library: Any) -> bool:
    """Return the answer of Open MPI's query, else of MPICH's; False for an MPI without either."""
    with suppress(AttributeError):
        return bool(library.MPIX_Query_cuda_support())
    supported = ctypes.c_int(0)
    with suppress(AttributeError):
        # The first GPU type of MPICH is CUDA.
        failed = library.MPIX_GPU_query_support(0, ctypes.byref(supported))
        return not failed and bool(supported.value)
    return False


@cache
def many_threads() -> bool:
    """Return True if several threads may communicate concurrently."""
    return bool(mpi().Query_thread() == mpi().THREAD_MULTIPLE)


@cache
def shares_cores() -> bool:
    """Return True if this machine has more ranks than cores.

    A rank that waits busily, as MPI does, then takes time from the rank that it waits for.
    """
    told = os.environ.get(loaded().tells_local, "")
    # All cores of the machine: a scheduler may bind each rank to a subset.
    return told.isdigit() and int(told) > (os.cpu_count() or 1)


def sleep_until(is_there: Callable[[], bool]) -> None:
    """Look again and again, and sleep in between: longer the longer it takes."""
    nap = SHORTEST_NAP_S
    while not any(is_there() for _ in range(LOOKS)):
        time.sleep(nap)
        nap = min(2 * nap, LONGEST_NAP_S)


def finalize_asynchronously() -> None:
    """Let MPI finalise without a rank that has died.

    On exit, Open MPI synchronises all started ranks in a call that runs no Python, and it does not
    always learn that a rank is gone.
    """
    with suppress(ValueError):  # another MPI has no such switch
        ctypes.c_bool.in_dll(ctypes.CDLL(mpi().__file__), "ompi_async_mpi_finalize").value = True


@dataclass(eq=False)
class MpiRequest(Request):
    """A message under way, to or from a peer; it keeps the buffer that MPI reads or writes."""

    owner: MpiCommunicator
    request: Any
    buffer: np.ndarray
    expected: int
    peer: int
    shorter: bool = False

    def wait(self) -> None:
        owner = self.owner
        owner.blocked, owner.peer = time.monotonic(), self.peer
        try:
            if owner.backoff is not None and self._arrives_meanwhile(owner.backoff):
                return
            if shares_cores():
                sleep_until(self.test)
                return
            if self.expected < 0:
                self.request.Wait()
                return
            status = mpi().Status()
            self.request.Wait(status)
        except mpi().Exception as error:
            raise owner.failure(error) from error
        finally:
            owner.blocked = None
        self._arrived(status)

    def _arrives_meanwhile(self, backoff: PollBackoff) -> bool:
        """Sleep until the request completes or a thread waits for it; return True if it completed.

        The length of a nap approaches the transfer time of a message: each wake-up takes time from
        computing threads, and a long nap delays the waiting ranks.
        """
        owner, size = self.owner, max(self.buffer.nbytes, SHORTEST_MESSAGE)
        nap = min(max(owner.pace * size, SHORTEST_NAP_S), LONGEST_NAP_S)
        while not self._is_there(LOOKS):
            if backoff.is_interrupted:
                return False
            backoff.sleep(nap)
            owner.pace = nap / size
            nap = min(2 * nap, LONGEST_NAP_S)
        owner.pace *= SHORTER
        return True

    def test(self) -> bool:
        return self._is_there(1)

    def _is_there(self, looks: int) -> bool:
        status, look = mpi().Status(), self.request.Test
        try:
            done = any(look(status) for _ in range(looks))
        except mpi().Exception as error:
            raise self.owner.failure(error) from error
        if done:
            self._arrived(status)
        return done

    def _arrived(self, status: Any) -> None:
        # A completed request stays complete, but MPI reports its length only once.
        expected, self.expected = self.expected, -1
        if expected < 0:
            return
        self.source = status.Get_source()
        self.received = status.Get_count(mpi().BYTE)
        if self.received != expected and not self.shorter:
            raise CommError.build(
                f"receiving from rank {self.source}",
                expected=f"{expected} bytes",
                got=str(self.received),
            )
