"""Connection of workers to the process that started them, and to each other.

An offer contains everything a worker needs to connect, as plain data: addresses, port, key and
interface.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from caldera.comm.hosts import address_towards, host_names, interface_address, is_loopback
from caldera.comm.listener import EVERYWHERE, LOOPBACK, Listener, connect
from caldera.comm.local_sockets import meet_others
from caldera.errors import CommError

_HOST_S = 10.0
"""Seconds for an address, of which there are several: a firewall may answer none."""


def listening_address(host: str, interface: str) -> str:
    """Return the address to listen at: loopback, one interface, or all interfaces."""
    if interface:
        return interface_address(interface)
    return LOOPBACK if is_loopback(host) else EVERYWHERE


def offer(listener: Listener, host: str, interface: str = "") -> dict[str, Any]:
    """Return the offer of a process that listens and has the address `host`."""
    if interface:
        hosts = [interface_address(interface)]
    else:
        names = [name for name in host_names() if not is_loopback(name)]
        hosts = [host] if is_loopback(host) else [host, *names]
    key = listener.key.hex()
    return {"hosts": hosts, "port": listener.port, "key": key, "interface": interface}


def reach(offered: Mapping[str, Any], number: int, seconds: float) -> socket.socket:
    """Return a socket to the process of an offer."""
    return _reach(offered, number, seconds, listens=False)[0]


def join_links(
    offered: Mapping[str, Any], number: int, size: int, seconds: float
) -> dict[int, socket.socket]:
    """Return sockets to all other processes for process `number` of `size`; 0 made the offer."""
    until = time.monotonic() + seconds
    link, host, listener = _reach(offered, number, seconds, listens=True)
    assert listener is not None
    with closing(listener):
        try:
            return meet_others(listener, link, host, number, size, until - time.monotonic())
        except OSError as error:
            link.close()
            raise _unreachable("the remaining workers", str(error)) from error


def _reach(
    offered: Mapping[str, Any], number: int, seconds: float, *, listens: bool
) -> tuple[socket.socket, str, Listener | None]:
    key, port, interface = bytes.fromhex(offered["key"]), offered["port"], offered["interface"]
    until = time.monotonic() + seconds
    failures = []
    for host in offered["hosts"]:
        left = min(_HOST_S, max(until - time.monotonic(), 1.0))
        listener = None
        try:
            own = interface_address(interface) if interface else address_towards(host)
            listener = Listener(key, own) if listens else None
            own_port = listener.port if listener else 0
            link = connect(key, port, number, own_port, left, host, own if interface else "")
        except (OSError, CommError) as error:
            failures.append(f"{host}: {error}")
            if listener is not None:
                listener.close()
            continue
        return link, host, listener
    raise _unreachable(f"the process that started them, at port {port}", "; ".join(failures))


def _unreachable(whom: str, got: str) -> CommError:
    return CommError.build(
        f"a worker on {socket.gethostname()}",
        expected=f"a connection to {whom}",
        got=got,
        hint="interface= names the network to use; across NAT or a firewall start the whole "
        "program with MPI: caldera run -n 9 --hosts a:4,b:5 PROGRAM",
    )
