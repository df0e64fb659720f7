"""uvicorn's server and HTTP protocol with idle clients closed and an end that loses no request.

uvicorn has options for the number of clients, not for the size of headers read by httptools, for
idle clients, or for draining connections before the end. So two of its classes are extended; a test
checks the versions and the methods of uvicorn that this module relies on.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from caldera.serve.application import Application
from caldera.serve.http import Refusal

_MOST_HEADERS, _A_HEADER = 1 << 15, 32
_LAST_REQUEST_S = 1.0
"""Seconds for clients that connected last to send their request."""
_NO_REQUEST = Refusal.build(
    400,
    "request",
    expected="HTTP/1.1, with a path and headers of at most 32 KiB",
    got="something else",
)


class HttpConnection(HttpToolsProtocol):
    """A client's connection: limits its headers, and answers wrong bytes with our errors."""

    def connection_made(self, transport: Any) -> None:
        self.connected_at = time.monotonic()
        self.running: Any = None
        super().connection_made(transport)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the response if the client has sent a complete request."""
        waits = self.running is not None and not self.running.response_complete
        if not waits or self.running.more_body:
            return False
        if self.cycle.more_body:
            # The last of several requests was incomplete.
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self.running
        last.keep_alive = False
        return True

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        # Not always the last one read: clients may send several requests without waiting.
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.header_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name, value)
        super().on_header(name, value)

    def _count(self, *parts: bytes) -> None:
        # The memory of a header in addition to its text is counted as well.
        self.header_bytes += _A_HEADER + sum(map(len, parts))
        if self.header_bytes > _MOST_HEADERS:
            # httptools converts it to its own exception, which is answered with 400.
            raise ValueError("too many headers")

    def send_400_response(self, msg: str) -> None:
        if self.running is not None and not self.running.response_complete:
            if not self.running.more_body:
                # The preceding bytes were a request: it is answered, and later bytes are ignored.
                self.running.keep_alive = False
                self.pipeline.clear()
                self.flow.pause_reading()
                return
            # The body of this request will never be complete, so it is not awaited.
            self.running.disconnected = True
            self.running.message_event.set()
        body = json.dumps({"error": str(_NO_REQUEST)}).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """Server that drains its connections before it ends.

    First it still accepts clients, and each response closes its connection. Once no client is
    connected, or after `Limits.drain` seconds, it stops listening. Accepted clients that have not
    sent a request yet have a moment to do so, and the last response ends the server.
    """

    def __init__(
        self, app: Application, listening: socket.socket, ready: Callable[[str], None] | None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpConnection,
                ws="none",
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=app.limits.connections,
                timeout_graceful_shutdown=int(app.limits.seconds) + 1,
            )
        )
        self._app = app
        self._listening = listening
        self._ready = ready
        self._end_at = float("inf")
        self._idle: dict[Any, tuple[Any, float]] = {}

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        host, port = self._listening.getsockname()[:2]
        if self._ready is not None:
            self._ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    def handle_exit(self, sig: int, frame: Any) -> None:
        # Without a call of uvicorn's: it would raise the signal again after the end.
        if self._app.ending:
            # The second signal ends the server immediately.
            self.should_exit = self.force_exit = True
            return
        self._app.end()

    async def on_tick(self, counter: int) -> bool:
        self._close_idle()
        if self._app.ending:
            now = time.monotonic()
            self._end_at = min(self._end_at, now + self._app.limits.drain)
            if not self.server_state.connections or now >= self._end_at:
                return True
        return bool(await super().on_tick(counter))

    async def shutdown(self, sockets: Any = None) -> None:
        if not self.force_exit:
            await self._accept_pending()
            while self._awaits_request():
                await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    async def _accept_pending(self) -> None:
        """Stop listening, and accept the clients that the system has connected.

        Closing the socket would reset their connections.
        """
        loop = asyncio.get_running_loop()
        pending = self._listening.dup()
        pending.setblocking(False)
        for server in self.servers:
            server.close()
        self._listening.close()
        last = []
        with pending, suppress(BlockingIOError):
            while True:
                last.append(pending.accept()[0])
        made = partial(HttpConnection, self.config, self.server_state, self.lifespan.state)
        for each in last:
            await loop.connect_accepted_socket(made, each)

    def _connections(self) -> list[HttpConnection]:
        return [each for each in self.server_state.connections if isinstance(each, HttpConnection)]

    def _awaits_request(self) -> bool:
        since = time.monotonic() - _LAST_REQUEST_S
        return any(each.cycle is None and each.connected_at > since for each in self._connections())

    def _close_idle(self) -> None:
        """Abort idle connections, and connections with an incomplete request head."""
        now = time.monotonic()
        seen: dict[Any, tuple[Any, float]] = {}
        for each in self._connections():
            cycle = each.cycle
            if cycle is not None and not cycle.response_complete:
                continue
            last, since = self._idle.get(each, (cycle, now))
            seen[each] = (cycle, since if last is cycle else now)
            if now - seen[each][1] > self._app.limits.seconds:
                each.transport.abort()
        self._idle = seen
