"""Cases for ops that hold a graph, and for assignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, wrap
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import iota, sum_
from caldera.core.graph.ops.control import fused, items
from caldera.core.graph.ops.elementwise import add, exp, mul
from caldera.core.graph.program import Body
from tests.unit.ops.case import Case, numbers

Step = Callable[[Any, Any], tuple[Any, Any]]


def loop(step: Step, carry: Any, xs: Any, length: int, reverse: bool = False) -> tuple[Any, Any]:
    """What a scan computes, as a loop over arrays; xs is a tuple of arrays, y one array or none."""
    ys: list[Any] = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        carry, ys[t] = step(carry, tuple(x[t] for x in xs))
    return carry, ys


# --- a recurrent network: products, an element-wise function, a bias; the weights are constants


def _recurrent(h: Expr, x: Expr, w: Expr, u: Expr, b: Expr) -> list[Expr]:
    def step(h: Expr, x: Expr) -> tuple[Expr, Expr]:
        new = op.tanh(x @ w + h @ u + b)
        return new, new * new

    last, squares = op.scan(step, h, x)
    return [last, squares]


def _recurrent_by_numpy(h: np.ndarray, x: np.ndarray, *weights: np.ndarray) -> list[np.ndarray]:
    w, u, b = weights
    squares = []
    for each in x:
        h = np.tanh(each @ w + h @ u + b)
        squares.append(h * h)
    return [h, np.reshape(squares, (len(x), *h.shape))]


def _network(steps: int, batch: int = 2) -> tuple[np.ndarray, ...]:
    return (
        numbers(batch, 3),
        numbers(steps, batch, 2),
        numbers(2, 3, seed=1),
        numbers(3, 3, seed=2),
        numbers(3, seed=3),
    )


# --- several carries and sequences, one of them integer, in tuples


def _several(a: Expr, b: Expr, x: Expr, z: Expr, reverse: bool) -> list[Expr]:
    def step(carry: Any, given: Any) -> tuple[Any, Any]:
        (a, count), b = carry
        x, (z,) = given
        a = a * x + op.sin(b)
        b = b + z * a * op.cast(count, b.dtype)
        return ((a, count + 1), b), (a * b, None, x - a)

    ((a, _), b), (products, _, rest) = op.scan(step, ((a, 0), b), (x, (z,)), reverse=reverse)
    return [a, b, products, rest]


def _several_by_numpy(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, z: np.ndarray, reverse: bool
) -> list[Any]:
    def step(carry: Any, given: Any) -> tuple[Any, Any]:
        a, b, count = carry
        x, z = given
        a = a * x + np.sin(b)
        b = b + z * a * count
        return (a, b, count + 1), (a * b, x - a)

    (a, b, _), ys = loop(step, (a, b, 0), (x, z), len(x), reverse)
    return [a, b, np.stack([y for y, _ in ys]), np.stack([y for _, y in ys])]


_SEVERAL = (numbers(2), numbers(2, seed=1), numbers(3, 2), numbers(3, seed=2))


# --- a loop in a loop, which reads the outer carry, the outer sequence and a variable from outside


def _nested(x: Expr, w: Expr) -> Expr:
    def outer(total: Expr, row: Expr) -> tuple[Expr, Expr]:
        def inner(state: Expr, element: Expr) -> tuple[Expr, Expr]:
            state = state * w + element * total
            return state, state + op.sum(row)

        state, trail = op.scan(inner, total, row)
        return state, op.sum(trail * trail)

    last, sums = op.scan(outer, 1.0 + 0.0 * w, x)
    return last + op.sum(sums)


def _nested_by_numpy(x: np.ndarray, w: np.ndarray) -> Any:
    total, result = 1.0, 0.0
    for row in x:
        state = total
        for element in row:
            state = state * w + element * total
            result += (state + row.sum()) ** 2
        total = state
    return total + result


# --- parts of a loop that nobody asked for, or that no derivative reaches


def _only_last(x: Expr, w: Expr) -> Expr:
    last, _ = op.scan(lambda h, x: (op.sin(h * w + x), op.exp(h)), 0.5 * w, x)
    return last


def _only_outputs(x: Expr, w: Expr) -> Expr:
    def step(carry: Any, x: Expr) -> tuple[Any, Any]:
        h, unused = carry
        return (op.sin(h * w + x), unused * 2.0), (h * h, op.floor(h))

    return op.scan(step, (0.5 * w, w), x)[1][0]


def _only_outputs_by_numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    _, ys = loop(lambda h, x: (np.sin(h * w + x[0]), h * h), 0.5 * w, (x,), len(x))
    return np.array(ys)


def _powers(x: Expr) -> tuple[Expr, Expr]:
    return op.scan(lambda power, _: (power * x, power), x, length=3)


def _mapped(x: Expr, w: Expr) -> Expr:
    return op.scan(lambda _, x: ((), x * x @ w), (), x)[1]


def _passed_on(x: Expr, w: Expr) -> list[Expr]:
    """A carry that is only handed on, one that is replaced, and a y that is a constant."""

    def step(carry: Any, x: Expr) -> tuple[Any, Any]:
        kept, replaced = carry
        return (kept, x * kept), (w, replaced)

    (kept, replaced), (constants, trail) = op.scan(step, (w * 2.0, w), x)
    return [kept, replaced, constants, trail]


def _batches(x: Expr, w: Expr) -> Expr:
    """Constants that meet products of batches, of vectors, and of themselves."""

    def step(h: Expr, x: Expr) -> tuple[Expr, Expr]:
        h = op.tanh(h @ w + (w @ op.transpose(w)) @ x)
        return h, op.logsumexp(h, axis=-1)

    last, sums = op.scan(step, op.unsqueeze(w, 0), x)
    return op.concat([op.flatten(last), op.flatten(sums)])


def _batches_by_numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    h, sums = w[None], []
    for each in x:
        h = np.tanh(h @ w + w @ w.T @ each)
        sums.append(np.log(np.exp(h).sum(-1)))
    return np.concatenate([h.ravel(), np.ravel(sums)])


# --- a fused node: made by passes, here by hand


def _fused(x: Expr, y: Expr) -> list[Expr]:
    product = mul(exp(x.node), y.node)
    outputs: list[Node] = [product, sum_(add(product, x.node), (1,))]
    body = Body([x.node, y.node], outputs)
    return list(wrap(items(fused.node(x.node, y.node, body=body))))


def _fused_alone(x: Expr) -> Expr:
    positions = iota(shape=(3,), axis=0, dtype=x.dtype)
    return Expr(fused(x.node, body=Body([x.node], [mul(x.node, add(x.node, positions))])))


def _assigned(x: Expr) -> Expr:
    return op.assign(op.var("target", x.shape, dtype=x.dtype), x * 2.0)


CASES = [
    *[
        Case(
            "scan",
            _recurrent,
            _network(steps),
            _recurrent_by_numpy,
            order=order,
            name=f"{steps} steps",
        )
        for steps, order in ((2, 2), (1, 2), (0, 2), (4, 1))
    ],
    Case(
        "scan",
        lambda *xs: _several(*xs, reverse=False),
        _SEVERAL,
        lambda *xs: _several_by_numpy(*xs, reverse=False),
        order=2,
        name="several",
    ),
    Case(
        "scan",
        lambda *xs: _several(*xs, reverse=True),
        _SEVERAL,
        lambda *xs: _several_by_numpy(*xs, reverse=True),
        order=2,
        name="reverse",
    ),
    Case("scan", _nested, (numbers(2, 3), numbers()), _nested_by_numpy, order=2, name="nested"),
    Case(
        "scan",
        _only_last,
        (numbers(3), numbers()),
        lambda x, w: loop(lambda h, x: (np.sin(h * w + x[0]), 0), 0.5 * w, (x,), 3)[0],
        order=2,
        name="last carry used",
    ),
    Case(
        "scan",
        _only_outputs,
        (numbers(3), numbers()),
        _only_outputs_by_numpy,
        order=2,
        name="one y used",
    ),
    Case(
        "scan",
        _powers,
        (numbers(2),),
        lambda x: (x**4, np.stack([x, x**2, x**3])),
        order=2,
        name="length",
    ),
    Case(
        "scan",
        _mapped,
        (numbers(2, 2, 3), numbers(3, 2)),
        lambda x, w: x * x @ w,
        order=2,
        name="no carry",
    ),
    Case(
        "scan",
        _passed_on,
        (numbers(3, 2), numbers(2)),
        lambda x, w: [
            2 * w,
            2 * w * x[2],
            np.stack([w] * 3),
            np.stack([w, 2 * w * x[0], 2 * w * x[1]]),
        ],
        order=2,
        name="passed on",
    ),
    Case(
        "scan",
        _batches,
        (numbers(2, 1, 2, 2), numbers(2, 2)),
        _batches_by_numpy,
        order=2,
        name="batches",
    ),
    Case(
        "fused",
        _fused,
        (numbers(2, 3), numbers(3)),
        lambda x, y: [np.exp(x) * y, (np.exp(x) * y + x).sum(1)],
        order=2,
    ),
    Case(
        "fused",
        _fused_alone,
        (numbers(3),),
        lambda x: x * (x + np.arange(3)),
        order=2,
        name="one output",
    ),
    Case("assign", _assigned, (numbers(2, 3),), lambda x: 2 * x, differentiable=False),
]

# --- derivatives written by hand: those of the function itself, so that differences agree


def _product(g: Expr, y: Expr, x: Expr, z: Expr) -> tuple[Expr, Expr]:
    return g * op.exp(z), g * y


CASES += [
    Case(
        "with_gradient",
        lambda x, z: op.custom_gradient(lambda x, z: x * op.exp(z), _product, x, z),
        (numbers(2, 3), numbers(2, 3, seed=1)),
        lambda x, z: x * np.exp(z),
        order=2,
    ),
    Case(
        "with_gradient",
        lambda x: op.custom_gradient(
            lambda x: (op.sin(x), op.cos(x)),
            lambda g, y, x: g[0] * y[1] - g[1] * y[0],
            x,
        )[1],
        (numbers(4),),
        np.cos,
        order=2,
        name="several",
    ),
]
