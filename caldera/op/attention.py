"""Attention."""

from __future__ import annotations

import math
from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift, lift_all
from caldera.core.graph.ops import attention
from caldera.core.graph.ops.base import cast
from caldera.core.tensor.dtype import is_float
from caldera.op.arguments import as_number


def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Expr:
    """softmax(scale * q k^T) v for queries (..., T, D), keys (..., S, D), values (..., S, E).

    The axes before the last two broadcast (batches, heads). `scale` is 1 / sqrt(D) unless given.

    `mask` broadcasts to (..., T, S): truth values say which keys a query may see, numbers are added
    to the scores. `causal` lets a query see no key that comes after it; the last query and the last
    key come together, so with S > T the first S - T keys are the past (a cache, say). A query that
    may see no key gets 0, not NaN.

    >>> import caldera as cd
    >>> from caldera import op
    >>> q = cd.tensor([[0.0], [0.0]])
    >>> v = cd.tensor([[2.0], [4.0]])
    >>> op.scaled_dot_product_attention(q, q, v).tolist()
    [[3.0], [3.0]]
    >>> op.scaled_dot_product_attention(q, q, v, causal=True).tolist()
    [[2.0], [3.0]]
    >>> op.scaled_dot_product_attention(q, q, v, mask=[[False, True], [False, False]]).tolist()
    [[4.0], [0.0]]
    """
    nodes = [as_float(each) for each in lift_all(q, k, v)]
    dtype = nodes[0].dtype
    if mask is not None:
        seen = lift(mask, dtype)
        nodes.append(cast(seen, dtype) if is_float(seen.dtype) else seen)
    if scale is None:
        width = nodes[0].shape[-1] if nodes[0].shape else 1
        factor = 1 / math.sqrt(max(width, 1))
    else:
        factor = as_number(scale, "scale", "scaled_dot_product_attention")
    return Expr(attention.attention.outputs(*nodes, causal=bool(causal), scale=factor)[0])
