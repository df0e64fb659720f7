"""The answer to a request that cannot be served: a status, and a sentence that says why."""

from __future__ import annotations

from collections.abc import Mapping

from caldera.errors import CalderaError


class Refusal(Exception):
    """A request that is refused; `status` is that of HTTP.

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
        """A refusal that reads as all errors of Caldera do."""
        text = CalderaError.build(where, expected=expected, got=got, hint=hint)
        return cls(status, str(text), headers)


def shown(value: object, most: int = 60) -> str:
    """What came, as short as a message can have it.

    >>> shown("x" * 100, 10)
    "'xxxxxx..."
    """
    # Only the beginning is written out: what came may be long.
    text = repr(value[: most + 1] if isinstance(value, str | bytes | list) else value)
    return text if len(text) <= most else text[: most - 3] + "..."
