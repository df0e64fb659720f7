"""Mixed precision: products in float16 or bfloat16, everything delicate in float32.

Variables stay float32 (the master weights) and are cast where a product reads them; so do program
outputs and the new values of variables. Values between two products are stored in half precision.
After the last product on a path (a loss, an optimizer's update) everything is float32. Casts are
explicit nodes; two consecutive casts cancel in a later pass. Kernels accumulate halves in float32.
Complex numbers, Fourier transforms included, are computed in their own precision.

With "float8" products of inner dense layers are computed in 8 bits, and everything else as with
"bfloat16"; see `float8`. With "tf32" everything stays float32; products and convolutions are only
marked. A device may round their factors to the precision of its tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from caldera.compiler.passes.constants import source_of, uniform
from caldera.compiler.passes.float8 import float8_products
from caldera.core.graph import ITEM, Body, Node, Program, item, rewrite
from caldera.core.graph.ops.base import cast
from caldera.core.graph.ops.control import scan, with_body
from caldera.core.tensor.dtype import DType, bfloat16, bool_, float16, float32, is_complex
from caldera.errors import ConfigError

ALL = 99
"""Number that stands for all inputs of an op."""

PRODUCTS: dict[str, int] = {
    "matmul": ALL,
    "matmul_epilogue": ALL,
    "conv2d": ALL,
    "conv2d_epilogue": ALL,
    "conv2d_input": ALL,
    "conv2d_weight": ALL,
    "scaled_dot_product_attention": ALL,
    # g, q, k, v and perhaps the result; the rows' sums stay float32.
    "scaled_dot_product_attention_backward": 5,
    "scaled_dot_product_attention_grad": 4,
}
"""Always in half precision: number of inputs to cast, counted from the first."""

STORED: dict[str, int] = {
    # Arithmetic that neither overflows easily nor loses more than one rounding.
    "add": ALL,
    "sub": ALL,
    "mul": ALL,
    "neg": ALL,
    "abs": ALL,
    "sign": ALL,
    "maximum": ALL,
    "minimum": ALL,
    "floor": ALL,
    "ceil": ALL,
    "round": ALL,
    "where": ALL,
    "stop_gradient": ALL,
    "guarded": ALL,
    "max": ALL,
    "min": ALL,
    "equal": ALL,
    "not_equal": ALL,
    "less": ALL,
    "less_equal": ALL,
    "greater": ALL,
    "greater_equal": ALL,
    "isfinite": ALL,
    "isnan": ALL,
    # Activations with bounded slopes.
    "relu": ALL,
    "sigmoid": ALL,
    "tanh": ALL,
    "erf": ALL,
    "leaky_relu": ALL,
    "elu": ALL,
    "selu": ALL,
    "gelu": ALL,
    "silu": ALL,
    "hard_sigmoid": ALL,
    "hard_swish": ALL,
    "mish": ALL,
    "softsign": ALL,
    "prelu": ALL,
    "atan": ALL,
    "asinh": ALL,
    # Moving elements.
    "reshape": ALL,
    "transpose": ALL,
    "slice": ALL,
    "unslice": ALL,
    "pad": ALL,
    "flip": ALL,
    "concat": ALL,
    "split": ALL,
    "tile": ALL,
    "repeat": ALL,
    "broadcast_to": ALL,
    "gather": ALL,
    "take_along_axis": ALL,
    "max_pool2d": ALL,
    "pool_gather": ALL,
    "pool_scatter": ALL,
    "dropout": ALL,
    # These take halves and compute in float32 inside; statistics and parameters stay float32.
    "softmax": ALL,
    "softmax_grad": ALL,
    "avg_pool2d": ALL,
    "avg_pool2d_input": ALL,
    "batch_norm": 1,
    "batch_norm_inference": 1,
    "batch_norm_grad": 2,
    "layer_norm": 1,
    "layer_norm_grad": 2,
    "group_norm": 1,
    "group_norm_grad": 2,
    "local_response_norm": 1,
    "local_response_norm_grad": 2,
}
"""In half precision between two products if the first inputs are: number of such inputs."""

STATISTICS_GRADIENTS = frozenset({"batch_norm_grad", "layer_norm_grad", "group_norm_grad"})
"""Gradients by the mean and variance of x, of g and x."""
NORM_GRADIENTS = STATISTICS_GRADIENTS | {"local_response_norm_grad"}
"""Gradients that read the x of the forward norm. If x were rounded after its mean was taken, it
would be off by many deviations when the mean is large compared to these.
"""

COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
"""Comparisons, whose results would change if a constant were rounded."""

HALF_NAMES = {"float16": float16, "bfloat16": bfloat16}
NAMES = (*HALF_NAMES, "tf32", "float8")
"""Values accepted by `precision`."""
ROUNDED = frozenset(
    {
        "matmul",
        "conv2d",
        "conv2d_input",
        "conv2d_weight",
        "scaled_dot_product_attention",
        "scaled_dot_product_attention_backward",
        "scaled_dot_product_attention_grad",
    }
)
"""Products that tensor cores may round; later products derived from these inherit the mark."""


def lower_precision(program: Program, precision: str | None) -> Program:
    """Return the program with float32 products in `precision`; unchanged if it is None."""
    if precision is None:
        return program
    if precision == "tf32":
        return _marked(program)
    if precision == "float8":
        return float8_products(_Narrowing(program, bfloat16).run())
    if precision not in HALF_NAMES:
        raise ConfigError.build(
            "precision",
            expected="one of " + ", ".join(NAMES),
            got=repr(precision),
            hint="leave it out to compute everything in float32",
        )
    return _Narrowing(program, HALF_NAMES[precision]).run()


def _marked(program: Program) -> Program:
    """Return the program with products of float32 that may be rounded."""

    def mark(node: Node) -> Node | None:
        if node.op is scan:
            body: Body = node.attrs["body"]
            return with_body(node, body.with_outputs(_marked(Program(body.outputs)).outputs))
        if node.op.name in ROUNDED and node.outputs[0].dtype == float32:
            return node.op.node(*node.inputs, **{**node.attrs, "compute": "tf32"})
        return None

    return program.with_roots(rewrite(program.roots, mark))


class _Narrowing:
    def __init__(self, program: Program, half: DType) -> None:
        self.program = program
        self.half = half
        self.order = program.order()
        self.before_product = _before_products(self.order)
        # What became of each node: its dtype is `half` where the value is stored in half precision.
        self.new: dict[Node, Node] = {}

    def run(self) -> Program:
        for node in self.order:
            if node.op is ITEM:
                self.new[node] = item(self.new[node.inputs[0]], node.attrs["index"])
            elif node.op is scan:
                self.new[node] = self._loop(node)
            else:
                self.new[node] = node.op.rebuild(node, self._inputs(node))
        return self.program.with_roots([self._full(root) for root in self.program.roots])

    def _loop(self, node: Node) -> Node:
        """Return a loop with the same inputs and outputs, whose body has been through the same."""
        body: Body = node.attrs["body"]
        inside = _Narrowing(Program(body.outputs), self.half).run()
        attrs = {**node.attrs, "body": body.with_outputs(inside.outputs)}
        return scan.node(*self._inputs(node), **attrs)

    def _full(self, node: Node) -> Node:
        """Return the value in its original dtype."""
        return cast(self.new[node], node.dtype)

    def _inputs(self, node: Node) -> tuple[Node, ...]:
        narrowed = self._how_many(node)
        if node.op.name in STATISTICS_GRADIENTS and not narrowed:
            # These gradients take a half-precision gradient together with a float32 x.
            return (self.new[node.inputs[0]], *map(self._full, node.inputs[1:]))
        return tuple(
            cast(self.new[given], self.half)
            if index < narrowed and given.dtype == float32
            else self._full(given)
            for index, given in enumerate(node.inputs)
        )

    def _how_many(self, node: Node) -> int:
        """Return the number of first inputs that are half precision."""
        if node.op.name in PRODUCTS:
            return PRODUCTS[node.op.name]
        count = STORED.get(node.op.name, 0)
        if node not in self.before_product:
            return 0
        if node.op.name in NORM_GRADIENTS:
            return count if self.new[node.inputs[1]].dtype == self.half else 0
        given = [each for each in node.inputs[:count] if each.dtype == float32]
        stored = [each for each in given if self.new[each].dtype == self.half]
        others = [each for each in given if self.new[each].dtype != self.half]
        return count if stored and all(self._is_harmless(each, node) for each in others) else 0

    def _is_harmless(self, given: Node, node: Node) -> bool:
        """Return True if rounding this input of `node` has no significant effect."""
        value = uniform(given)
        if value is not None:
            return self._holds(value, exactly=node.op.name in COMPARISONS)
        if given.op.name == "cast":
            return given.inputs[0].dtype == bool_
        # A bias, say. Numbers in variables (a loss scale) may be out of range.
        source = source_of(given, ("reshape", "broadcast_to"))
        is_parameter = source.op.name in ("variable", "parameter")
        return is_parameter and 1 < given.spec.size < node.outputs[0].size

    def _holds(self, value: float, exactly: bool) -> bool:
        with np.errstate(all="ignore"):
            rounded = float(np.asarray(value, self.half))
        if exactly or value == 0 or not math.isfinite(value):
            return rounded == value
        return math.isclose(rounded, value, rel_tol=0.01)


def _before_products(order: Sequence[Node]) -> set[Node]:
    """Return the nodes on which a product depends."""
    found: set[Node] = set()
    for node in reversed(order):
        narrowed = node.op.name in PRODUCTS and not is_complex(node.inputs[0].dtype)
        if narrowed or node in found:
            found.update(node.inputs)
    return found
