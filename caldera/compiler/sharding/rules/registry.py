"""What a rule is: for a node of whole values, the ways in which ranks can compute it together.

A way says in which layouts the inputs have to be, what a rank computes from its parts of them, and
in which layouts the results then are. The cheapest way is taken; where an op has no rule, its
inputs go whole to every rank, which is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caldera.compiler.sharding.axis_split import even_split
from caldera.compiler.sharding.layout import CartesianLayout, Layout, replicated
from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation

SMALL_BYTES = 1 << 14
"""What is no larger goes to everybody rather than being shared out."""


@dataclass(frozen=True)
class Placement:
    """Where a result is: `terms` of the layout's replicas still have to be reduced."""

    layout: Layout
    terms: int = 1
    reduce: str = "sum"


@dataclass(frozen=True)
class Lazy:
    """A value that is made where it is wanted: `make` gives this rank's part in any cartesian
    layout, `seconds` what has to move for that. `like` is a layout that suits it, if any does."""

    make: Callable[[CartesianLayout], Node]
    seconds: Callable[[CartesianLayout], float]
    like: CartesianLayout | None = None


@dataclass(frozen=True)
class Value:
    """What a rank has in place of a whole value: its part, or a way to make it."""

    placement: Placement
    node: Node | None = None
    lazy: Lazy | None = None


@dataclass(frozen=True)
class Way:
    """One way to compute a node: `make` is given this rank's parts of the inputs in their layouts,
    and gives its parts of the results. `seconds` is what computing takes, with the `nbytes` that
    ranks send meanwhile."""

    name: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Placement, ...]
    make: Callable[[Sequence[Node]], Any]
    seconds: float = 0.0
    nbytes: int = 0


Rule = Callable[["Propagation", Node], "list[Way] | Lazy | Node | None"]
"""Ways, or how it is made anywhere, or another node of whole values that is the same."""
RULES: dict[str, Rule] = {}
"""By the name of the op."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these ops."""

    def add(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = function
        return function

    return add


def default_layout(shape: Shape, ranks: Sequence[int], itemsize: int = 8) -> CartesianLayout:
    """Where an array goes if nobody says so: shared out along its first axis that is long enough,
    or along the longest; small ones to everybody.

    >>> from caldera.compiler.sharding.rules.registry import default_layout
    >>> default_layout((2, 4096), range(4)).local_shape(0)
    (2, 1024)
    """
    elements = 1
    for n in shape:
        elements *= n
    if elements * itemsize <= SMALL_BYTES or len(ranks) == 1:
        return replicated(shape, ranks)
    long = [axis for axis, n in enumerate(shape) if n >= len(ranks)]
    axis = long[0] if long else max(range(len(shape)), key=lambda each: shape[each])
    splits = [
        None if each != axis else even_split(shape[axis], len(ranks)) for each in range(len(shape))
    ]
    return CartesianLayout(shape, tuple(splits), tuple(ranks))
