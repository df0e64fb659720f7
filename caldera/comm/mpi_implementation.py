"""Which MPI this is. All that one needs and another does not know is said here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from caldera.errors import ConfigError

LIBRARY_VARIABLE = "MPI4PY_LIBMPI"
"""Names the library that mpi4py loads instead of the one beside Python, or the folder it is in."""
UNKNOWN = "unknown MPI"
_ANSWERS_WITHIN_S = 20.0
_ASK_MPI4PY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)


@dataclass(frozen=True)
class MpiImplementation:
    """One make of MPI, and how it is used.

    - `says`: how its mpiexec and its library name themselves before their version.
    - `arguments`: what its mpiexec is given; `hosts`: its flag for machines, before "a:4,b:4".
    - `sends`: its flag for a variable that ranks on other machines need; none if it sends all.
    - `survives`: what lets the others go on when a rank dies (ULFM); none if it cannot.
    - `startup`: what mpiexec and ranks speak at the start. One that speaks something else starts
      ranks of which each believes that it is alone.
    - `variables`: what its mpiexec needs in its environment.
    - `defaults`: what its ranks need in theirs, if nobody has said otherwise.
    - `tells_local`: the variable in which its mpiexec tells a rank how many are on its machine.
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
        """Whether its mpiexec starts the ranks of a library, as far as that is known."""
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
    # Hydra, its mpiexec, has the version of the MPICH that it comes with.
    MpiImplementation(
        "MPICH", r"(?:MPICH Version\s*:|HYDRA build details:\s+Version:|CRAY MPICH version)\s*(\S+)"
    ),
)
"""All that are known; the first that recognises itself is taken."""


def implementation(text: str) -> MpiImplementation:
    """Which MPI says this of itself, in `mpiexec --version` or through `Get_library_version`.

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
    """What the ranks of any MPI need: which one it is is known only when it has read this, and each
    ignores what is for another."""
    return {name: value for each in IMPLEMENTATIONS for name, value in each.defaults.items()}


@dataclass(frozen=True)
class Launcher:
    """An mpiexec, and the MPI that it belongs to."""

    path: str
    implementation: MpiImplementation


def find_launcher(environment: Mapping[str, str] = os.environ) -> Launcher | None:
    """The mpiexec of the MPI that mpi4py loads: beside the library that was named, or beside this
    Python, where it is if both came from pip; else the PATH's."""
    named = environment.get(LIBRARY_VARIABLE, "").split(os.pathsep)[0]
    library = Path(named)
    folders = [(library if library.is_dir() else library.parent).parent / "bin"] if named else []
    folders.append(Path(sys.executable).parent)
    beside = [str(folder / "mpiexec") for folder in folders if (folder / "mpiexec").exists()]
    path = beside[0] if beside else shutil.which("mpiexec", path=environment.get("PATH"))
    return None if path is None else Launcher(path, implementation(_says(path, "--version")))


def launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """The same, or an error that says what to install."""
    found = find_launcher(environment)
    if found is None:
        raise ConfigError.build(
            "run",
            expected="mpiexec beside this Python or on the PATH",
            got="none",
            hint="pip install 'caldera[mpi]'",
        )
    return found


def library() -> MpiImplementation | None:
    """The MPI that mpi4py loads, or None if it finds none.

    Another process asks: here it would stay loaded, and a broken one would end this process.
    """
    said = _says(sys.executable, "-c", _ASK_MPI4PY)
    return implementation(said) if said.strip() else None


def _says(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if done.returncode else done.stdout + done.stderr
