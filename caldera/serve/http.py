"""What of HTTP the service needs: requests with limits, and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from caldera.base.amounts import bytes_text
from caldera.serve.limits import Limits
from caldera.serve.refusal import Refusal

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
_MOST_DISCARDED = 4
"""How many times what a body may have is read on before a body that is too large is refused: a
client that still sends does not see the answer."""


class Gone(Exception):
    """The client went away before it had sent everything."""


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def refused(cls, refusal: Refusal) -> Answer:
        """The answer to a request that is refused."""
        body = json.dumps({"error": str(refusal)}).encode()
        return cls(refusal.status, body, headers=refusal.headers)

    async def send(self, send: Send, *, close: bool) -> None:
        """Send it; with `close`, the client is told that the connection ends with it."""
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
    """A header of a request; empty if it has none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def read_body(scope: Mapping[str, Any], receive: Receive, limits: Limits) -> bytes:
    """The body of a request, if it is small enough and comes in time."""
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
            expected=f"all of it within {limits.seconds:g} s",
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
