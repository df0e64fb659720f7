"""Nodes that somebody wants on a certain device.

A node itself knows no device. What is written inside `pinned(...)` is noted here with one, which
only the plan looks at; so are the nodes of gradients, which belong where their op is.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caldera.graph.node import Node

_current: ContextVar[Any] = ContextVar("caldera_pin", default=None)
_pins: weakref.WeakKeyDictionary[Node, Any] = weakref.WeakKeyDictionary()
_version = 0


@contextmanager
def pinned(device: Any) -> Iterator[None]:
    """Nodes written inside belong on this device, or that of this name; with None nowhere.

    >>> from caldera.graph.ops.leaf import constant
    >>> from caldera.graph.ops.elementwise import exp
    >>> import numpy as np
    >>> with pinned("cpu"):
    ...     node = exp(constant(0.25, np.dtype("float32")))
    >>> pin_of(node)
    'cpu'
    """
    token = _current.set(device)
    try:
        yield
    finally:
        _current.reset(token)


def note(node: Node) -> None:
    """A node was written, for the first time or again: it belongs where that happened last."""
    device = _current.get()
    if device is not None and _pins.get(node) != device:
        global _version
        _pins[node] = device
        _version += 1


def current_pin() -> Any:
    """The device of what is being written now."""
    return _current.get()


def pin_of(node: Node) -> Any:
    """The device that a node belongs on, or its name; None if it belongs nowhere."""
    # Every node that a pass writes again is asked about, and mostly nobody has pinned any.
    return _pins.get(node) if _version else None


def pins_version() -> int:
    """Grows with each node that is noted: who has looked need not look again before that."""
    return _version


def any_pins() -> bool:
    """Whether any node belongs anywhere."""
    return bool(_pins)
