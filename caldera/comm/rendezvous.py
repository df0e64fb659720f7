"""World over sockets, for launchers that export RANK, WORLD_SIZE and MASTER_ADDR.

torchrun, Kubeflow's PyTorchJob, SageMaker and plain scripts start processes without MPI. Rank 0
listens on a separate port, since torchrun's agent holds MASTER_PORT. All ranks connect to it, then
to each other. The candidates for that port and the key of every handshake are derived from a secret
and from the job's id, attempt and size. So ranks of another job, or of an earlier attempt, have
another key and are rejected.

On one machine the secret is a file that only this user can read, made by the first rank. Across
machines it is a file that the user provides on each machine, named by `CALDERA_KEY_FILE`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.base.file_access import read_secret_file
from caldera.base.file_cache import FileCache
from caldera.base.launchers import ATTEMPT
from caldera.comm.endpoint import Endpoint
from caldera.comm.listener import EVERYWHERE, LOOPBACK, Listener, connect
from caldera.comm.local_sockets import SocketCommunicator, gather_links, meet_others
from caldera.comm.mpi_library import STALLS_BEFORE_ABORT
from caldera.comm.shared_memory import machines_of
from caldera.errors import CommError, ConfigError

KEY_FILE, PORTS = "CALDERA_KEY_FILE", "CALDERA_PORTS"
SHORTEST_KEY = 16
"""Bytes: a recorded handshake lets a stranger try keys, so they must be too many to try."""
CANDIDATES = 8
LOWEST_PORT, HIGHEST_PORT = 10_240, 32_767
"""Below the range that Linux uses for outgoing connections."""
REPORT_S = 20.0
_PAUSE_S = 0.1
_SHORTEST_KNOCK_S, _LONGEST_KNOCK_S = 0.2, 5.0
"""Time limits for a single attempt at a port: another program may listen there and stay silent."""
_JOB = ("WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", *ATTEMPT)
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True)
class Meeting:
    """Address and key at which the ranks of a job meet.

    - `host`: the address of rank 0; `ports`: its candidates, in order.
    - `own_ports`: candidate ports of the remaining ranks.
    - `interface`: the address at which all ranks listen.
    - `first_key`: the key of rank 0's port. It differs from the key of all other ports, since a
      rank that tries all candidates must not confuse rank 2 with rank 0.
    """

    rank: int
    size: int
    host: str
    interface: str
    key: bytes
    ports: Sequence[int]
    own_ports: Sequence[int]

    @property
    def first_key(self) -> bytes:
        return hmac.new(self.key, b"rank 0", hashlib.sha256).digest()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Meeting:
        """Return the meeting that the variables of a launcher describe."""
        size, rank = int(environment["WORLD_SIZE"]), environment["RANK"].strip()
        require(
            rank.isascii() and rank.isdigit() and int(rank) < size,
            "world",
            f"RANK from 0 to {size - 1}",
            repr(rank),
            error=CommError,
        )
        taken = environment.get("MASTER_PORT", "").strip()
        require(
            taken,
            "world",
            "MASTER_PORT, which identifies the job",
            "no such variable",
            hint="set it to the same number for all ranks of a job, as PyTorch requires",
            error=CommError,
        )
        local = environment.get("LOCAL_WORLD_SIZE", "").strip() == str(size)
        host = environment["MASTER_ADDR"].strip()
        key_file = environment.get(KEY_FILE)
        is_one_machine = local or (not key_file and _is_loopback(host))
        secret = _secret_in(key_file) if key_file else _secret_of_machine(is_one_machine, size)
        job = json.dumps([environment.get(name, "") for name in _JOB])
        key = hmac.new(secret, job.encode(), hashlib.sha256).digest()
        given = _ports_in(environment[PORTS]) if environment.get(PORTS) else ()
        ports = [port for port in given or _ports_of(key) if str(port) != taken]
        return cls(
            rank=int(rank),
            size=size,
            host=LOOPBACK if is_one_machine else host,
            interface=LOOPBACK if is_one_machine else EVERYWHERE,
            key=key,
            ports=ports,
            own_ports=ports[::-1] if given and not is_one_machine else (0,),
        )


def join_world(environment: Mapping[str, str]) -> SocketCommunicator:
    """Return the communicator of all ranks of the job; every rank must call it."""
    meeting = Meeting.of(environment)
    seconds = STALLS_BEFORE_ABORT * settings.stall_s or threading.TIMEOUT_MAX
    try:
        endpoint = Endpoint(meeting.rank, _links(meeting, seconds), key=meeting.key)
    except OSError as error:
        raise CommError.build(
            "world",
            expected=f"{meeting.size} ranks that stay until all are connected",
            got=str(error),
            hint=f"the error of another rank is the cause; a firewall may be one, see {PORTS}",
        ) from error
    everybody = range(meeting.size)
    endpoint.nodes = machines_of(SocketCommunicator(endpoint, everybody, "start"))
    return SocketCommunicator(endpoint, everybody, "world", timeout_s=seconds)


def _links(meeting: Meeting, seconds: float) -> dict[int, socket.socket]:
    report = _Report(meeting)
    is_first = meeting.rank == 0
    key = meeting.first_key if is_first else meeting.key
    ports = meeting.ports if is_first else meeting.own_ports
    with closing(Listener(key, meeting.interface, ports=ports)) as listener:
        if is_first:
            _check_alone(meeting, listener.port)
            return gather_links(listener, meeting.size, seconds, report.when_late)
        master = _master(meeting, listener.port, time.monotonic() + seconds, report)
        return meet_others(listener, master, meeting.host, meeting.rank, meeting.size, seconds)


class _Report:
    """A line on the standard error, once, if ranks take long to meet."""

    def __init__(self, meeting: Meeting) -> None:
        self._at = time.monotonic() + REPORT_S
        self._meeting = meeting

    def when_late(self) -> None:
        """Write the line if it is due."""
        if time.monotonic() < self._at:
            return
        self._at = float("inf")
        here = self._meeting
        ports = ", ".join(map(str, here.ports[:CANDIDATES]))
        wanted = "the remaining ranks" if here.rank == 0 else f"rank 0 at {here.host}"
        sys.stderr.write(
            f"caldera: rank {here.rank} of {here.size} has waited {REPORT_S:.0f} s for {wanted}, "
            f"on port {ports}; all ranks need the same {KEY_FILE}, and {PORTS}=FIRST-LAST "
            "where a firewall lets only some ports through\n"
        )


def _check_alone(meeting: Meeting, own_port: int) -> None:
    """Raise if rank 0 of a job with the same name listens at a candidate before this one."""
    for port in meeting.ports[: meeting.ports.index(own_port)]:
        try:
            connect(meeting.first_key, port, 0, 0, _SHORTEST_KNOCK_S, meeting.host).close()
        except (OSError, CommError):
            continue
        raise CommError.build(
            "world",
            expected="one rank 0",
            got=f"another one at port {port}",
            hint="set a different MASTER_PORT for each job, and a different RANK for each process",
        )


def _master(meeting: Meeting, own_port: int, until: float, report: _Report) -> socket.socket:
    """Return the socket to rank 0, which listens at one of the candidates, or will."""
    key, knock = meeting.first_key, _SHORTEST_KNOCK_S
    while time.monotonic() < until:
        for port in meeting.ports:
            seconds = min(knock, max(until - time.monotonic(), _PAUSE_S))
            try:
                return connect(key, port, meeting.rank, own_port, seconds, meeting.host)
            except (OSError, CommError):
                # Rank 0 has not started, its name is not known yet, or another program listens.
                report.when_late()
        knock = min(2 * knock, _LONGEST_KNOCK_S)
        time.sleep(_PAUSE_S)
    raise CommError.build(
        "world",
        expected=f"rank 0 at {meeting.host}, on port {', '.join(map(str, meeting.ports))}",
        got="no answer from a process with the same key",
        hint=f"start all ranks with the same {KEY_FILE}; {PORTS} chooses the ports",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _secret_of_machine(is_one_machine: bool, size: int) -> bytes:
    require(
        is_one_machine,
        "world",
        f"{KEY_FILE}, since ranks on several machines need a common secret",
        "no such variable",
        hint="write the secret with `(umask 077; head -c 32 /dev/urandom | base64 > FILE)` and "
        f"give all machines the file (on Kubernetes as a Secret); or use MPI: caldera run "
        f"-n {size} PROGRAM, or an MPIJob",
        error=CommError,
    )
    try:
        return FileCache("world").secret()
    except OSError as error:
        raise ConfigError.build(
            "world",
            expected="a folder for a secret that only this user can read",
            got=str(error),
            hint=f"set CALDERA_CACHE to a folder that you own, or {KEY_FILE} to a file with mode "
            "0600",
        ) from error


def _secret_in(name: str) -> bytes:
    try:
        secret = read_secret_file(Path(name)).strip()
    except OSError as error:
        raise ConfigError.build(
            KEY_FILE,
            expected="a file that this user can read, and no other",
            got=error.strerror or str(error),
            hint=f"chmod 600 {name}; in Kubernetes, defaultMode: 0400 of the volume",
        ) from error
    require(
        len(secret) >= SHORTEST_KEY,
        KEY_FILE,
        f"a secret of at least {SHORTEST_KEY} bytes",
        f"{len(secret)} bytes in {name}",
        hint="head -c 32 /dev/urandom | base64 writes one",
    )
    return secret


def _ports_in(text: str) -> list[int]:
    found = _RANGE.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    require(0 < first <= last < 1 << 16, PORTS, "ports as in 29600-29700", repr(text))
    return list(range(first, last + 1))


def _ports_of(key: bytes) -> list[int]:
    """Return the candidates that all ranks derive from their key.

    >>> _ports_of(b"key") == _ports_of(b"key"), len(_ports_of(b"key"))
    (True, 8)
    """
    digest = hashlib.blake2b(b"ports", key=key).digest()
    numbers = [int.from_bytes(digest[4 * n : 4 * n + 4]) for n in range(CANDIDATES)]
    return [LOWEST_PORT + number % (HIGHEST_PORT - LOWEST_PORT + 1) for number in numbers]
