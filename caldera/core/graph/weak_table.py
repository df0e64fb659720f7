"""A table that keeps none of its values alive, and that threads may share without a lock.

A WeakValueDictionary would need a lock, and takes twice as long for a new value: planning is mostly
new nodes.
"""

from __future__ import annotations

import weakref
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class _Entry(weakref.ref[Any]):
    __slots__ = ("key",)
    key: Hashable


class WeakTable(Generic[Value]):
    """Values by key, as long as somebody else refers to them.

    >>> from caldera.core.graph.weak_table import WeakTable
    >>> table, first, second = WeakTable(), set("a"), set("a")
    >>> table.setdefault("ones", first) is table.setdefault("ones", second) is first
    True
    >>> del first
    >>> table.setdefault("ones", second) is second
    True
    """

    def __init__(self) -> None:
        entries: dict[Hashable, _Entry] = {}
        self._entries = entries

        def forget(entry: _Entry) -> None:
            # Only if it is dead: another value may have come to its place in the meantime.
            _remove_dead_weakref(entries, entry.key)

        self._forget = forget

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """The value, or None."""
        known = self._entries.get(key)
        return None if known is None else known()

    def setdefault(self, key: Hashable, value: Value) -> Value:
        """The value that is there; else this one, which is there from now on."""
        entry = _Entry(value, self._forget)
        entry.key = key
        while True:
            # One step for threads: of several that come at once, all get what the first brought.
            known = self._entries.setdefault(key, entry)
            found: Value | None = known()
            if found is not None:
                return found
            # Another thread is about to forget it.
            self._forget(known)
