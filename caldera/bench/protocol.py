"""The words between the bench and its workers: one JSON object a line, a reply to each request."""

from __future__ import annotations

import json
from typing import Any

from caldera.errors import CalderaError

HELLO = "hello"
PREPARE = "prepare"
MEASURE = "measure"
CHECK = "check"
TRAIN = "train"
END = "end"


class WorkerError(CalderaError, RuntimeError):
    """A worker failed, died or took too long.

    >>> issubclass(WorkerError, RuntimeError)
    True
    """


def to_line(message: dict[str, Any]) -> bytes:
    """A message as a line.

    >>> to_line({"do": "end"})
    b'{"do": "end"}\\n'
    """
    return json.dumps(message).encode() + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """The message of a line.

    >>> from_line(b'{"do": "end"}')
    {'do': 'end'}
    """
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WorkerError.build(
            "bench",
            expected="a JSON object in a line",
            got=repr(line[:80].decode(errors="replace")),
        )
    return message
