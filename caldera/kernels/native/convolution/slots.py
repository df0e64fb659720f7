"""The integers a kernel is given, by name: written when it is bound, read when it is compiled."""

from __future__ import annotations

from typing import Any

from caldera.kernels.native.codegen.emitter import Emitter, Value


class Integers:
    """Integers in the slots of a kernel from `first` on, as attributes; with a prefix, those whose
    names begin with it, by the rest of their names."""

    def __init__(self, k: Emitter, first: int, names: tuple[str, ...], prefix: str = "") -> None:
        assert len(set(names)) == len(names), names
        self._values = {
            name.removeprefix(prefix): k.integer(first + index)
            for index, name in enumerate(names)
            if name.startswith(prefix)
        }

    def __getattr__(self, name: str) -> Value:
        return self._values[name]


def in_order(values: dict[str, Any], names: tuple[str, ...]) -> list[int]:
    """The values as a call passes them."""
    assert values.keys() == set(names), values.keys() ^ set(names)
    return [int(values[name]) for name in names]
