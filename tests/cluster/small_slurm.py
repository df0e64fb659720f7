"""A Slurm of a few nodes on this machine: one slurmctld and a slurmd for each node."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo")
START_S = 120.0
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
DebugFlags=NO_CONF_HASH
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
PartitionName=all Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace_s} MaxTime=INFINITE State=UP
{settings}"""


class NoSlurmError(Exception):
    """The reason why there is no Slurm to test with."""


@dataclass(frozen=True)
class SmallSlurm:
    """The nodes, the variables that Slurm's commands need, and a daemon for each node."""

    nodes: Sequence[str]
    variables: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def state(self) -> str:
        """Return the state of all nodes, in one line."""
        return " ".join(self._answer("sinfo", "--noheader", "--format=%T").split())

    def start(self, name: str, *command: str) -> None:
        """Start a daemon."""
        self.daemons[name] = subprocess.Popen(
            command,
            env={**os.environ, **self.variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        # Machines have separate folders for temporary files, where the PMIx plugin leaves some.
        shared = Path(self.variables["SLURM_CONF"])
        own = shared.with_name(f"{node}.conf")
        # A killed daemon leaves files that a step of the same number would have to create.
        shutil.rmtree(shared.with_name(f"spool-{node}"), ignore_errors=True)
        shared.with_name(f"spool-{node}").mkdir()
        shutil.rmtree(shared.with_name(f"tmp-{node}"), ignore_errors=True)
        shared.with_name(f"tmp-{node}").mkdir()
        own.write_text(shared.read_text().replace("/tmp\nDebug", f"/tmp-{node}\nDebug"))
        self.start(node, _program("slurmd"), "-D", "-f", str(own), "-N", node)

    def resume(self, node: str) -> None:
        """Make a node usable that was drained or down."""
        self._answer("scontrol", "update", f"nodename={node}", "state=resume")

    def kill_node(self, node: str, folder: Path) -> None:
        """Kill a node's daemon, and what the jobs of a folder run there."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        daemons, others = set(), set()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                environment = (path / "environ").read_bytes().split(b"\0")
                is_there = f"SLURMD_NODENAME={node}".encode() in environment
                if is_there and Path(os.readlink(path / "cwd")) == folder:
                    others.add(int(path.name))
                    parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                    if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
                        daemons.add(parent)
        # First those that would report the end of the others.
        for process in (*daemons, *others):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _answer(self, *command: str) -> str:
        environment = {**os.environ, **self.variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.stdout


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
def small_slurm(
    folder: Path, nodes: int = 1, processors: int = 4, *, settings: str = "", grace_s: int = 0
) -> Iterator[SmallSlurm]:
    """Start Slurm in a folder, and end it; preempted jobs have `grace_s` seconds."""
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
            host=host,
            ports=ports,
            user=getpass.getuser(),
            folder=folder,
            nodes="\n".join(lines),
            settings=settings,
            grace_s=grace_s,
        )
    )
    made = SmallSlurm(names, {"SLURM_CONF": str(configuration)})
    made.start("slurmctld", programs["slurmctld"], "-D", "-c")
    for name in names:
        made.start_node(name)
    try:
        until = time.monotonic() + START_S
        while (state := made.state()) != "idle":
            if time.monotonic() > until or any(
                each.poll() is not None for each in made.daemons.values()
            ):
                raise NoSlurmError(f"Slurm does not start here: its nodes are {state!r}")
            time.sleep(0.1)
        yield made
    finally:
        for each in reversed(made.daemons.values()):
            each.terminate()
        for each in made.daemons.values():
            try:
                each.wait(5)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
