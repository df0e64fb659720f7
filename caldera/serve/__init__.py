"""A trained model as a web service: samples in, predictions out.

    caldera serve model.caldera

or from Python:

    from caldera import serve

    serve.run(model, port=8000)

`run` needs `pip install 'caldera[serve]'`. `application` is the same service for any ASGI server.
Simultaneous requests are computed as a batch. Input from clients is data, never a path or code;
each limit on its size and time is a field of `Limits`.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.serve.application import Application, application, run
from caldera.serve.http import Limits

__all__ = ["Application", "Limits", "application", "run"]

_guard(globals(), "Application")
