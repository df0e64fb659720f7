"""Half precision inside a composite op: computed in float32, rounded once at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import as_tuple
from caldera.core.graph.ops.base import cast
from caldera.core.tensor.dtype import HALVES, DType, float32


def accumulator(dtype: DType) -> DType:
    """The dtype in which sums of `dtype` are kept."""
    return float32 if dtype in HALVES else dtype


def widen(x: Node) -> Node:
    """`x` in the dtype its sums are kept in; integers and truth values stay as they are."""
    return cast(x, accumulator(x.dtype))


def widened(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a rule over nodes: half-precision inputs come as float32, results go back.

    Works for decompositions and for gradients, whose floating-point inputs share one dtype.
    """

    @wraps(rule)
    def run(*nodes: Node, **attrs: Any) -> Any:
        dtype = nodes[0].dtype
        if dtype not in HALVES:
            return rule(*nodes, **attrs)
        results = rule(*[widen(node) for node in nodes], **attrs)
        back = tuple(None if part is None else cast(part, dtype) for part in as_tuple(results))
        return back if isinstance(results, tuple) else back[0]

    return run
