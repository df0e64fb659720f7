"""The arguments of a kernel by name: declared once, checked whenever it is bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

Kind = TypeVar("Kind")


class Signature(Generic[Kind]):
    """The names of a kernel's arguments in the order in which it takes them, each with its kind.

    What a kind is, is the device's business: a type of LLVM, one of C++.

    >>> copy = Signature("copy", {"target": "float*", "source": "float*", "count": "long"})
    >>> copy.check({"count": 3, "source": 8, "target": 0})
    >>> copy.check({"count": 3, "source": 8, "goal": 0})
    Traceback (most recent call last):
        ...
    TypeError: kernel copy takes target, source, count: missing target, unknown goal
    """

    __slots__ = ("kernel", "kinds")

    def __init__(self, kernel: str, kinds: Mapping[str, Kind]) -> None:
        self.kernel = kernel
        self.kinds = dict(kinds)

    def check(self, given: Mapping[str, object]) -> None:
        """Raise unless every name is there, and no other."""
        if given.keys() != self.kinds.keys():
            raise TypeError(
                f"kernel {self.kernel} takes {', '.join(self.kinds)}: "
                + ", ".join(self._wrong(given))
            )

    def _wrong(self, given: Iterable[str]) -> list[str]:
        here = set(given)
        missing = [f"missing {name}" for name in self.kinds if name not in here]
        return missing + [f"unknown {name}" for name in given if name not in self.kinds]
