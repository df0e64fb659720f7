"""Published networks, data sets and hardware, with which names in a report are compared."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

Shapes = tuple[tuple[int, ...], ...]


@cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    text = (resources.files(__package__) / "literature.toml").read_text("utf-8")
    return tomllib.loads(text)


def _find(table: str, name: str) -> dict[str, Any]:
    """Return the first entry whose pattern is a whole word of the name, or an empty one."""
    for entry in _tables()[table]:
        if re.search(rf"(?<![a-z0-9])(?:{entry['pattern']})(?![a-z0-9])", name.lower()):
            return entry
    return {}


def usual_shapes(workload: str) -> Shapes:
    """Return the published shapes of a sample; empty for a workload that the table lacks.

    >>> usual_shapes("ResNet-50 on ImageNet"), usual_shapes("ResNet-50 on CIFAR-10")[0]
    (((3, 224, 224),), (3, 32, 32))
    """
    network, data = (
        tuple(map(tuple, _find(table, workload).get("samples", ())))
        for table in ("networks", "data")
    )
    return tuple(each for each in network if each in data) or data or network


def published_weights(workload: str) -> tuple[str, dict[str, int]]:
    """Return the name of the network and the number of its weights by sorted shape.

    >>> published_weights("lenet5 lenet5")[1]["120x400"]
    1
    """
    entry = _find("networks", workload)
    return entry.get("name", ""), entry.get("weights", {})


def published_year(hardware: str) -> int:
    """Return the year in which hardware entered the market; 0 if the table lacks it.

    >>> published_year("NVIDIA Tesla K20")
    2012
    """
    return int(_find("hardware", hardware).get("year", 0))


def weights_by_shape(shapes: Iterable[Sequence[int]]) -> dict[str, int]:
    """Count weights of two and more axes by their sorted lengths.

    >>> weights_by_shape([(16, 3, 3, 3), (16,), (64, 10), (10, 64)])
    {'3x3x3x16': 1, '10x64': 2}
    """
    return dict(Counter("x".join(map(str, sorted(each))) for each in shapes if len(each) > 1))


def weights_apart(found: dict[str, int], expected: dict[str, int]) -> str:
    """Return how a network's weights differ from the published ones; empty if they agree.

    A last layer for another number of classes is no difference.

    >>> weights_apart({"3x3x3x16": 1, "64x100": 1}, {"3x3x3x16": 1, "10x64": 1})
    ''
    >>> weights_apart({"3x3x3x8": 1}, {"3x3x3x16": 1})
    '1 of 1 weights'
    >>> weights_apart({"512x4096": 1}, {"4096x25088": 1})
    '1 of 1 weights'
    """
    more, less = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    apart = max(more.total(), less.total())
    matrices = [shape.split("x") for shape in (*more, *less) if shape.count("x") == 1]
    is_classifier = (
        apart == 1
        and len(matrices) == 2
        and matrices[1][0] in ("10", "1000")
        and matrices[1][1] in matrices[0]
    )
    return f"{apart} of {sum(expected.values())} weights" if apart and not is_classifier else ""
