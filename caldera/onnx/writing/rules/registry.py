"""Which ops can be written, and how a rule is registered.

    @writes("reshape")
    def _reshape(write, pair):
        return write.add("Reshape", write.name(pair.inputs[0]), write.shape(pair.sizes("shape")))

A rule gives the name of the output, a tuple of them, or NotImplemented: then a composite op is
written by its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[[Any, Any], Any]
RULES: dict[str, Rule] = {}
"""By the name of Caldera's op."""


def writes(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under these names of ops."""

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"op {name!r} has two rules")
            RULES[name] = rule
        return rule

    return register


def inputs(write: Any, pair: Any) -> list[str]:
    """The names of a node's inputs."""
    return [write.name(given) for given in pair.inputs]
