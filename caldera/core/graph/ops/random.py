"""Random numbers as ordinary nodes.

A random op reads `state`, an int64 pair (seed, step), and `offset`, the global index of its first
element, and has a separate `stream` number. Element i is a function of only (seed, step, stream,
offset + i): the same on every device, for any partition of a plan or a batch.
"""

from __future__ import annotations

from caldera.core.graph import Node, Spec, composite, op, refuse_dtype
from caldera.core.graph.ops import broadcast_to, constant, full, less, mul, where
from caldera.core.tensor import DType, Shape, float32, int64, is_float


def _random(state: Spec, offset: Spec, *, shape: Shape, dtype: DType, stream: int) -> Spec:
    if state != Spec((2,), int64) or offset != Spec((), int64):
        refuse_dtype("state (seed, step) of two int64 and an int64 offset")
    if not is_float(dtype):
        refuse_dtype("a floating-point dtype", got=dtype.name)
    return Spec(shape, dtype)


def _independent(g: Node, y: Node, *inputs: Node, **attrs: object) -> tuple[Node | None, ...]:
    return None, None


random_uniform = op("random_uniform", kind="random", gradient=_independent)(_random)
random_normal = op("random_normal", kind="random", gradient=_independent)(_random)


def bernoulli(state: Node, offset: Node, shape: Shape, probability: Node, stream: int) -> Node:
    """True with `probability` (float32, broadcast to `shape`), element by element."""
    draws = random_uniform(state, offset, shape=shape, dtype=float32, stream=stream)
    return less(draws, broadcast_to(probability, shape))


def dropped(x: Node, kept: Node, rate: float) -> Node:
    """Return `x` with a fraction `rate` set to 0 and the rest scaled up."""
    scaled = mul(x, constant(1 / (1 - rate) if rate < 1 else 0, x.dtype))
    return where(kept, scaled, full(x.shape, 0, x.dtype))


@composite("dropout")
def dropout(x: Node, state: Node, offset: Node, *, rate: float, stream: int) -> Node:
    """`x` with a fraction `rate` of its elements set to zero and the rest scaled up to match."""
    return dropped(x, bernoulli(state, offset, x.shape, constant(1 - rate, float32), stream), rate)
