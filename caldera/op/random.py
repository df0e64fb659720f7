"""Random numbers, permutations and samples, as expressions that are fixed within a step.

A number is a function of (seed, step, stream, index). The seed and the step come from `state`. Each
call of a function here takes the next stream (or the given one). The index is the position of the
element, counted from `offset`. So results depend neither on the device nor on the way a batch or a
plan is split.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.base.arguments import require, shown
from caldera.compiler.lazy import Expr, Variable, as_float, lift, var
from caldera.core.graph import Node, Op, describe, location
from caldera.core.graph.ops import (
    add,
    broadcast_to,
    cast,
    constant,
    cumsum,
    greater,
    iota,
    log,
    log1p,
    max_,
    minimum,
    mul,
    narrow,
    neg,
    random,
    sub,
    where,
)
from caldera.core.graph.ops.indexing import gather, sort, top_k
from caldera.core.tensor import (
    as_shape,
    canonical,
    float32,
    float64,
    int64,
    is_integer,
    normalise_axis,
)
from caldera.core.tensor import random as seeding
from caldera.errors import ConfigError, ShapeError
from caldera.op.arguments import as_count, place
from caldera.op.searching import searchsorted

__all__ = [
    "bernoulli",
    "dropout",
    "multinomial",
    "next_step",
    "permutation",
    "random_normal",
    "random_state",
    "random_uniform",
    "seed",
]

_lock = threading.Lock()


def random_state() -> Variable:
    """Return the variable (seed, step) that random expressions read by default.

    It can be saved and restored like any variable. A seed above 2**63 - 1 is stored as the int64
    with the same bits. A thread that has set a seed has a separate state, and a training step uses
    the state of its model.

    >>> from caldera import op
    >>> op.seed(5)
    >>> op.random_state().numpy().tolist()
    [5, 0]
    """
    streams = seeding.streams()
    with _lock:
        if streams.state is None:
            start = _bits(streams.seed, 0)
            streams.state = var("random state", (2,), fill=start, dtype=int64)
        return streams.state


def _bits(seed_: int, step: int) -> np.ndarray:
    return np.array([seed_, step], dtype=np.uint64).view(np.int64)


def seed(number: int) -> None:
    """Set the seed of all random numbers, and start again at the first step and stream.

    The seed is an int from 0 to 2**64 - 1; the default is 0. In the main thread it is the seed of
    the program; any other thread that calls this has a separate seed. Models have their own seeds,
    which neither follow this seed nor change it.

    >>> from caldera import op
    >>> op.seed(3)
    >>> first = op.random_uniform((2,)).tolist()
    >>> op.seed(3)
    >>> op.random_uniform((2,)).tolist() == first
    True
    """
    seeding.seed(number)
    streams = seeding.streams()
    with _lock:
        if streams.state is not None:
            streams.state.assign(_bits(streams.seed, 0))


def next_step() -> None:
    """Move the step of `random_state()` on by one: random expressions give new numbers.

    >>> from caldera import op
    >>> x = op.random_uniform((3,))
    >>> before = x.tolist()
    >>> x.tolist() == before
    True
    >>> op.next_step()
    >>> x.tolist() == before
    False
    """
    variable = random_state()
    seed_, step = variable.numpy().tolist()
    variable.assign([seed_, step + 1])


def _draw(
    make: Op, name: str, shape: Any, dtype: Any, state: Any, offset: Any, stream: int | None
) -> Node:
    return make(
        *_source(state, offset),
        shape=as_shape(shape, location(name)),
        dtype=canonical(dtype),
        stream=_number(stream),
    )


def _source(state: Any, offset: Any) -> tuple[Node, Node]:
    """Return the nodes of the state and of the first element's index."""
    first = lift(offset)
    if not is_integer(first.dtype) or (isinstance(offset, int) and offset < 0):
        raise ConfigError.build(
            location("random"), expected="offset= an integer >= 0", got=shown(offset)
        )
    return lift(random_state() if state is None else state), cast(first, int64)


def _number(stream: int | None) -> int:
    """Return the number of a random stream: the given one, or a new one."""
    return seeding.next_stream() if stream is None else stream


def _spread(draws: Node, scale: Any, shift: Any) -> Expr:
    """The numbers times `scale` plus `shift`, each a number or an expression that broadcasts."""
    result = draws
    for make, operand, neutral in ((mul, scale, 1), (add, shift, 0)):
        if not (isinstance(operand, int | float) and operand == neutral):
            other = cast(lift(operand, draws.dtype), draws.dtype)
            result = make(result, broadcast_to(other, draws.shape))
    return Expr(result)


def random_uniform(
    shape: int | Sequence[int],
    low: Any = 0.0,
    high: Any = 1.0,
    dtype: Any = "float32",
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """Return uniform numbers from `low` to `high`.

    Both may be expressions that broadcast to `shape`.

    From 0 to 1 the end is never reached; elsewhere rounding may reach it.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> x = op.random_uniform((1000,), 2.0, 4.0)
    >>> bool(op.all((x >= 2.0) & (x <= 4.0))), abs(float(op.mean(x)) - 3.0) < 0.1
    (True, True)
    """
    draws = _draw(random.random_uniform, "random_uniform", shape, dtype, state, offset, stream)
    plain = isinstance(low, int | float) and isinstance(high, int | float)
    return _spread(draws, high - low if plain else Expr(lift(high, draws.dtype)) - low, low)


def random_normal(
    shape: int | Sequence[int],
    mean: Any = 0.0,
    deviation: Any = 1.0,
    dtype: Any = "float32",
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """Return normal numbers; mean and deviation may be expressions that broadcast to `shape`.

    They are `mean + deviation * z`, so derivatives with respect to both exist.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> x = op.random_normal((1000,), mean=5.0)
    >>> abs(float(op.mean(x)) - 5.0) < 0.1, abs(float(op.variance(x)) - 1.0) < 0.1
    (True, True)
    """
    draws = _draw(random.random_normal, "random_normal", shape, dtype, state, offset, stream)
    return _spread(draws, deviation, mean)


def bernoulli(
    shape: int | Sequence[int],
    probability: Any = 0.5,
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """Return booleans, true with `probability`, which may be an expression that broadcasts.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> abs(float(op.mean(op.bernoulli((1000,), 0.25))) - 0.25) < 0.05
    True
    """
    where = location("bernoulli")
    _check_probability(where, "a probability", probability)
    chance = cast(lift(probability), float32)
    source = _source(state, offset)
    sizes = as_shape(shape, where)
    return Expr(random.bernoulli(*source, sizes, chance, _number(stream)))


def dropout(
    x: Any,
    rate: float = 0.5,
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """Set a fraction `rate` of the elements to zero, and scale the rest up to match.

    Each call has its own pattern, which changes with the step; evaluation uses `x` itself.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> sorted(set(op.dropout(cd.Tensor((100,), fill=cd.one()), 0.5).tolist()))
    [0.0, 2.0]
    """
    node = as_float(lift(x))
    _check_probability(place("dropout", node), "a rate", rate)
    if rate == 0:
        return Expr(node)
    source = _source(state, offset)
    return Expr(random.dropout(node, *source, rate=float(rate), stream=_number(stream)))


def _check_probability(where: str, what: str, value: Any) -> None:
    require(
        not isinstance(value, int | float) or 0 <= value <= 1, where, f"{what} from 0 to 1", value
    )


def permutation(
    x: Any,
    axis: int = 0,
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """Return the numbers below `x` in random order (int64), or the parts of `x` along `axis`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> sorted(op.permutation(5).tolist()), sorted(op.permutation([1.0, 2.0]).tolist())
    ([0, 1, 2, 3, 4], [1.0, 2.0])
    """
    node = None if isinstance(x, int) else lift(x)
    if node is None:
        (length,) = as_shape((x,), location("permutation"))
    else:
        which = normalise_axis(axis, len(node.shape), location("permutation"))
        length = node.shape[which]
    # 53 random digits: ties, which would keep their order, do not occur.
    draws = random_uniform((length,), dtype="float64", state=state, offset=offset, stream=stream)
    order = sort.outputs(draws.node, axis=0, descending=False)[1]
    return Expr(order if node is None else gather(node, order, axis=which))


def multinomial(
    probabilities: Any,
    samples: int,
    replacement: bool = True,
    *,
    state: Any = None,
    offset: Any = 0,
    stream: int | None = None,
) -> Expr:
    """Draw `samples` random indices (int64) along the last axis, each with its probability.

    Probabilities must be >= 0 and are normalised; the remaining axes are independent rows. Without
    `replacement` no index is drawn twice, and indices of probability 0 come after all others.

    >>> import caldera as cd
    >>> from caldera import op
    >>> cd.seed(0)
    >>> op.multinomial(cd.tensor([0.0, 1.0, 0.0]), 3).tolist()
    [1, 1, 1]
    >>> sorted(op.multinomial(cd.tensor([0.1, 5.0, 3.0]), 3, replacement=False).tolist())
    [0, 1, 2]
    """
    node = as_float(lift(probabilities))
    count = as_count(samples, "samples", "multinomial")
    *batch, length = node.shape or (0,)
    least = 1 if replacement else count
    if length < least:
        raise ShapeError.build(
            location("multinomial"),
            expected=f"probabilities of at least {least} indices",
            got=describe(node),
        )
    how: dict[str, Any] = {"state": state, "offset": offset, "stream": stream}
    if replacement:
        draws = random_uniform((*batch, count), dtype=float64, **how).node
        running = cumsum(cast(node, float64), axis=len(batch), reverse=False)
        total = narrow(running, len(batch), length - 1, 1)
        found = searchsorted(Expr(running), Expr(mul(draws, total)), "right")
        # Rounding may reach the total, but never an index of probability 0 behind the last.
        return Expr(minimum(found.node, _last_positive(node)))
    # The largest of log(p) and Gumbel noise (Yellott, 1977); p = 0 results in -inf.
    draws = random_uniform((*batch, length), dtype=float64, **how).node
    exponential = neg(log1p(neg(draws)))
    keys = sub(log(cast(node, float64)), log(exponential))
    return Expr(top_k.outputs(keys, k=count, axis=len(batch))[1])


def _last_positive(probabilities: Node) -> Node:
    """Return the last index along the last axis whose probability is not 0 (keeping the axis)."""
    axis = len(probabilities.shape) - 1
    places = iota(shape=probabilities.shape, axis=axis, dtype=int64)
    positive = greater(probabilities, constant(0, probabilities.dtype))
    return max_(where(positive, places, constant(0, int64)), axis=(axis,), keepdims=True)
