"""Functional layers: linear maps, biases, embeddings and attention."""

from __future__ import annotations

import math
from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift, lift_all
from caldera.core.graph.node import Node, describe
from caldera.core.graph.opdef import location
from caldera.core.graph.ops import attention
from caldera.core.graph.ops.base import cast, reshape
from caldera.core.graph.ops.elementwise import add
from caldera.core.graph.ops.indexing import gather
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import UNSIGNED, is_float, is_integer, uint64
from caldera.core.tensor.shape import normalise_axis, size
from caldera.errors import DtypeError, ShapeError
from caldera.op.arguments import as_number


def bias_add(x: Any, bias: Any, axis: int = -1) -> Expr:
    """x plus one number for each index along `axis` (1 for the channels of images).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bias_add(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), [10.0, 20.0], axis=0).tolist()
    [[11.0, 12.0], [23.0, 24.0]]
    """
    node, offset = lift_all(x, bias)
    position = normalise_axis(axis, len(node.shape), location("bias_add"))
    _check_bias(node, offset, position, "bias_add")
    after = (1,) * (len(node.shape) - position - 1)
    return Expr(add(node, reshape(offset, (*offset.shape, *after))))


def linear(x: Any, w: Any, b: Any = None) -> Expr:
    """x @ w + b over the last axis: (..., inputs) with w (inputs, outputs) to (..., outputs).

    The axes before the last are flattened, so this is one product however many there are.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.linear(cd.tensor([1.0, 2.0]), [[1.0, 0.0], [0.0, 1.0]], [10.0, 20.0]).tolist()
    [11.0, 22.0]
    """
    given = (x, w) if b is None else (x, w, b)
    node, weight, *bias = [as_float(each) for each in lift_all(*given)]
    if len(weight.shape) != 2 or not node.shape or node.shape[-1] != weight.shape[0]:
        raise ShapeError.build(
            location("linear"),
            expected="x (..., inputs) and w (inputs, outputs)",
            got=f"{describe(node)} and {describe(weight)}",
            hint="transpose w if its axes are the other way round",
        )
    leading, (inputs, outputs) = node.shape[:-1], weight.shape
    result = matmul(reshape(node, (size(leading), inputs)), weight, ta=False, tb=False)
    for offset in bias:
        _check_bias(result, offset, 1, "linear")
        result = add(result, offset)
    return Expr(reshape(result, (*leading, outputs)))


def embedding(table: Any, indices: Any) -> Expr:
    """The rows of `table` at `indices`: one vector for each word, category or atom.

    Indices are whole numbers of any shape; the result has that shape and then a row's. The gradient
    of a row is the sum over its uses. None is counted from the end: -1, which often marks padding,
    is refused like one past the last row.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.embedding(cd.tensor([[1.0, 2.0], [3.0, 4.0]]), [[1, 0], [1, 1]]).shape
    (2, 2, 2)
    """
    rows, places = lift(table), lift(indices)
    if not rows.shape:
        raise ShapeError.build(
            location("embedding"), expected="a table of shape (rows, width)", got=describe(rows)
        )
    if not is_integer(places.dtype):
        raise DtypeError.build(
            location("embedding"),
            expected="whole numbers as indices",
            got=describe(places),
            hint="cast them with op.cast(indices, 'int64')",
        )
    # As unsigned numbers negative ones are beyond every end.
    unsigned = places if places.dtype in UNSIGNED else cast(places, uint64)
    return Expr(gather(rows, unsigned, axis=0))


def _check_bias(x: Node, bias: Node, axis: int, name: str) -> None:
    if bias.shape != (x.shape[axis],):
        raise ShapeError.build(
            location(name),
            expected=f"a bias of shape ({x.shape[axis]},), for axis {axis}",
            got=f"{describe(bias)} for {describe(x)}",
        )


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
