"""Serving with uvicorn: signals, idle clients, and an end that loses no request."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from caldera.base.registry import optional_import
from caldera.errors import ConfigError
from caldera.serve.application import Application, application
from caldera.serve.http import Limits, Refusal
from caldera.train.model import Model

_MOST_HEADERS, _A_HEADER = 1 << 15, 32
_FOR_THE_LAST = 1.0
"""Seconds for clients that were let in last to send what they ask."""
_NO_REQUEST = Refusal.build(
    400,
    "request",
    expected="HTTP/1.1, with a path and headers of at most 32 KiB",
    got="something else",
)


def run(
    model: Model | Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "",
    limits: Limits | None = None,
    class_names: Sequence[str] = (),
    ready: Callable[[str], None] | None = None,
) -> int:
    """Serve a model until Ctrl-C or SIGTERM; how many requests were answered.

    With `host="0.0.0.0"` other machines reach it too. Port 0 is any that is free; `ready` is
    called with the address, once requests are answered. Needs `pip install 'caldera[serve]'`.

    >>> import caldera as cd
    >>> from caldera import nn, serve
    >>> serve.run(cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)]), port=80000)
    Traceback (most recent call last):
    caldera.errors.ConfigError: port: expected a number from 0 to 65535, got 80000
    """
    listening = _listen(host, port)
    try:
        uvicorn = optional_import("uvicorn", "'caldera[serve]'", "caldera serve")
        optional_import("httptools", "'caldera[serve]'", "caldera serve")
        app = model
        if not isinstance(app, Application):
            app = application(app, name=name, limits=limits, class_names=class_names)
        config = uvicorn.Config(
            app,
            http=_protocol(),
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=app.limits.connections,
            timeout_graceful_shutdown=int(app.limits.seconds) + 1,
        )
        _server_class()(config, app, listening, ready or _nothing).run(sockets=[listening])
    finally:
        listening.close()
    return app.metrics.requests.total()


def _nothing(address: str) -> None:
    pass


def _listen(host: str, port: int) -> socket.socket:
    """Taken before the model is made ready: a port that is in use is told at once."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise ConfigError.build("port", expected="a number from 0 to 65535", got=repr(port))
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError.build(
            "serve",
            expected=f"an address to serve at, such as {host}:{port}",
            got=reason,
            hint="choose another --port or --host",
        ) from None
    found.setblocking(False)
    return found


@cache
def _protocol() -> Any:
    """uvicorn's protocol on httptools, with a limit on headers and errors that read as ours."""
    base = optional_import(
        "uvicorn.protocols.http.httptools_impl", "'caldera[serve]'", "caldera serve"
    ).HttpToolsProtocol

    class Protocol(base):  # type: ignore[misc, valid-type]
        """One connection."""

        def connection_made(self, transport: Any) -> None:
            self.connected_at = time.monotonic()
            self.running: Any = None
            super().connection_made(transport)

        def eof_received(self) -> bool:
            """A client that sends no more still gets its answer, if it has sent all of it."""
            waits = self.running is not None and not self.running.response_complete
            if not waits or self.running.more_body:
                return False
            if self.cycle.more_body:
                # The last of several was cut off.
                self.pipeline.popleft()
            last = self.pipeline[0][0] if self.pipeline else self.running
            last.keep_alive = False
            return True

        def _start_asgi_task(self, cycle: Any, app: Any) -> None:
            # Not always the last that was read: clients may send several requests at once.
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
            # What a header takes beside its text counts as well.
            self.header_bytes += _A_HEADER + sum(map(len, parts))
            if self.header_bytes > _MOST_HEADERS:
                # httptools makes an error of its own of it, and that is answered with 400.
                raise ValueError("too many headers")

        def send_400_response(self, msg: str) -> None:
            if self.running is not None and not self.running.response_complete:
                if not self.running.more_body:
                    # What came before this was a request: it is answered, and nothing after it.
                    self.running.keep_alive = False
                    self.pipeline.clear()
                    self.flow.pause_reading()
                    return
                # The body of a request that will never be whole: nobody waits for it.
                self.running.disconnected = True
                self.running.message_event.set()
            body = json.dumps({"error": str(_NO_REQUEST)}).encode()
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()

        def _unsupported_upgrade_warning(self) -> None:
            """The request is answered as any other: nobody has to be warned."""

    return Protocol


@cache
def _server_class() -> Any:
    base = optional_import("uvicorn", "'caldera[serve]'", "caldera serve").Server

    class Server(base):  # type: ignore[misc, valid-type]
        """uvicorn's server, which ends in three steps.

        At first clients are still let in, and each answer says that its connection ends with it.
        When nobody is connected, or after `Limits.drain` seconds, the server stops listening. Who
        was let in by then and has not asked yet has a moment to do so, and with the last answer
        the server ends.
        """

        def __init__(
            self,
            config: Any,
            app: Application,
            listening: socket.socket,
            ready: Callable[[str], None],
        ) -> None:
            super().__init__(config)
            self._app = app
            self._listening = listening
            self._ready = ready
            self._end_at = float("inf")
            self._idle: dict[Any, tuple[Any, float]] = {}

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            host, port = self._listening.getsockname()[:2]
            self._ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Ends for a signal, which is then done with: the process goes on."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            kinds = (signal.SIGINT, signal.SIGTERM)
            before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
            try:
                yield
            finally:
                for kind, handler in before.items():
                    signal.signal(kind, handler)

        def handle_exit(self, sig: int, frame: Any) -> None:
            if self._app.ending:
                # Asked twice: at once.
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
                await self._let_the_last_in()
                while self._not_asked_yet():
                    await asyncio.sleep(0.01)
            await super().shutdown(sockets)

        async def _let_the_last_in(self) -> None:
            """Stop listening without turning away those who are at the door already.

            The system has connected them; closing the socket would reset their connections.
            """
            loop = asyncio.get_running_loop()
            door = self._listening.dup()
            door.setblocking(False)
            for server in self.servers:
                server.close()
            self._listening.close()
            last = []
            with door, suppress(BlockingIOError):
                while True:
                    last.append(door.accept()[0])
            for each in last:
                await loop.connect_accepted_socket(self._connection, each)

        def _connection(self) -> Any:
            return self.config.http_protocol_class(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        def _not_asked_yet(self) -> bool:
            since = time.monotonic() - _FOR_THE_LAST
            return any(
                each.cycle is None and each.connected_at > since
                for each in self.server_state.connections
            )

        def _close_idle(self) -> None:
            """End connections that have sent nothing, or less than the head of a request."""
            now = time.monotonic()
            seen: dict[Any, tuple[Any, float]] = {}
            for each in list(self.server_state.connections):
                cycle = each.cycle
                if cycle is not None and not cycle.response_complete:
                    continue
                last, since = self._idle.get(each, (cycle, now))
                seen[each] = (cycle, since if last is cycle else now)
                if now - seen[each][1] > self._app.limits.seconds:
                    each.transport.abort()
            self._idle = seen

    return Server
