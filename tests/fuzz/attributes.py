"""Assigns values of all kinds to all attributes of layers that have parameters: each takes effect,
changes nothing in a new layer either, or is refused in words.

    python -m tests.fuzz.attributes --count 2000
    python -m tests.fuzz.attributes --seed 3 --count 200 --name Conv
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from random import Random
from typing import Any, NamedTuple

import numpy as np

import caldera as cd
from caldera import nn
from caldera.errors import CalderaError
from tests.bad_calls.calls_of_rooms import CALLS, find
from tests.bad_calls.outcome import inputs_of

SKIPPED = ("CTCLoss", "Cell", "GoogLeNet", "Inception3", "Input", "Output")
"""Large networks, and what is no function of one input."""
VALUES: tuple[Any, ...] = (
    *(True, False, None, 0, 1, 2, 3, 5, -1, 0.0, 0.1, 0.5, 1.0, 3.0, "relu", "tanh", "same"),
    *("max", "average", "he_normal", "x", (1, 1), (3, 3), [1, 2], ("a",), np.ones(3), object()),
)


class Assignment(NamedTuple):
    """What became of one assignment."""

    what: str
    """refused, effect, none (nor would a new layer differ), ignored or raw."""
    detail: str


def layer_names() -> list[str]:
    """The layers that have a valid call."""
    kinds = {name: find(name) for name in CALLS}
    return [
        name
        for name, kind in kinds.items()
        if inspect.isclass(kind)
        and issubclass(kind, nn.Layer)
        and not issubclass(kind, cd.Model)
        and kind.__name__ not in SKIPPED
    ]


def _made(name: str, **more: Any) -> nn.Layer:
    cd.seed(0)
    found: nn.Layer = CALLS[name](lambda *a, **named: find(name)(*a, **(named | more)))
    return found


def _outputs(layer: nn.Layer, inputs: Sequence[Any]) -> list[Any]:
    with nn.trace(dtype="float32"):
        found = layer(*inputs)
    return [each.numpy() for each in (found if isinstance(found, list | tuple) else [found])]


def _alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def assigned(name: str, random: Random) -> Assignment:
    """One value for one attribute of a layer that has its parameters."""
    draw = np.random.default_rng(0)
    inputs = [
        draw.integers(0, 4, each.shape)
        if each.dtype.kind in "iu"
        else draw.normal(size=each.shape).astype("f4")
        for each in inputs_of(find(name).__name__)
    ]
    layer = _made(name)
    before = _outputs(layer, inputs)
    given = {each.name for each in fields(layer) if each.init}  # type: ignore[arg-type]
    attribute = random.choice(sorted({*given, *(each for each in vars(layer) if each[0] != "_")}))
    value = random.choice(VALUES)
    detail = f"{name}.{attribute} = {value!r}"
    try:
        setattr(layer, attribute, value)
        after = _outputs(layer, inputs)
        if not _alike(before, after):
            return Assignment("effect", detail)
        fresh = _made(name, **{attribute: value}) if attribute in given else layer
        is_same = _alike(_outputs(fresh, inputs), before)
        return Assignment("none" if is_same else "ignored", detail)
    except CalderaError as error:
        return Assignment("refused", f"{detail}: {error}")
    except Exception as error:  # what the run looks for
        return Assignment("raw", f"{detail}: {error!r}")


def assignments(count: int, seed: int, only: str = "") -> Iterator[Assignment]:
    """So many assignments to layers whose names have this in them."""
    random = Random(seed)
    names = [each for each in layer_names() if only in each]
    for _ in range(count):
        yield assigned(random.choice(names), random)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any assignment is ignored, or ends in an exception of Python."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="", help="of layers whose name has this in it alone")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for each in assignments(options.count, options.seed, options.name):
        counts[each.what] += 1
        if each.what in ("ignored", "raw"):
            print(f"{each.what}: {each.detail[:200]}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))
    return int(counts["ignored"] + counts["raw"] > 0)


if __name__ == "__main__":
    sys.exit(main())
