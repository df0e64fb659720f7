"""The service: an ASGI application, which any ASGI server can run, and `run`, which serves it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.registry import nearest, optional_import
from caldera.errors import CalderaError, ConfigError
from caldera.serve import batcher
from caldera.serve.batcher import Batcher
from caldera.serve.http import (
    Access,
    Answer,
    Gone,
    Limits,
    Message,
    Receive,
    Refusal,
    Send,
    checked_token,
    header,
    plain_host,
    read_body,
    shown,
)
from caldera.serve.openapi import description
from caldera.serve.page import page, policy
from caldera.serve.samples import CSV, JSON, RequestReader
from caldera.serve.signature import Contract, csv_answer, json_answer
from caldera.train.model import Model

_LARGE = 1 << 16
"""Bytes from which a body is read in a thread, while other requests are answered."""
_log = logging.getLogger("caldera.serve")
Handler = Callable[[Mapping[str, Any], Receive], Awaitable[Answer]]


class Application:
    """A model as an ASGI application; `application` makes it.

    >>> import caldera as cd
    >>> from caldera import nn, serve
    >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
    >>> serve.application(model, name="small", limits=serve.Limits(batch_size=2))
    Application(small: /, /health, /metrics, /model, /openapi.json, /predict)
    """

    def __init__(
        self, model: Model, contract: Contract, limits: Limits, *, keep_formulas: bool = False
    ) -> None:
        self.limits = limits
        self.access = Access()
        """Who is answered; `run` says which names lead here."""
        self.metrics = batcher.Metrics()
        self.ending = False
        """Whether the service has been told to end; each answer then closes its connection."""
        self._contract = contract
        self._keep_formulas = keep_formulas
        self._samples = RequestReader(contract, limits)
        self._batcher = Batcher(
            lambda x: model.predict(x, batch_size=limits.batch_size), limits, self.metrics
        )
        self._batcher.warm_up(np.zeros((1, *contract.shape), contract.dtype))
        self._page = page(contract)
        self._routes: dict[str, tuple[str, Handler]] = {
            "/": ("GET", self._show_page),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
            "/model": ("GET", self._model),
            "/openapi.json": ("GET", self._openapi),
            "/predict": ("POST", self._predict),
        }

    def end(self) -> None:
        """Stop the service, as a signal does: received requests are still answered."""
        self.ending = True

    def __repr__(self) -> str:
        return f"Application({self._contract.name}: {', '.join(self._routes)})"

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Say that the service is ready when it starts, and let its thread go when it ends."""
        while True:
            message: Message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._batcher.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        path = scope["path"]
        try:
            answer = await self._route(scope, receive)
        except Refusal as refusal:
            answer = Answer.refused(refusal)
        except CalderaError as error:
            answer = Answer.refused(Refusal(422, str(error)))
        except Gone:
            return
        except Exception:
            _log.exception("%s %s", scope["method"], shown(path))
            answer = Answer.refused(
                Refusal.build(
                    500, "server", got="an internal error", hint="its log has the details"
                )
            )
        # Unknown paths are counted under a single name: clients must not create new ones.
        self.metrics.requests[(path if path in self._routes else "other", answer.status)] += 1
        # A client that has disconnected gets no response; uvloop raises a RuntimeError for it.
        with suppress(OSError, RuntimeError):
            await answer.send(send, close=self.ending)
        if path == "/predict":
            self.metrics.seconds.add(time.perf_counter() - began)

    async def _route(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        self.access.check(scope)
        if path not in self._routes:
            raise Refusal.build(
                404,
                shown(path),
                expected=", ".join(self._routes),
                got="another path",
                hint=nearest(path[:100], self._routes),
            )
        wanted, handler = self._routes[path]
        if method != wanted and (method, wanted) != ("HEAD", "GET"):
            allowed = "GET, HEAD" if wanted == "GET" else wanted
            raise Refusal.build(
                405, path, expected=allowed, got=shown(method), headers={"allow": allowed}
            )
        return await handler(scope, receive)

    # --- one function for each path

    async def _predict(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        wants_csv = _wants_csv(header(scope, b"accept"))
        content_type = header(scope, b"content-type")
        body = await read_body(scope, receive, self.limits)
        try:
            async with asyncio.timeout(self.limits.seconds):
                if len(body) > _LARGE or content_type.startswith("image/"):
                    found = await asyncio.to_thread(self._samples.read, content_type, body)
                else:
                    found = self._samples.read(content_type, body)
                outputs = await self._batcher.submit(found.x)
        except TimeoutError:
            raise Refusal.build(
                504,
                "/predict",
                expected=f"an answer within {self.limits.seconds:g} s",
                got="none so far",
                hint="send fewer samples, or try again later",
            ) from None
        if wants_csv:
            # CSV cannot contain notes next to the table, so they are sent in a header.
            said = {"caldera-notes": json.dumps(found.notes)} if found.notes else {}
            text = csv_answer(outputs, self._contract, keep_formulas=self._keep_formulas)
            return Answer(200, text, f"{CSV}; charset=utf-8", said)
        return Answer(200, json_answer(outputs, self._contract, found.notes), JSON)

    async def _model(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        return Answer(200, json.dumps(self._contract.to_plain()).encode())

    async def _openapi(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        found = description(self._contract, needs_token=bool(self.access.token))
        return Answer(200, json.dumps(found).encode())

    async def _health(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        """Report ready or stopping: a load balancer then sends no more requests here."""
        if self.ending:
            return Answer(503, b'{"status":"ending"}')
        return Answer(200, b'{"status":"ready"}')

    async def _metrics(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        text = self.metrics.text(self._contract.name, self._batcher.waiting)
        return Answer(200, text.encode(), batcher.CONTENT_TYPE)

    async def _show_page(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        headers = {"content-security-policy": policy()}
        return Answer(200, self._page, "text/html; charset=utf-8", headers)


def _wants_csv(accept: str) -> bool:
    """Return True if a client accepts CSV rather than JSON."""
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return CSV in kinds and JSON not in kinds


def application(
    model: Model,
    *,
    name: str = "",
    limits: Limits | None = None,
    class_names: Sequence[str] = (),
    allow_hosts: Sequence[str] | None = None,
    token: str = "",
    keep_formulas: bool = False,
) -> Application:
    """Return a model as an ASGI application, for any ASGI server or framework; see `run`.

    `class_names` are used if the model does not contain the names of its classes. With
    `allow_hosts`, only requests to these names are answered; with a `token`, only requests that
    contain it (`Authorization: Bearer ...`; not required for /health). Texts in CSV that a
    spreadsheet would interpret as formulas are prefixed with an apostrophe, unless `keep_formulas`.

    >>> import caldera as cd
    >>> from caldera import nn, serve
    >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)])
    >>> serve.application(model, limits=serve.Limits(batch_size=2))
    Application(model: /, /health, /metrics, /model, /openapi.json, /predict)
    """
    if not isinstance(model, Model):
        raise ConfigError.build(
            "serve",
            expected="a model",
            got=shown(model),
            hint="load one with cd.load(path)",
        )
    contract = Contract.of(model, name or model.name or "model", class_names)
    made = Application(model, contract, limits or Limits(), keep_formulas=keep_formulas)
    hosts = None if allow_hosts is None else frozenset(map(plain_host, allow_hosts))
    made.access = Access(hosts, checked_token(token))
    return made


def run(
    model: Model | Application,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "",
    limits: Limits | None = None,
    class_names: Sequence[str] = (),
    allow_hosts: Sequence[str] = (),
    token: str = "",
    keep_formulas: bool = False,
    ready: Callable[[str], None] | None = None,
) -> int:
    """Serve a model until Ctrl-C or SIGTERM; return the number of answered requests.

    With `host="0.0.0.0"`, the service is also reachable from other machines. Requests to hosts
    other than this and `allow_hosts` are rejected. Port 0 selects a free port; `ready` is called
    with the address once requests are answered. See `application` for the remaining arguments.
    Needs `pip install 'caldera[serve]'`.

    >>> import caldera as cd
    >>> from caldera import nn, serve
    >>> serve.run(cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)]), port=80000)
    Traceback (most recent call last):
    caldera.errors.ConfigError: port: expected a number from 0 to 65535, got 80000
    """
    listening = _listen(host, port)
    try:
        for package in ("uvicorn", "httptools"):
            optional_import(package, "'caldera[serve]'", "caldera serve")
        extended = optional_import(
            "caldera.serve.uvicorn_server", "'caldera[serve]'", "caldera serve"
        )
        app = model
        if not isinstance(app, Application):
            app = application(
                app,
                name=name,
                limits=limits,
                class_names=class_names,
                keep_formulas=keep_formulas,
            )
        more = [*allow_hosts, *(app.access.hosts or ())]
        app.access = Access.of(host, more, checked_token(token) or app.access.token)
        extended.DrainingServer(app, listening, ready).run(sockets=[listening])
    finally:
        listening.close()
    return app.metrics.requests.total()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    It is opened before the model is prepared, so that a port in use is reported immediately.
    """
    require(
        not isinstance(port, bool) and isinstance(port, int) and 0 <= port < 1 << 16,
        "port",
        "a number from 0 to 65535",
        repr(port),
    )
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
