"""Which ops can be written, and how a rule is registered.

    @writes("reshape")
    def _reshape(write, pair):
        return write.add("Reshape", write.name(pair.inputs[0]), write.shape(pair.sizes("shape")))

A rule gives the name of the output, a tuple of them, or NotImplemented: then a composite op is
written by its parts. It reads attributes as they are in the graph for the first number of samples;
those that may be others in the second graph, and that it sees to, are named:

    @writes("reshape", by_samples=("shape",))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Function = Callable[[Any, Any], Any]
RULES: dict[str, Rule] = {}
"""By the name of Caldera's op."""


@dataclass(frozen=True)
class Rule:
    """How an op is written, and which of its attributes may follow from the number of samples."""

    function: Function
    by_samples: frozenset[str]


def writes(*names: str, by_samples: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Register a rule under these names of ops."""

    def register(function: Function) -> Function:
        for name in names:
            if name in RULES:
                raise ValueError(f"op {name!r} has two rules")
            RULES[name] = Rule(function, frozenset(by_samples))
        return function

    return register


def inputs(write: Any, pair: Any) -> list[str]:
    """The names of a node's inputs."""
    return [write.name(given) for given in pair.inputs]
