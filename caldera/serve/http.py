"""HTTP requests within limits, responses, and errors with a status and a reason."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any

from caldera.base.arguments import require
from caldera.base.formatting import bytes_text
from caldera.errors import CalderaError, ConfigError


@dataclass(frozen=True)
class Limits:
    """Limits of requests and of batches.

    - `batch_size`: maximum number of samples in a batch.
    - `body`: bytes of a request.
    - `samples`: samples of a request.
    - `pixels`: pixels of an image before it is resized for the model.
    - `waiting`: samples that may wait; further requests are rejected with a hint to retry.
    - `seconds`: time limit for receiving a request, and for computing its answer.
    - `connections`: simultaneous clients.
    - `drain`: seconds during which a stopping service still accepts requests, so that connected
      clients notice that it is stopping.
    - `strict`: True to reject rows that are unlike the training rows.

    >>> from caldera import serve
    >>> serve.Limits(batch_size=0)
    Traceback (most recent call last):
    caldera.errors.ConfigError: serve.Limits: expected batch_size to be an integer
    of at least 1, got 0
    """

    batch_size: int = 64
    body: int = 8 << 20
    samples: int = 4096
    pixels: int = 1 << 24
    waiting: int = 8192
    seconds: float = 30.0
    connections: int = 1024
    drain: float = 2.0
    strict: bool = False

    def __post_init__(self) -> None:
        for each in fields(self)[:-1]:
            value, whole = getattr(self, each.name), each.type == "int"
            least = 1 if whole else 0
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else int | float)
                or not math.isfinite(value)
                or value < least
            ):
                kind = "an integer" if whole else "a number"
                raise ConfigError.build(
                    "serve.Limits",
                    expected=f"{each.name} to be {kind} of at least {least}",
                    got=repr(value),
                )


@dataclass(frozen=True)
class Access:
    """Access rules: allowed hosts (None allows any) and a token (empty allows all requests).

    The host name in a request must belong to this service: otherwise a page of another site could
    map its own name to this address and read the answers.

    >>> Access.of("127.0.0.1", ["api.example"]).is_own("api.example:8000")
    True
    """

    hosts: frozenset[str] | None = None
    token: str = ""

    @classmethod
    def of(cls, host: str, more: Iterable[str] = (), token: str = "") -> Access:
        """Return the access rules of a service that listens at `host`."""
        own = {host, *more}
        if _is_address(host, "is_loopback") or host == "localhost":
            own |= {"localhost", "127.0.0.1", "::1"}
        elif host == "" or _is_address(host, "is_unspecified"):
            own |= {"*", "localhost", socket.gethostname(), socket.getfqdn()}
        return cls(frozenset(map(plain_host, own)), token)

    def is_own(self, name: str) -> bool:
        """Return True if the host of a request belongs to this service."""
        if self.hosts is None or not name:
            return True
        plain = plain_host(name)
        # No name can be mapped to a numeric address, so the client meant this machine.
        return plain in self.hosts or ("*" in self.hosts and _is_address(plain))

    def check(self, scope: Mapping[str, Any]) -> None:
        """Refuse a request to another host, or without the token."""
        host = header(scope, b"host")
        if not self.is_own(host):
            raise Refusal.build(
                421,
                "host",
                expected="a name of this service",
                got=shown(host),
                hint="name it with --allow-host (allow_hosts=) if it leads here",
            )
        if self.token and scope["path"] != "/health":
            kind, _, given = header(scope, b"authorization").partition(" ")
            is_right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if kind.lower() != "bearer" or not is_right:
                raise Refusal.build(
                    401,
                    "authorization",
                    expected="Bearer and the token of this service",
                    got="another" if given else "none",
                    headers={"www-authenticate": "Bearer"},
                )


def _is_address(text: str, what: str = "version") -> bool:
    """Return True if a text is a numeric address with the property `what`."""
    try:
        return bool(getattr(ip_address(text), what))
    except ValueError:
        return False


def plain_host(name: str) -> str:
    """Return a host without its port, in lower case.

    >>> plain_host("[::1]:8000"), plain_host("API.example.:80"), plain_host("::1")
    ('::1', 'api.example', '::1')
    """
    if name.startswith("["):
        return name[1:].partition("]")[0].lower()
    plain = name.partition(":")[0] if name.count(":") == 1 else name
    return plain.lower().rstrip(".")


def checked_token(token: str) -> str:
    """Return a token that a header can bring; empty if none is wanted."""
    require(
        not token or (token.isascii() and token.isprintable() and " " not in token),
        "serve",
        "a token of letters, digits and signs, without spaces",
        "another",
    )
    return token


class Refusal(Exception):
    """Rejected request; `status` is an HTTP status.

    >>> str(Refusal.build(415, "content-type", expected="application/json", got="text/html"))
    'content-type: expected application/json, got text/html'
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})

    @classmethod
    def build(
        cls,
        status: int,
        where: str,
        *,
        expected: str = "",
        got: str = "",
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Refusal:
        """Return a refusal that reads as all errors of Caldera do."""
        text = CalderaError.build(where, expected=expected, got=got, hint=hint)
        return cls(status, str(text), headers)


def shown(value: object, most: int = 60) -> str:
    """Return a value as short text for messages.

    >>> shown("x" * 100, 10)
    "'xxxxxx..."
    """
    # Only the beginning is written out: what came may be long.
    text = repr(value[: most + 1] if isinstance(value, str | bytes | list) else value)
    return text if len(text) <= most else text[: most - 3] + "..."


Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_MOST_DISCARDED = 4
"""Maximum size, in units of `Limits.body`, that is read before a request is rejected.

A client that is still sending does not see the answer.
"""


class Gone(Exception):
    """The client disconnected before the request was complete."""


@dataclass(frozen=True)
class Answer:
    """HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def refused(cls, refusal: Refusal) -> Answer:
        """Return the answer to a request that is refused."""
        body = json.dumps({"error": str(refusal)}).encode()
        return cls(refusal.status, body, headers=refusal.headers)

    async def send(self, send: Send, *, close: bool) -> None:
        """Send the response; `close` announces that the connection ends with it."""
        headers = [
            (b"content-type", self.content_type.encode("latin-1")),
            (b"content-length", str(len(self.body)).encode()),
            *_ALWAYS,
            *((name.encode(), value.encode("latin-1")) for name, value in self.headers.items()),
        ]
        if close and "connection" not in self.headers:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def header(scope: Mapping[str, Any], name: bytes) -> str:
    """Return a header of a request; empty if it has none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def read_body(scope: Mapping[str, Any], receive: Receive, limits: Limits) -> bytes:
    """Return the body of a request, if it is small enough and arrives in time."""
    waits_for_us = header(scope, b"expect").lower() == "100-continue"
    most = limits.body if waits_for_us else _MOST_DISCARDED * limits.body
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(limits.seconds):
            while more and size <= most:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                part = message.get("body", b"")
                size += len(part)
                if size <= limits.body:
                    parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refusal.build(
            408,
            "body",
            expected=f"the whole request within {limits.seconds:g} s",
            got=f"{size} bytes",
            headers={"connection": "close"},
        ) from None
    if size > limits.body:
        raise Refusal.build(
            413,
            "body",
            expected=f"at most {bytes_text(limits.body)}",
            got="more",
            hint="send the samples in several requests",
            headers={"connection": "close"},
        )
    return b"".join(parts)
