"""Functional layers: linear maps, embeddings, attention and normalisation.

Images are (N, C, ...), with the channels on axis 1. Half-precision inputs are normalised in
float32; their scale and shift may be float32, and the result has the dtype of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

from caldera.compiler.lazy import Expr, as_float, lift, lift_all, wrap
from caldera.core.graph import Node, describe, location
from caldera.core.graph.ops import (
    accumulator,
    add,
    attention,
    cast,
    elementwise,
    full,
    matmul,
    normalisation,
    reshape,
    widen,
)
from caldera.core.graph.ops import mean as mean_of
from caldera.core.graph.ops.collective import next_number
from caldera.core.graph.ops.indexing import gather
from caldera.core.tensor import (
    HALVES,
    UNSIGNED,
    is_float,
    is_integer,
    normalise_axes,
    normalise_axis,
    size,
    uint64,
)
from caldera.errors import ConfigError, DtypeError, ShapeError
from caldera.op.arguments import as_count, as_number

__all__ = [
    "batch_norm",
    "batch_norm_over_ranks",
    "bias_add",
    "embedding",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "linear",
    "local_response_norm",
    "rms_norm",
    "scaled_dot_product_attention",
]


def bias_add(x: Any, bias: Any, axis: int = -1) -> Expr:
    """Add one number for each index along `axis` (1 for the channels of images).

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
    """Compute x @ w + b over the last axis: (..., inputs) with w (inputs, outputs).

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
    """Return the rows of `table` at `indices`: one vector for each word, category or atom.

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
            expected="integers as indices",
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
    """Return softmax(scale * q k^T) v, the attention of queries to keys.

    The axes before the last two broadcast (batches, heads). A query without visible keys results in
    0, not NaN.

    Args:
        q: Queries (..., T, D).
        k: Keys (..., S, D).
        v: Values (..., S, E).
        mask: Mask that broadcasts to (..., T, S): booleans select the keys that a query attends to,
            numbers are added to the scores.
        causal: True to mask the keys after each query. The last query and the last key have the
            same position, so with S > T the first S - T keys are the past (a cache, for example).
        scale: Factor of the scores, 1 / sqrt(D) unless given.

    Returns:
        Values (..., T, E).

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


@overload
def batch_norm(
    x: Any,
    scale: Any,
    shift: Any,
    mean: None = None,
    variance: None = None,
    eps: float = 1e-5,
    axis: int = 1,
) -> tuple[Expr, Expr, Expr]: ...


@overload
def batch_norm(
    x: Any, scale: Any, shift: Any, mean: Any, variance: Any, eps: float = 1e-5, axis: int = 1
) -> Expr: ...


def batch_norm(
    x: Any,
    scale: Any,
    shift: Any,
    mean: Any = None,
    variance: Any = None,
    eps: float = 1e-5,
    axis: int = 1,
) -> Expr | tuple[Expr, Expr, Expr]:
    """Return (x - mean) / sqrt(variance + eps) * scale + shift, for each channel along `axis`.

    Args:
        x: Batch.
        scale: Factor of each channel.
        shift: Summand of each channel.
        mean: Mean of each channel for inference. For training, omit mean and variance: they are
            computed from x, over all axes but `axis`.
        variance: Variance of each channel for inference.
        eps: Number added to the variance.
        axis: Axis of the channels.

    Returns:
        y; without mean and variance (y, mean, variance), the latter two for running averages. This
        is the batch variance (divided by n, not n - 1).

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[1.0, 10.0], [3.0, 10.0]])
    >>> y, mean, variance = op.batch_norm(x, [1.0, 1.0], [0.0, 5.0], eps=0.0078125)
    >>> mean.tolist(), variance.tolist()
    ([2.0, 10.0], [1.0, 0.0])
    >>> y[:, 1].tolist()
    [5.0, 5.0]
    >>> op.batch_norm(x, [1.0, 1.0], [0.0, 0.0], [1.0, 8.0], [4.0, 4.0], eps=0.0).tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """
    if (mean is None) != (variance is None):
        raise ConfigError.build(
            location("batch_norm"), expected="mean and variance, or neither", got="exactly one"
        )
    given = (scale, shift) if mean is None else (scale, shift, mean, variance)
    nodes = _with_parameters(x, *given)
    attrs: dict[str, Any] = {
        "axis": normalise_axis(axis, len(nodes[0].shape), location("batch_norm")),
        "eps": _epsilon(eps, "batch_norm"),
    }
    if mean is not None:
        return Expr(normalisation.batch_norm_inference(*nodes, **attrs))
    return wrap(normalisation.batch_norm.outputs(*nodes, **attrs))


def batch_norm_over_ranks(
    x: Any,
    scale: Any,
    shift: Any,
    eps: float = 1e-5,
    axis: int = 1,
    mesh: str = "data",
) -> tuple[Expr, Expr, Expr, Expr]:
    """Return `batch_norm` for training, with mean and variance of the samples of all ranks.

    x has the samples of this rank, possibly none. The result is (y, mean, variance,
    count); the count is the number of elements of a channel on all ranks along this axis of the
    mesh.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[1.0, 10.0], [3.0, 10.0]])
    >>> y, mean, variance, count = op.batch_norm_over_ranks(x, [1.0, 1.0], [0.0, 5.0])
    >>> mean.tolist(), variance.tolist(), count.item()
    ([2.0, 10.0], [1.0, 0.0], 2.0)
    """
    nodes = _with_parameters(x, scale, shift)
    where = "batch_norm_over_ranks"
    return wrap(
        normalisation.batch_norm_over_ranks.outputs(
            *nodes,
            axis=normalise_axis(axis, len(nodes[0].shape), location(where)),
            eps=_epsilon(eps, where),
            mesh=mesh,
            number=next_number(),
        )
    )


def layer_norm(
    x: Any, scale: Any, shift: Any, axis: int | Sequence[int] = -1, eps: float = 1e-5
) -> Expr:
    """Normalise x over `axis` (one or several), times scale plus shift, which have its sizes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[-3.0, 3.0], [5.0, 5.0]])
    >>> op.layer_norm(x, [1.0, 1.0], [0.0, 1.0], eps=7.0).tolist()
    [[-0.75, 1.75], [0.0, 1.0]]
    """
    node, *parameters = _with_parameters(x, scale, shift)
    axes = normalise_axes(axis, len(node.shape), location("layer_norm"))
    number = _epsilon(eps, "layer_norm")
    return Expr(normalisation.layer_norm.outputs(node, *parameters, axis=axes, eps=number)[0])


def group_norm(x: Any, groups: int, scale: Any, shift: Any, eps: float = 1e-5) -> Expr:
    """Normalise (N, C, ...) over each of `groups` groups of channels, sample by sample.

    `scale` and `shift` have one number a channel. One group is layer norm over all channels, C
    groups are instance norm.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[-3.0, 3.0, 5.0, 5.0]])
    >>> op.group_norm(x, 2, [1.0] * 4, [0.0] * 4, eps=7.0).tolist()
    [[-0.75, 0.75, 0.0, 0.0]]
    """
    nodes = _with_parameters(x, scale, shift)
    count = as_count(groups, "groups", "group_norm")
    number = _epsilon(eps, "group_norm")
    return Expr(normalisation.group_norm.outputs(*nodes, groups=count, eps=number)[0])


def instance_norm(x: Any, scale: Any = None, shift: Any = None, eps: float = 1e-5) -> Expr:
    """Normalise (N, C, ...) separately over each channel of each sample.

    `scale` and `shift` have one number a channel; without them they are 1 and 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[-3.0, 3.0], [5.0, 5.0]]])
    >>> op.instance_norm(x, eps=7.0).tolist()
    [[[-0.75, 0.75], [0.0, 0.0]]]
    """
    node = as_float(lift(x))
    if len(node.shape) < 3:
        raise ShapeError.build(
            location("instance_norm"), expected="x of shape (N, C, ...)", got=describe(node)
        )
    channels = node.shape[1]
    one, none = (Expr(full((channels,), number, node.dtype)) for number in (1, 0))
    scale, shift = one if scale is None else scale, none if shift is None else shift
    return group_norm(x, channels, scale, shift, eps)


def rms_norm(x: Any, scale: Any = None, axis: int | Sequence[int] = -1, eps: float = 1e-6) -> Expr:
    """Divide x by its root mean square along `axis` (one or several), times scale of its sizes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.rms_norm(cd.tensor([[3.0, -3.0]]), cd.tensor([1.0, 2.0]), eps=7.0).tolist()
    [[0.75, -1.5]]
    """
    node, *parameters = (as_float(lift(x)),) if scale is None else _with_parameters(x, scale)
    axes = normalise_axes(axis, len(node.shape), location("rms_norm"))
    wide = widen(node)
    squares = mean_of(elementwise.square(wide), axis=axes, keepdims=True)
    number = elementwise.scalar(_epsilon(eps, "rms_norm"), wide)
    result = elementwise.mul(wide, elementwise.rsqrt(elementwise.add(squares, number)))
    sizes = tuple(node.shape[i] for i in axes)
    for each in parameters:
        if each.shape != sizes:
            raise ShapeError.build(
                location("rms_norm"), expected=f"scale of shape {sizes}", got=describe(each)
            )
        shape = tuple(n if i in axes else 1 for i, n in enumerate(node.shape))
        result = elementwise.mul(result, reshape(cast(each, wide.dtype), shape))
    return Expr(cast(result, node.dtype))


def local_response_norm(
    x: Any, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Expr:
    """Return x / (k + alpha / size * s) ** beta, with s = sum(x^2 over `size` channels).

    x has shape (N, C, ...), and s is the sum over neighbouring channels. Meaning and defaults are
    as in PyTorch. AlexNet's paper has k = 2 and does not divide alpha by the size: there it is
    local_response_norm(x, 5, 5 * 1e-4, 0.75, 2.0). Channels outside count as 0; an even number of
    neighbours includes one more below than above.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[1.0, 2.0, 0.0]])
    >>> op.local_response_norm(x, size=2, alpha=2.0, beta=1.0, k=3.0).tolist()
    [[0.25, 0.25, 0.0]]
    """
    name = "local_response_norm"
    node = normalisation.local_response_norm(
        as_float(lift(x)),
        window=as_count(size, "size", name),
        alpha=as_number(alpha, "alpha", name),
        beta=as_number(beta, "beta", name),
        k=as_number(k, "k", name),
    )
    return Expr(node)


def _epsilon(eps: Any, name: str) -> float:
    number = as_number(eps, "eps", name)
    if number < 0:
        raise ConfigError.build(location(name), expected="eps= 0 or more", got=repr(eps))
    return number


def _with_parameters(x: Any, *parameters: Any) -> tuple[Node, ...]:
    """Return x and its parameters in one dtype; float32 parameters of half-precision x stay so."""
    node = as_float(lift(x))
    own = tuple(as_float(parameter) for parameter in lift_all(*parameters))
    if node.dtype in HALVES and own[0].dtype in (node.dtype, accumulator(node.dtype)):
        return node, *own
    return tuple(as_float(each) for each in lift_all(Expr(node), *parameters))
