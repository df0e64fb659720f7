"""Nodes that somebody wants on a certain device.

What is written inside `pinned(...)` is a node of its own, which carries the name of that device:
the same expression elsewhere is another node. Only the plan looks at the name. The nodes of a
gradient belong where their op is.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

_current: ContextVar[str | None] = ContextVar("caldera_pin", default=None)
_is_used = False


class _Pinned:
    """A block of code: one of every few nodes is written in one, so it is entered quickly."""

    __slots__ = ("_device", "_token")

    def __init__(self, device: str | None) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._token: Token[str | None] = _current.set(self._device)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def pinned(device: str | None) -> _Pinned:
    """Nodes written inside belong on the device of this name; with None nowhere.

    >>> from caldera.core.graph.ops.leaf import constant
    >>> from caldera.core.graph.ops.elementwise import exp
    >>> import numpy as np
    >>> x = constant(0.25, np.dtype("float32"))
    >>> with pinned("cpu"):
    ...     node = exp(x)
    >>> node.pin, exp(x).pin
    ('cpu', None)
    """
    global _is_used
    _is_used = _is_used or device is not None
    return _Pinned(device)


def current_pin() -> str | None:
    """The name of the device of what is being written now."""
    return _current.get()


def any_pins() -> bool:
    """Whether any node may belong anywhere."""
    return _is_used
