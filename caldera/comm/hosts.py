"""Addresses of this machine, as processes on other machines reach it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

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
