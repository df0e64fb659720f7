"""Op definitions: name, shape and dtype rule, gradient, and support of complex numbers.

    @op("exp", kind="elementwise", gradient=lambda g, y, x: (mul(g, y),))
    def exp(x):                      # the shape rule, from Spec to Spec
        return float_result(x)

A gradient is built from ops only; a longer one follows the shape rule, as `@exp.gradient`.

Inputs are positional, static attributes keyword-only, in every rule. Calling the op with nodes
creates a node. A composite op has a `decomposition` instead of a shape rule: its shape, gradient
and reference value follow from that, and a backend may still provide a kernel for the whole.

The gradient of a real loss L with respect to z = x + iy is dL/dx + i dL/dy, as in PyTorch: a step
against it decreases the loss. Ops that are not listed as supporting complex numbers reject them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, NoReturn

from caldera.core.graph.node import Node, Spec, describe, frozen, intern, intern_like, pinned
from caldera.errors import CalderaError, DtypeError, ShapeError

LINEAR = frozenset(
    {
        "add",
        "sub",
        "neg",
        "where",
        "stop_gradient",
        "guarded",
        "sum",
        "cumsum",
        "mean",
        "broadcast_to",
        "reshape",
        "transpose",
        "slice",
        "unslice",
        "pad",
        "flip",
        "concat",
        "split",
        "arrange",
        "tile",
        "repeat",
        "gather",
        "scatter_add",
        "take_along_axis",
        "put_along_axis_add",
        "tril",
        "triu",
    }
)
"""Linear with real coefficients: the two parts go the same way, and the gradient rule is right."""

HOLOMORPHIC = frozenset(
    {
        "mul",
        "div",
        "pow",
        "square",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "prod",
        "matmul",
    }
)
"""Ops with a complex derivative f'. An op's rule computes g f', whereas g conj(f') is required: the
conjugate of the rule's result for the conjugate of g.
"""

OWN_RULE = frozenset(
    {
        "abs",
        "sign",
        "cast",
        "conj",
        "real",
        "imag",
        "complex",
        "view_as_real",
        "view_as_complex",
        "equal",
        "not_equal",
        "isfinite",
        "isnan",
        "var",
        "norm",
        "inverse",
        "solve",
        "slogdet",
        "determinant",
        "cholesky",
        "qr",
        "svd",
        "eigh",
        "eig",
        "pinv",
        "expm",
        "scan",
        "fused",
        "with_gradient",
        "assign",
        "spmd",
        "largest_singular",
        "place",
        "redistribute",
    }
)
"""Ops with complex gradient rules, also by their parts, or without a gradient."""

TAKES_COMPLEX = LINEAR | HOLOMORPHIC | OWN_RULE


Kind = Literal[
    "leaf",
    "elementwise",
    "reduction",
    "movement",
    "product",
    "random",
    "state",
    "control",
    "distributed",
    "other",
]
Nodes = tuple[Node, ...]
InferRule = Callable[..., Any]
GradientRule = Callable[..., tuple[Node | None, ...]]
FlopsRule = Callable[[Node], int]

OPS: dict[str, Op] = {}
"""All registered ops, by name."""
MOST_KNOWN = 1 << 12
"""Number of shapes for which a composite op caches its results."""


class Mismatch(Exception):
    """Raised by a shape rule; `Op` adds the op's name and the inputs for the user's error."""

    def __init__(self, error: type[CalderaError], expected: str, got: str, hint: str) -> None:
        super().__init__(expected)
        self.error = error
        self.expected = expected
        self.got = got
        self.hint = hint


def refuse_shape(expected: str, got: str = "", hint: str = "") -> NoReturn:
    """Stop: the shapes do not fit."""
    raise Mismatch(ShapeError, expected, got, hint)


def refuse_dtype(expected: str, got: str = "", hint: str = "") -> NoReturn:
    """Stop: the dtypes do not fit."""
    raise Mismatch(DtypeError, expected, got, hint)


_scope: ContextVar[tuple[str, ...]] = ContextVar("caldera_scope", default=())


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Context manager: errors inside name their location (such as a layer's path)."""
    token = _scope.set((*_scope.get(), name))
    try:
        yield
    finally:
        _scope.reset(token)


def location(name: str) -> str:
    """Return the location of an error: the path of scopes and the name of the op."""
    return "/".join((*_scope.get(), f"op.{name}"))


class Op:
    """An operation; see the module's text. Facts a pass or a kernel may rely on:

    - `kind`: what family of loops it is. Element-wise ops broadcast their inputs as NumPy does. A
      "distributed" one is about arrays that ranks have parts of (see `caldera.compiler.sharding`).
    - `commutative`: the two inputs may be exchanged.
    - `differentiable`: False where a derivative makes no sense; asking for one is an error.
    """

    def __init__(
        self, name: str, infer: InferRule, kind: Kind, *, commutative: bool = False
    ) -> None:
        self.name = name
        self.infer = infer
        self.kind: Kind = kind
        self.commutative = commutative
        self.gradient_rule: GradientRule | None = None
        self.decompose: Callable[..., Any] | None = None
        self.through_parts = True
        self.count_flops: FlopsRule = _default_flops

    def gradient(self, rule: GradientRule) -> GradientRule:
        """Register the gradient: `rule(g, y, *inputs, **attrs)` returns one node or None per input.

        None means that the derivative is zero. For an op with several outputs `g` and `y` are
        tuples, with None for each unused gradient.
        """
        self.gradient_rule = rule
        return rule

    def flops(self, rule: FlopsRule) -> FlopsRule:
        """Register the number of floating-point operations of a node of this op."""
        self.count_flops = rule
        return rule

    @property
    def differentiable(self) -> bool:
        """True if there is a gradient, explicit or from the decomposition."""
        by_parts = self.decompose is not None and self.through_parts
        return self.gradient_rule is not None or by_parts

    def __call__(self, *inputs: Node, **attrs: Any) -> Node:
        """Return the node of this op on these inputs; the op must have one output."""
        node = self.node(*inputs, **attrs)
        if len(node.outputs) != 1:
            raise TypeError(f"{self!r} has {len(node.outputs)} outputs: call .outputs(...)")
        return node

    def outputs(self, *inputs: Node, **attrs: Any) -> Nodes:
        """Return one node per output of this op on these inputs."""
        return items(self.node(*inputs, **attrs))

    def node(self, *inputs: Node, **attrs: Any) -> Node:
        """Return the node itself, which may have several outputs."""
        try:
            if self.name not in TAKES_COMPLEX:
                _refuse_complex(inputs)
            outputs = self.infer(*[given.spec.logical for given in inputs], **attrs)
        except Mismatch as mismatch:
            got = mismatch.got or ", ".join(describe(given) for given in inputs)
            raise mismatch.error.build(
                location(self.name), expected=mismatch.expected, got=got, hint=mismatch.hint
            ) from None
        if isinstance(outputs, Spec):
            outputs = (outputs,)
        return intern(self, inputs, attrs, tuple(outputs))

    def rebuild(self, node: Node, inputs: Nodes) -> Node:
        """Return the node with its inputs replaced."""
        if inputs == node.inputs:
            return node
        if node.pin is None:
            return self._rebuilt(node, inputs)
        with pinned(node.pin):
            return self._rebuilt(node, inputs)

    def _rebuilt(self, node: Node, inputs: Nodes) -> Node:
        if self is ITEM:
            return item(inputs[0], node.attrs["index"])
        if [given.outputs for given in inputs] == [given.outputs for given in node.inputs]:
            # Rules depend only on shapes, dtypes and attributes, so the result is the same.
            return intern_like(node, inputs, tuple([spec.logical for spec in node.outputs]))
        return self.node(*inputs, **node.attrs)

    def __repr__(self) -> str:
        return f"op.{self.name}"


def _refuse_complex(inputs: Nodes) -> None:
    # An op with several outputs is passed as an item with one output.
    if any(given.outputs[0].dtype.kind == "c" for given in inputs):
        refuse_dtype(
            "real numbers",
            hint="take op.real(x), op.imag(x), op.abs(x) or op.view_as_real(x) first",
        )


def _default_flops(node: Node) -> int:
    if node.op.kind == "elementwise":
        return node.spec.size
    if node.op.kind == "reduction":
        return sum(given.spec.size for given in node.inputs)
    return 0


def _register(created: Op) -> Op:
    if created.name in OPS:
        raise ValueError(f"op {created.name!r} is defined twice")
    OPS[created.name] = created
    return created


def op(
    name: str,
    kind: Kind = "other",
    *,
    commutative: bool = False,
    gradient: GradientRule | None = None,
    flops: FlopsRule | None = None,
) -> Callable[[InferRule], Op]:
    """Decorate a shape rule: makes and registers the op `name`."""

    def define(infer: InferRule) -> Op:
        created = _register(Op(name, infer, kind, commutative=commutative))
        created.gradient_rule = gradient
        created.count_flops = flops or created.count_flops
        return created

    return define


def composite(
    name: str,
    kind: Kind = "other",
    *,
    gradient: GradientRule | None = None,
    differentiable: bool = True,
) -> Callable[[Callable[..., Any]], Op]:
    """Decorate a decomposition (nodes to nodes): makes and registers the op `name`.

    `differentiable=False` is for ops that round: the gradient of the parts would be wrong.
    """

    def define(decomposition: Callable[..., Any]) -> Op:
        known: dict[Hashable, tuple[tuple[Spec, ...], int]] = {}

        def facts(inputs: tuple[Spec, ...], attrs: Mapping[str, Any]) -> tuple[Any, int]:
            """Return the output specs, and the operations of its parts."""
            key = (inputs, tuple([(key, frozen(value)) for key, value in attrs.items()]))
            found = known.get(key)
            if found is None:
                stand_ins = [parameter(i, spec) for i, spec in enumerate(inputs)]
                result = as_tuple(decomposition(*stand_ins, **attrs))
                if len(known) >= MOST_KNOWN:
                    known.clear()
                found = known[key] = tuple(node.spec for node in result), _total_flops(result)
            return found

        created = _register(Op(name, lambda *inputs, **attrs: facts(inputs, attrs)[0], kind))
        created.decompose, created.gradient_rule = decomposition, gradient
        created.through_parts = differentiable
        created.count_flops = lambda node: facts(
            tuple([given.spec.logical for given in node.inputs]), node.attrs
        )[1]
        return created

    return define


def _total_flops(results: Nodes) -> int:
    """Return the total operations of these nodes and their inputs."""
    pending, total = list(results), 0
    seen: set[Node] = set()
    while pending:
        part = pending.pop()
        if part not in seen:
            seen.add(part)
            total += part.op.count_flops(part)
            pending.extend(part.inputs)
    return total


def as_tuple(result: Any) -> Nodes:
    """Return a node, or a tuple of nodes, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _infer_item(*_: Spec) -> NoReturn:
    raise TypeError("items are made by item()")


ITEM = _register(Op("item", _infer_item, "leaf"))


def item(node: Node, index: int) -> Node:
    """Return output `index` of a node with several outputs; it belongs where the node does."""
    with pinned(node.pin):
        return intern(ITEM, (node,), {"index": index}, (node.outputs[index],))


def items(node: Node) -> Nodes:
    """Return all outputs of a node."""
    if len(node.outputs) == 1:
        return (node,)
    return tuple(item(node, index) for index in range(len(node.outputs)))


@op("parameter", kind="leaf")
def _parameter(*, index: int, spec: Spec) -> Spec:
    return spec


@lru_cache(MOST_KNOWN)
def parameter(index: int, spec: Spec) -> Node:
    """Return argument number `index` of a body."""
    return _parameter(index=index, spec=spec)


def detached(node: Node) -> Node:
    """Return the same op on parameters of the same shape and dtype.

    Facts about the result can be cached without references to the original inputs.
    """
    inputs = tuple(parameter(index, given.outputs[0]) for index, given in enumerate(node.inputs))
    with pinned(None):
        return intern_like(node, inputs, node.outputs)
