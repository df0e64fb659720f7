"""`Expr`: lazy expressions, which are computed when their values are requested."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.lazy.indexing import Index, add_at, set_at
from caldera.compiler.lazy.lift import GraphOperand, SizesOpen, as_float, dtype_of, lift, lift_all
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Node, describe
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops import full, matmul_any
from caldera.core.tensor import DType, Shape, Tensor, bool_, int8, is_inexact, side_of_range
from caldera.core.tensor.strided import ScalarConversions
from caldera.errors import ConfigError, ShapeError


def binary(make: Callable[..., Any], first: Any, second: Any) -> Expr:
    """Return an op on two operands, in the dtype they share."""
    return Expr(make(*lift_all(first, second)))


def compare(make: Callable[..., Any], first: Any, second: Any) -> Expr:
    """Compare two operands.

    An integer outside the range of the second operand's dtype is above or below all its values.
    """
    operands = [first, second]
    for number, other in ((0, 1), (1, 0)):
        dtype = dtype_of(operands[other])
        if isinstance(operands[number], int) and dtype is not None:
            side = side_of_range(operands[number], dtype)
            if side:
                operands[other] = Expr(full(lift(operands[other]).shape, 0, int8))
                operands[number] = side
    return binary(make, *operands)


def divide(first: Any, second: Any) -> Expr:
    """True division: of integers it is computed in float32."""
    return binary(_quotient, first, second)


def _quotient(first: Node, second: Node) -> Node:
    return e.div(as_float(first), as_float(second))


def power(first: Any, second: Any) -> Expr:
    """`first ** second`; an integer cannot be raised to a negative integer."""
    return binary(_power, first, second)


def _power(base: Node, exponent: Node) -> Node:
    value = exponent.attrs["value"] if exponent.op.name == "constant" else 0
    if not is_inexact(exponent.dtype) and value < 0:
        raise ConfigError.build(
            "op.pow",
            expected="an exponent of 0 or more for integers",
            got=f"{describe(base)} to the power of {value}",
            hint="write the exponent as a float, as in x ** -1.0",
        )
    return e.pow_(base, exponent)


Operator = Callable[[Any, Any], "Expr"]


def _operators(make: Callable[..., Any]) -> tuple[Operator, Operator]:
    """Return the method of a binary operator, and its counterpart for a right-hand operand."""
    return (
        lambda self, other: (
            NotImplemented if isinstance(other, SizesOpen) else Expr(make(*lift_all(self, other)))
        ),
        lambda self, other: Expr(make(*lift_all(other, self))),
    )


def _comparison(make: Callable[..., Any]) -> Operator:
    """Return the method of a comparison."""
    return lambda self, other: (
        NotImplemented if isinstance(other, SizesOpen) else compare(make, self, other)
    )


def _unary(make: Callable[[Node], Node]) -> Callable[[Any], Expr]:
    """Return the method of a unary operator."""
    return lambda self: Expr(make(lift(self)))


def _no_plan() -> None:
    return None


class Expr(GraphOperand, ScalarConversions):
    """An expression that is computed when its value is requested.

    Made by the functions of `caldera.op` and by arithmetic on tensors and variables.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.var("x", (2,), fill=cd.constant(3.0))
    >>> y = x * x + 1.0
    >>> y.shape, y.dtype.name
    ((2,), 'float32')
    >>> y.eval().tolist()
    [10.0, 10.0]
    """

    __slots__ = ("__weakref__", "_plan")

    def __new__(cls, node: Node) -> Expr:
        """Create an expression of the same kind as its leaves, if these have a special kind."""
        return super().__new__(_kind_of(node) if cls is Expr and _kinds else cls)

    def __init__(self, node: Node) -> None:
        self.node = node
        # Which plans are kept is not decided here: there may be many expressions.
        self._plan: Callable[[], Plan | None] = _no_plan

    def __reduce__(self) -> Any:
        raise ConfigError.build(
            "copying or pickling",
            expected="values",
            got=f"the expression {describe(self.node)}",
            hint="eval() it first; variables, layers and models can be copied and pickled",
        )

    # --- facts

    @property
    def shape(self) -> Shape:
        """The shape of the value."""
        return self.node.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self.node.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.node.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.node.spec.size

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError.build("len", expected="at least one axis", got=describe(self.node))
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Expr({describe(self.node)})"

    # --- asking for the value

    def eval(self, **feeds: Any) -> Tensor:
        """Compute the value. Inputs made with `op.input` are given by name.

        >>> from caldera import op
        >>> x = op.input("x", (2,))
        >>> (x * 2.0).eval(x=[1.0, 2.0]).tolist()
        [2.0, 4.0]
        """
        plan = self._plan()
        if plan is None or plan.is_stale:
            plan = compile_nodes((self.node,))
            self._plan = weakref.ref(plan)
        return plan.run(feeds)[0]

    def numpy(self) -> np.ndarray:
        """Return the value as a NumPy array."""
        return self.eval().numpy()

    def item(self) -> Any:
        """Return the value of a single element as a Python scalar."""
        return self.eval().item()

    def tolist(self) -> Any:
        """Return the value as nested lists."""
        return self.eval().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype=dtype)

    def __str__(self) -> str:
        return str(self.eval())

    # --- reading parts

    def __getitem__(self, key: Any) -> Expr:
        """Index as in NumPy: integers, slices, `...`, `None`, and arrays of indices.

        Arrays (lists, tensors, expressions) of integers are positions, and arrays of truth values
        are masks. The values of a mask must be known now: a boolean expression raises an error.

        >>> import caldera as cd
        >>> x = cd.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) * 1.0
        >>> x[:, [0, -1]].tolist(), x[[1, 0], [2, 0]].tolist()
        ([[1.0, 3.0], [4.0, 6.0]], [6.0, 1.0])
        """
        return Expr(Index(self.node, _key(key)).read(self.node))

    @property
    def at(self) -> IndexUpdate:
        """Parts that get other values: `x.at[key].set(values)` and `x.at[key].add(values)`.

        Both are expressions like `x`, which itself stays as it is.

        >>> import caldera as cd
        >>> x = cd.tensor([1.0, 2.0, 3.0]) * 1.0
        >>> x.at[[0, 2]].set(9.0).tolist(), x.at[[1, 1]].add([1.0, 5.0]).tolist()
        ([9.0, 2.0, 9.0], [1.0, 8.0, 3.0])
        """
        return IndexUpdate(self)

    def __iter__(self) -> Iterator[Expr]:
        return (self[i] for i in range(len(self)))

    # --- arithmetic: each method works for a Tensor as well, which is given them below

    __add__, __radd__ = _operators(e.add)
    __sub__, __rsub__ = _operators(e.sub)
    __mul__, __rmul__ = _operators(e.mul)
    __truediv__, __rtruediv__ = _operators(_quotient)
    __pow__, __rpow__ = _operators(_power)
    __floordiv__, __rfloordiv__ = _operators(e.floor_div)
    __mod__, __rmod__ = _operators(e.mod)
    __matmul__, __rmatmul__ = _operators(matmul_any)
    __and__, __rand__ = _operators(e.and_)
    __or__, __ror__ = _operators(e.or_)
    __xor__, __rxor__ = _operators(e.xor)
    __lshift__, __rlshift__ = _operators(e.bitwise_left_shift)
    __rshift__, __rrshift__ = _operators(e.bitwise_right_shift)
    __eq__ = _comparison(e.equal)  # type: ignore[assignment]
    __ne__ = _comparison(e.not_equal)  # type: ignore[assignment]
    __lt__ = _comparison(e.less)
    __le__ = _comparison(e.less_equal)
    __gt__ = _comparison(e.greater)
    __ge__ = _comparison(e.greater_equal)
    __neg__ = _unary(e.neg)
    __pos__ = _unary(lambda node: node)
    __abs__ = _unary(e.abs_)
    __invert__ = _unary(e.invert)

    # Comparing makes an expression, so identity is what sets and dicts go by.
    __hash__ = object.__hash__
    # NumPy must delegate `array + expression` to this class, not apply it to each element.
    __array_ufunc__ = None


_kinds: dict[type[Expr], Callable[[Node], bool]] = {}
_known_kinds: weakref.WeakKeyDictionary[Node, type[Expr]] = weakref.WeakKeyDictionary()


def add_kind(kind: type[Expr], is_leaf: Callable[[Node], bool]) -> None:
    """Expressions that depend on a node of which `is_leaf` is true are objects of this class."""
    _kinds[kind] = is_leaf
    _known_kinds.clear()


def _kind_of(node: Node) -> type[Expr]:
    waiting = [node]
    while waiting:
        each = waiting[-1]
        found = _known_kinds.get(each)
        if found is None:
            try:
                below = [_known_kinds[given] for given in each.inputs]
            except KeyError:
                waiting += each.inputs
                continue
            own = [kind for kind, is_leaf in _kinds.items() if is_leaf(each)]
            found = next((kind for kind in own + below if kind is not Expr), Expr)
            _known_kinds[each] = found
        waiting.pop()
    assert found is not None
    return found


class IndexUpdate:
    """The parts of an expression; made by `Expr.at`.

    >>> import caldera as cd
    >>> x = cd.tensor([[1.0, 2.0], [3.0, 4.0]]) * 1.0
    >>> x.at[x > 2.0].set(0.0).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """

    __slots__ = ("_key", "_of")

    def __init__(self, of: Expr, key: tuple[Any, ...] = ()) -> None:
        self._of = of
        self._key = key

    def __getitem__(self, key: Any) -> IndexUpdate:
        return IndexUpdate(self._of, _key(key))

    def set(self, values: Any) -> Expr:
        """Return the whole with these values in the part.

        Where one place is named twice, the later.
        """
        node = self._of.node
        return Expr(set_at(node, self._key, lift(values, node.dtype)))

    def add(self, values: Any) -> Expr:
        """Return the whole with these values added to the part.

        Where a place is named twice, both.
        """
        node = self._of.node
        return Expr(add_at(node, self._key, lift(values, node.dtype)))


def _key(key: Any) -> tuple[Any, ...]:
    """Return a key with nodes in place of expressions and of tensors of positions."""
    return tuple(map(_key_part, key if isinstance(key, tuple) else (key,)))


def _key_part(part: Any) -> Any:
    if isinstance(part, Expr):
        return part.node
    if isinstance(part, Tensor):
        return part.numpy() if part.dtype == bool_ else lift(part)
    return part


_OPERATORS = """add radd sub rsub mul rmul truediv rtruediv pow rpow floordiv rfloordiv mod rmod
matmul rmatmul neg pos abs invert and rand or ror xor rxor lshift rlshift rshift rrshift
eq ne lt le gt ge hash"""
for _name in _OPERATORS.split():
    setattr(Tensor, f"__{_name}__", getattr(Expr, f"__{_name}__"))
Tensor.__array_ufunc__ = None  # type: ignore[attr-defined]


def wrap(nodes: Sequence[Node]) -> Any:
    """Return expressions of these nodes."""
    return tuple(Expr(node) for node in nodes)
