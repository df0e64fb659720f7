"""Machines of a job: their addresses, and the number of ranks that each can run."""

from __future__ import annotations

import os
import platform
import re
import socket
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from caldera.base.arguments import require
from caldera.base.children import run_program
from caldera.base.machine import usable_cores
from caldera.errors import ConfigError

_ANY_PORT = 9
"""Port of a UDP socket that sends no data."""
_SIOCGIFADDR = 0x8915


def is_loopback(host: str) -> bool:
    """Return True if a host name denotes the local machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    return host in ("", "localhost", "::1") or host.startswith("127.")


def host_names() -> list[str]:
    """Return the names and addresses that other machines may have for this one."""
    name = socket.gethostname()
    found = [name]
    with suppress(OSError):
        found += [str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)]
    return list(dict.fromkeys(found))


def address_towards(host: str) -> str:
    """Return the address of this machine on the route to a host.

    >>> address_towards("127.0.0.1")
    '127.0.0.1'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Selects a route; connecting a datagram socket sends no data.
        probe.connect((host, _ANY_PORT))
        return str(probe.getsockname()[0])


def interface_address(interface: str, where: str = "interface") -> str:
    """Return the IPv4 address of a network interface of this machine, such as "eth0".

    >>> interface_address("lo")
    '127.0.0.1'
    """
    names = [name for _, name in socket.if_nameindex()]
    found = interface if isinstance(interface, str) else ""
    with (
        suppress(ImportError, OSError, ValueError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        import fcntl

        request = struct.pack("256s", found.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    raise ConfigError.build(
        where,
        expected=f"a network interface with an IPv4 address, one of {', '.join(names)}",
        got=repr(interface),
    )


_HOSTS = r"[^:,]+(:\d+)?(,[^:,]+(:\d+)?)*"
_ANSWERS_WITHIN_S = 10.0
_DEAD = re.compile(r"\*|down|fail|unk|power|drained|no_?resp|future", re.IGNORECASE)
"""Slurm states of a node that cannot run more ranks; `*` marks a node without an answer."""


def read_hosts(text: str, where: str = "run --hosts") -> dict[str, int]:
    """Return the number of ranks by machine.

    >>> read_hosts("a:4,b:2,c")
    {'a': 4, 'b': 2, 'c': 1}
    """
    require(re.fullmatch(_HOSTS, text), where, "machines and their ranks, as in a:4,b:4", text)
    pairs = [part.partition(":") for part in text.split(",")]
    return {host: int(ranks or 1) for host, _, ranks in pairs}


def hosts_text(slots: Mapping[str, int], ranks: int) -> str:
    """Return machines and ranks as mpiexec reads them, without machines that get no rank.

    >>> hosts_text({"a": 4, "b": 4, "c": 4}, 6)
    'a:4,b:2'
    """
    parts, left = [], ranks
    for host, most in slots.items():
        taken = min(most, left)
        left -= taken
        parts += [f"{host}:{taken}"] if taken else []
    return ",".join(parts)


def live_slots(
    hosts: str | None, environment: Mapping[str, str] = os.environ
) -> dict[str, int] | None:
    """Return the number of ranks per live machine; None for this machine only.

    The machines are listed in `hosts`, or else in the Slurm allocation of this process.
    """
    if hosts is not None:
        given = read_hosts(hosts)
        with ThreadPoolExecutor(len(given)) as pool:
            answers = list(pool.map(_answers, given))
        return {host: given[host] for host, alive in zip(given, answers, strict=True) if alive}
    nodes = environment.get("SLURM_JOB_NODELIST")
    return None if not nodes else _slurm_slots(nodes, environment)


def local_slots() -> int:
    """Return the number of ranks that this machine takes: one for each usable core."""
    return usable_cores()


def _answers(host: str) -> bool:
    if host in ("localhost", "127.0.0.1", platform.node()):
        return True
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_ANSWERS_WITHIN_S:.0f}")
    done = run_program("ssh", *options, host, "true", seconds=2 * _ANSWERS_WITHIN_S)
    return done is not None and done.returncode == 0


def _slurm_slots(nodes: str, environment: Mapping[str, str]) -> dict[str, int]:
    per_node = re.match(r"\d+", environment.get("SLURM_TASKS_PER_NODE", ""))
    cores = re.match(r"\d+", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    ranks = int((per_node or cores or ["1"])[0])
    # A node that was lost is no longer part of the allocation, also after it has come back.
    if job := environment.get("SLURM_JOB_ID"):
        nodes = "".join(_asked("squeue", "-hj", job, "-o", "%N")) or nodes
    states = dict(line.split(maxsplit=1) for line in _asked("sinfo", "-hNn", nodes, "-o", "%N %T"))
    return {node: ranks for node, state in states.items() if not _DEAD.search(state)}


def _asked(*command: str) -> list[str]:
    """Return the lines that a command of Slurm prints."""
    done = run_program(*command, seconds=2 * _ANSWERS_WITHIN_S)
    if done is None or done.returncode:
        raise ConfigError.build(
            "run --ranks",
            expected=f"the nodes of this job from {command[0]}",
            got="no answer" if done is None else done.stderr.decode(errors="replace").strip(),
            hint="name the machines with --hosts",
        )
    return [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
