"""A Slurm of a few nodes on this machine: one slurmctld and a slurmd for each node."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo")
START_S = 20.0
_CONFIGURATION = """\
ClusterName=caldera
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class NoSlurmError(Exception):
    """The reason why there is no Slurm to test with."""


@dataclass(frozen=True)
class SmallSlurm:
    """The nodes, and the variables that Slurm's commands need."""

    nodes: Sequence[str]
    variables: dict[str, str]

    def state(self) -> str:
        """Return the state of all nodes, in one line."""
        command = ["sinfo", "--noheader", "--format=%T"]
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True
        )
        return " ".join(done.stdout.split())


def _program(name: str) -> str:
    # Daemons are in folders that the PATH of a user may leave out.
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        raise NoSlurmError(f"{name} of Slurm is not installed (Debian: slurm-wlm)")
    return path


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


@contextmanager
def small_slurm(folder: Path, nodes: int = 1, processors: int = 4) -> Iterator[SmallSlurm]:
    """Start Slurm in a folder, and end it."""
    programs = {name: _program(name) for name in PROGRAMS}
    for name in ("state", "tmp"):
        (folder / name).mkdir(parents=True)
    ports, host = _free_ports(nodes + 1), socket.gethostname()
    names = [f"n{number}" for number in range(1, nodes + 1)]
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={processors} RealMemory=500"
        for name, port in zip(names, ports[1:], strict=True)
    ]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            host=host, ports=ports, user=getpass.getuser(), folder=folder, nodes="\n".join(lines)
        )
    )
    made = SmallSlurm(names, {"SLURM_CONF": str(configuration)})
    commands = [[programs["slurmctld"], "-D", "-c"]]
    commands += [[programs["slurmd"], "-D", "-N", name] for name in names]
    daemons = [
        subprocess.Popen(
            command,
            env={**os.environ, **made.variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        until = time.monotonic() + START_S
        while (state := made.state()) != "idle":
            if time.monotonic() > until or any(each.poll() is not None for each in daemons):
                raise NoSlurmError(f"Slurm does not start here: its nodes are {state!r}")
            time.sleep(0.1)
        yield made
    finally:
        for each in reversed(daemons):
            each.terminate()
        for each in daemons:
            try:
                each.wait(5)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
