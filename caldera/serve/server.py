"""`run`: a model served at an address until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from caldera.base.registry import optional_import
from caldera.errors import ConfigError
from caldera.serve.application import Application, application
from caldera.serve.http import Limits
from caldera.train.model import Model


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
        for package in ("uvicorn", "httptools"):
            optional_import(package, "'caldera[serve]'", "caldera serve")
        extended = optional_import(
            "caldera.serve.uvicorn_server", "'caldera[serve]'", "caldera serve"
        )
        app = model
        if not isinstance(app, Application):
            app = application(app, name=name, limits=limits, class_names=class_names)
        extended.DrainingServer(app, listening, ready).run(sockets=[listening])
    finally:
        listening.close()
    return app.metrics.requests.total()


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
