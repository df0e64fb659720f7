"""Random graphs: what the property tests of the passes are run on.

A graph grows node by node from a pool of values. Shapes are tiny (axes of length 0 and 1 included)
and values are simple fractions, now and then infinite or NaN. What grows depends on a seed, and how
far on a number of steps: a failure shrinks to the shortest graph of a seed that still shows it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from caldera.compiler.lazy import Variable, lift, var
from caldera.core.graph.differentiate import gradients
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import as_tuple, parameter
from caldera.core.graph.ops import base, control, movement, product, reduction
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.activation import gelu, log_softmax, softmax
from caldera.core.graph.ops.base import constant, iota
from caldera.core.graph.program import Body
from caldera.core.tensor.dtype import DType, float64, int32
from caldera.core.tensor.shape import Shape, broadcast_shapes

SHAPES: tuple[Shape, ...] = (
    (),
    (1,),
    (3,),
    (2, 3),
    (3, 2),
    (3, 3),
    (1, 3),
    (2, 1),
    (2, 1, 3),
    (0, 3),
)
VALUES = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -2.5, 3.0, 0.25)
WILD = (*VALUES, np.inf, -np.inf, np.nan)
CONSTANTS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0)

UNARY = (
    e.neg,
    e.square,
    e.abs_,
    e.relu,
    e.tanh,
    e.sigmoid,
    e.sign,
    e.floor,
    e.reciprocal,
    e.erf,
    e.sin,
    e.stop_gradient,
    e.sqrt,
    e.log1p,
)
BINARY = (e.add, e.sub, e.mul, e.div, e.maximum, e.minimum)
TESTS = (e.equal, e.not_equal, e.less, e.less_equal, e.greater, e.greater_equal)
EXTREMES = ("maximum", "minimum", "max", "min", "relu")
LOGIC = (e.logical_and, e.logical_or, e.logical_xor)


@dataclass
class Graph:
    """Some outputs, new values for some variables, and what the variables hold before."""

    dtype: DType
    outputs: list[Node] = field(default_factory=list)
    updates: list[tuple[Variable, Node]] = field(default_factory=list)
    variables: dict[Variable, np.ndarray] = field(default_factory=dict)


class Builder:
    """Grows a graph."""

    def __init__(self, seed: int, dtype: DType) -> None:
        self.random = random.Random(seed)
        self.graph = Graph(dtype)
        self.dtype = dtype
        self.values: list[Node] = []
        self.truths: list[Node] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(options)

    def chance(self) -> bool:
        return self.random.random() < 0.5

    # --- leaves

    def array(self, shape: Shape) -> np.ndarray:
        options = WILD if self.random.randint(0, 5) == 5 else VALUES
        generator = np.random.default_rng(self.random.randint(0, 1000))
        return generator.choice(options, shape).astype(self.dtype)

    def variable(self, shape: Shape) -> Node:
        array = self.array(shape)
        new = var(f"v{len(self.graph.variables)}", shape, fill=array, dtype=self.dtype)
        self.graph.variables[new] = array
        return new.node

    def number(self) -> Node:
        return constant(self.pick(CONSTANTS), self.dtype)

    def leaf(self) -> Node:
        shape = self.pick(SHAPES)
        kind = self.random.randint(0, 5)
        if kind == 0:
            return base.full(shape, self.pick(CONSTANTS), self.dtype)
        if kind == 1:
            return lift(self.array(shape))
        if kind == 2 and shape:
            axis = self.random.randrange(len(shape))
            return base.cast(iota(shape=shape, axis=axis, dtype=int32), self.dtype)
        return self.variable(shape)

    # --- operands

    def value(self) -> Node:
        """Mostly a recent one, so that graphs grow deep."""
        return self.pick(self.values[-4:] if self.random.random() < 0.7 else self.values)

    def beside(self, x: Node) -> Node:
        """An operand that fits `x`: a number, a value that broadcasts, or a new variable."""
        kind = self.random.randint(0, 3)
        if kind == 0:
            return self.number()
        if kind == 1:
            return base.full(x.shape, self.pick(CONSTANTS), self.dtype)
        fitting = [other for other in self.values if _broadcasts(x.shape, other.shape)]
        return self.pick(fitting) if fitting else self.variable(x.shape[-1:])

    def axes(self, x: Node) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(x.shape)) if self.chance())

    # --- steps

    def unary(self) -> Node:
        return self.without_sign(self.pick(UNARY)(self.value()))

    def binary(self) -> Node:
        x = self.value()
        y = self.beside(x)
        return self.without_sign(self.pick(BINARY)(*((x, y) if self.chance() else (y, x))))

    def without_sign(self, x: Node) -> Node:
        """Which of 0.0 and -0.0 is larger depends on the machine: adding 0.0 makes it 0.0."""
        return e.add(x, constant(0, self.dtype)) if x.op.name in EXTREMES else x

    def power(self) -> Node:
        # Whole numbers: NumPy is of two minds about (-inf) ** 0.5, depending on strides.
        exponent = constant(self.pick((0.0, -0.0, 1.0, 2.0, -1.0, 3.0)), self.dtype)
        x = self.value()
        return e.pow_(x, base.broadcast_to(exponent, x.shape) if self.chance() else exponent)

    def choose(self) -> Node:
        x = self.value()
        y = self.beside(x)
        test = self.pick(TESTS)(x, y)
        self.truths.append(test)
        if self.chance():
            other = self.pick(self.truths)
            if _broadcasts(test.shape, other.shape):
                test = self.pick(LOGIC)(test, other)
                self.truths.append(test)
        if self.chance():
            test = e.logical_not(test)
        if self.chance():
            return base.cast(test, self.dtype)
        return e.where(test, *((x, y) if self.chance() else (y, x)))

    def reduce(self) -> Node:
        x = self.value()
        axes = self.axes(x)
        keepdims = self.chance()
        kind = self.random.randint(0, 6)
        if kind <= 1 or any(x.shape[axis] == 0 for axis in axes):
            return base.sum_(x, axes, keepdims)
        if kind == 2:
            return self.without_sign(reduction.max_(x, axis=axes, keepdims=keepdims))
        if kind == 3:
            return self.without_sign(reduction.min_(x, axis=axes, keepdims=keepdims))
        if kind == 4:
            return reduction.prod(x, axis=axes, keepdims=keepdims)
        if kind == 5:
            return reduction.mean(x, axis=axes, keepdims=keepdims)
        return reduction.var(x, axis=axes, keepdims=keepdims, correction=0)

    def move(self) -> Node:
        x = self.value()
        kind = self.random.randint(0, 9)
        rank = len(x.shape)
        if kind == 0:
            return base.reshape(x, (x.spec.size,))
        if kind == 1:
            return base.reshape(x, self.pick([(1, *x.shape), (*x.shape, 1)])) if rank < 3 else x
        if kind == 2:
            return movement.transpose(x, tuple(self.random.sample(range(rank), rank)))
        if kind == 3:
            bounds = [self.pick([(0, n, 1), (n // 2, n, 1), (0, n, 2)]) for n in x.shape]
            return movement.slice_(x, tuple(bounds))
        if kind == 4:
            widths = tuple(self.pick([(0, 0), (1, 0), (0, 2)]) for _ in x.shape)
            return movement.pad(x, widths, self.pick(CONSTANTS))
        if kind == 5:
            return movement.flip(x, self.axes(x))
        if kind == 6:
            return base.broadcast_to(x, (2, *x.shape)) if rank < 3 else x
        if kind == 7:
            grown = tuple(2 if n == 1 else n for n in x.shape)
            return base.broadcast_to(x, grown)
        if rank == 0:
            return x
        axis = self.random.randint(0, rank - 1)
        if kind == 8:
            return movement.concat((x, e.neg(x)), axis)
        n = x.shape[axis]
        first, second = movement.split(x, (n // 2, n - n // 2), axis)
        self.values.append(first)
        return second

    def multiply(self) -> Node:
        x = self.value()
        if len(x.shape) < 2:
            return e.mul(x, x)
        ta, tb = self.chance(), self.chance()
        if self.chance():
            x = movement.swap_last(x)
        inner = x.shape[-2 if ta else -1]
        other = self.variable((2, inner) if tb else (inner, 2))
        if self.chance():
            other = movement.swap_last(other)
            tb = not tb
        result = product.matmul(x, other, ta=ta, tb=tb)
        kind = self.random.randint(0, 4)
        if kind >= 1:
            result = e.add(result, self.variable((2,)))
        if kind >= 2:
            activation = self.pick((e.relu, e.sigmoid, e.tanh, lambda z: gelu(z, approximate=True)))
            result = self.without_sign(activation(result))
        return result

    def normalise(self) -> Node:
        x = e.tanh(self.value())
        if not x.shape or x.shape[-1] == 0:
            return x
        axis = len(x.shape) - 1
        kind = self.random.randint(0, 3)
        if kind == 0:
            return softmax(x, axis=axis)
        if kind == 1:
            return log_softmax(x, axis=axis)
        if kind == 2:
            return e.log(softmax(x, axis=axis))
        weights = e.exp(e.sub(x, reduction.max_(x, axis=(axis,), keepdims=True)))
        return e.div(weights, base.sum_(weights, (axis,), keepdims=True))

    def recast(self) -> Node:
        x = self.value()
        if self.dtype == float64:
            return x
        return base.cast(e.square(base.cast(x, float64)), self.dtype)

    def loop(self) -> Node:
        """A scan over the first axis of a value, handing out one or two things a step."""
        xs = self.value()
        if not xs.shape:
            return xs
        step = Spec(xs.shape[1:], self.dtype)
        carry, x, gain = parameter(0, step), parameter(1, step), parameter(2, Spec((), self.dtype))
        new = e.tanh(e.add(e.mul(carry, e.sin(gain) if self.chance() else gain), x))
        outputs = [new]
        if self.chance():
            outputs.append(e.mul(new, x))
        if self.chance():
            outputs.append(e.add(e.mul(x, constant(1, self.dtype)), gain))
        results = control.scan.outputs(
            base.full(step.shape, self.pick(CONSTANTS), self.dtype),
            xs,
            self.variable(()),
            body=Body((carry, x, gain), outputs),
            carries=1,
            sequences=1,
            length=xs.shape[0],
            reverse=self.chance(),
        )
        self.values.extend(as_tuple(results))
        return self.pick(as_tuple(results))

    def derive(self) -> Node:
        x = self.value()
        scalar = base.sum_(e.mul(x, e.tanh(x)), tuple(range(len(x.shape))))
        wanted = [variable.node for variable in self.graph.variables][:3]
        if not wanted:
            return scalar
        slopes = gradients(scalar, wanted, unused="zero")
        self.values.extend(slopes)
        self.graph.outputs.extend(slopes)
        return scalar

    def grow(self, steps: int) -> None:
        self.values = [self.variable((2, 3)), self.leaf(), self.leaf()]
        kinds = (
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.power,
            self.choose,
            self.reduce,
            self.reduce,
            self.move,
            self.move,
            self.multiply,
            self.normalise,
            self.recast,
            self.loop,
            self.leaf,
        )
        for _ in range(steps):
            self.values.append(self.pick(kinds)())
        if self.chance():
            self.derive()
            for _ in range(3):
                self.values.append(self.pick((self.unary, self.binary, self.reduce))())

    def finish(self) -> Graph:
        graph = self.graph
        for variable in graph.variables:
            fitting = [node for node in self.values if node.spec == variable.node.spec]
            if fitting and self.chance():
                graph.updates.append((variable, self.pick(fitting)))
        graph.outputs.extend(self.values[-3:])
        graph.outputs.extend(self.value() for _ in range(self.random.randint(0, 3)))
        if self.truths and self.chance():
            graph.outputs.append(self.pick(self.truths))
        return graph


def _broadcasts(first: Shape, second: Shape) -> bool:
    try:
        broadcast_shapes(first, second)
    except ValueError:
        return False
    return True


def build(seed: int, steps: int, dtype: DType) -> Graph:
    """The graph of a seed after some steps."""
    builder = Builder(seed, dtype)
    builder.grow(steps)
    return builder.finish()


def graphs(dtype: DType, most_steps: int = 20) -> st.SearchStrategy[Graph]:
    """Random graphs of a dtype."""
    seeds = st.integers(0, 1 << 32)
    return st.builds(build, seeds, st.integers(1, most_steps), st.just(dtype))
