"""A slow network on one machine: a network namespace for each rank, its link held to a rate.

Each namespace has one link to a bridge, full duplex, with a token bucket (`tbf`) in each direction.
MPI sees them as machines of their own and is told to use TCP, so shared memory cannot go around
the links. It takes root, `ip` and `tc`.

    with Links(4, "100mbit") as links:
        output = links.run(["train.py"])
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from caldera.comm.supervision import LaunchCommand, launch

ROOT = Path(__file__).parents[2]
BURST = {"100mbit": "72kb", "1gbit": "256kb"}
"""What may leave at once. The kernel hands out up to 64 KiB in one piece, 45 packets with a header
each. `tbf` cuts up what is more than this and sends each packet by itself, which costs the cores
twenty times as much: a network card does that by itself."""
QUEUE = "50ms"


class Links:
    """Namespaces for some ranks with links of a rate, gone again at the end of the block."""

    def __init__(self, ranks: int, rate: str) -> None:
        self.ranks = ranks
        self.rate = rate
        # Names of interfaces are short, and two benchmarks may run at once.
        number = os.getpid() % 10000
        self._bridge = f"cb{number}"
        self._hosts = [f"ch{number}x{rank}" for rank in range(ranks)]
        self._net = f"10.{77 + number // 250}.{number % 250}"
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for host in self._hosts:
            # A namespace takes its end of a link with it, but only some time later.
            _try(f"ip link del {host}v")
            _try(f"ip netns del {host}")
        _try(f"ip link del {self._bridge}")
        self._folder.cleanup()

    def _make(self) -> None:
        _do(f"ip link add {self._bridge} type bridge")
        _do(f"ip addr add {self._net}.254/24 dev {self._bridge}")
        _do(f"ip link set {self._bridge} up")
        shape = f"root tbf rate {self.rate} burst {BURST[self.rate]} latency {QUEUE}"
        for rank, host in enumerate(self._hosts):
            near = f"{host}v"
            _do(f"ip netns add {host}")
            _do(f"ip link add {near} type veth peer name eth0 netns {host}")
            _do(f"ip link set {near} master {self._bridge} up")
            _do(f"ip -n {host} addr add {self.address(rank)}/24 dev eth0")
            _do(f"ip -n {host} link set eth0 up")
            _do(f"ip -n {host} link set lo up")
            _do(f"ip netns exec {host} tc qdisc add dev eth0 {shape}")
            _do(f"tc qdisc add dev {near} {shape}")

    def address(self, rank: int) -> str:
        """Of a rank's end of its link."""
        return f"{self._net}.{rank + 1}"

    def inside(self, rank: int, command: list[str]) -> list[str]:
        """Return the command that runs another in a rank's namespace."""
        return ["ip", "netns", "exec", self._hosts[rank], *command]

    def job(self, program: list[str], **variables: str) -> LaunchCommand:
        """Return the command that runs a program as one rank in each namespace."""
        agent = Path(self._folder.name) / "agent"
        # mpiexec starts a daemon on each machine through this, as it would through ssh.
        agent.write_text(
            "#!/bin/sh\nhost=$1\nshift\n"
            'exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"\n'
        )
        agent.chmod(0o755)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,tcp",
            "CALDERA_THREADS": "1",
            "CALDERA_RESTART": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "PRTE_MCA_plm_ssh_agent": str(agent),
            # Open MPI 4 has another name for it.
            "OMPI_MCA_plm_rsh_agent": str(agent),
            **variables,
        }
        hosts = ",".join(f"{host}:1" for host in self._hosts)
        return launch(self.ranks, program, hosts=hosts, environment=environment)

    def run(self, program: list[str], **variables: str) -> str:
        """Run a program as one rank in each namespace; what it prints."""
        job = self.job(program, **variables)
        done = subprocess.run(
            job.command, env=job.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(job.command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def missing() -> str:
    """Return the requirement that this machine lacks for such a network; "" if it has all."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    absent = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not found"
    try:
        with Links(1, "1gbit"):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.decode(errors='replace').strip()}"


def _do(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def _try(command: str) -> None:
    subprocess.run(command.split(), check=False, capture_output=True)
