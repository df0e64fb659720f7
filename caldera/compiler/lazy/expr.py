"""`Expr`: what a user holds. A lazy expression; nothing runs until its value is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.lazy.indexing import Index, array_node
from caldera.compiler.lazy.updating import add_at, set_at
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Node, Spec, Symbol, describe
from caldera.core.graph.ops import elementwise as e
from caldera.core.graph.ops.base import cast, constant, full
from caldera.core.graph.ops.base import tensor as tensor_leaf
from caldera.core.graph.ops.product import matmul_any
from caldera.core.tensor import Tensor
from caldera.core.tensor.dtype import (
    DType,
    array_of,
    bool_,
    canonical,
    exactly,
    float32,
    int8,
    is_inexact,
    of_scalar,
    promote,
    side_of_range,
)
from caldera.core.tensor.shape import Shape
from caldera.errors import ConfigError, DtypeError, ShapeError


def _no_plan() -> None:
    return None


class Expr:
    """An expression that is computed when its value is asked for.

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

    __slots__ = ("__weakref__", "_plan", "node")

    def __new__(cls, node: Node) -> Expr:
        """What is computed from the leaves of some kind of expression is of that kind, too."""
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
        """The value as a NumPy array."""
        return self.eval().numpy()

    def item(self) -> Any:
        """The value of a single element as a Python scalar."""
        return self.eval().item()

    def tolist(self) -> Any:
        """The value as nested lists."""
        return self.eval().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype=dtype)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __str__(self) -> str:
        return str(self.eval())

    # --- reading parts

    def __getitem__(self, key: Any) -> Expr:
        """What NumPy's indices name: integers, slices, `...`, `None`, and arrays of indices.

        Arrays (lists, tensors, expressions) of integers are positions, arrays of truth values
        masks. A mask has to be known now: an expression of truth values is refused.

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

    def __add__(self, other: Any) -> Expr:
        return binary(e.add, self, other)

    def __radd__(self, other: Any) -> Expr:
        return binary(e.add, other, self)

    def __sub__(self, other: Any) -> Expr:
        return binary(e.sub, self, other)

    def __rsub__(self, other: Any) -> Expr:
        return binary(e.sub, other, self)

    def __mul__(self, other: Any) -> Expr:
        return binary(e.mul, self, other)

    def __rmul__(self, other: Any) -> Expr:
        return binary(e.mul, other, self)

    def __truediv__(self, other: Any) -> Expr:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return divide(other, self)

    def __pow__(self, other: Any) -> Expr:
        return power(self, other)

    def __rpow__(self, other: Any) -> Expr:
        return power(other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return binary(e.floor_div, self, other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return binary(e.floor_div, other, self)

    def __mod__(self, other: Any) -> Expr:
        return binary(e.mod, self, other)

    def __rmod__(self, other: Any) -> Expr:
        return binary(e.mod, other, self)

    def __matmul__(self, other: Any) -> Expr:
        return binary(matmul_any, self, other)

    def __rmatmul__(self, other: Any) -> Expr:
        return binary(matmul_any, other, self)

    def __neg__(self) -> Expr:
        return Expr(e.neg(lift(self)))

    def __pos__(self) -> Expr:
        return Expr(lift(self))

    def __abs__(self) -> Expr:
        return Expr(e.abs_(lift(self)))

    def __invert__(self) -> Expr:
        return Expr(e.logical_not(lift(self)))

    def __and__(self, other: Any) -> Expr:
        return binary(e.logical_and, self, other)

    def __or__(self, other: Any) -> Expr:
        return binary(e.logical_or, self, other)

    def __xor__(self, other: Any) -> Expr:
        return binary(e.logical_xor, self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return compare(e.equal, self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return compare(e.not_equal, self, other)

    def __lt__(self, other: Any) -> Expr:
        return compare(e.less, self, other)

    def __le__(self, other: Any) -> Expr:
        return compare(e.less_equal, self, other)

    def __gt__(self, other: Any) -> Expr:
        return compare(e.greater, self, other)

    def __ge__(self, other: Any) -> Expr:
        return compare(e.greater_equal, self, other)

    # Comparing makes an expression, so identity is what sets and dicts go by.
    __hash__ = object.__hash__
    # NumPy must leave `array + expression` to us, instead of taking the expression apart.
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
        """The whole with these values in the part; where one place is named twice, the later."""
        node = self._of.node
        return Expr(set_at(node, self._key, lift(values, node.dtype)))

    def add(self, values: Any) -> Expr:
        """The whole with these values added to the part; where a place is named twice, both."""
        node = self._of.node
        return Expr(add_at(node, self._key, lift(values, node.dtype)))


def _key(key: Any) -> tuple[Any, ...]:
    """A key in which nodes stand for expressions, and for tensors whose elements are positions."""
    return tuple(map(_key_part, key if isinstance(key, tuple) else (key,)))


def _key_part(part: Any) -> Any:
    if isinstance(part, Expr):
        return part.node
    if isinstance(part, Tensor):
        return part.numpy() if part.dtype == bool_ else lift(part)
    return part


_OPERATORS = (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "pow",
    "rpow",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "matmul",
    "rmatmul",
    "neg",
    "pos",
    "abs",
    "invert",
    "and",
    "or",
    "xor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "hash",
)
for _name in _OPERATORS:
    setattr(Tensor, f"__{_name}__", getattr(Expr, f"__{_name}__"))
Tensor.__array_ufunc__ = None  # type: ignore[attr-defined]


def binary(make: Callable[..., Any], first: Any, second: Any) -> Expr:
    """An op on two operands, in the dtype they share."""
    return Expr(make(*lift_all(first, second)))


def compare(make: Callable[..., Any], first: Any, second: Any) -> Expr:
    """A comparison. A whole number beyond the other's dtype is above or below all of it."""
    operands = [first, second]
    for number, other in ((0, 1), (1, 0)):
        dtype = _dtype_of(operands[other])
        if isinstance(operands[number], int) and dtype is not None:
            side = side_of_range(operands[number], dtype)
            if side:
                operands[other] = Expr(full(lift(operands[other]).shape, 0, int8))
                operands[number] = side
    return binary(make, *operands)


def divide(first: Any, second: Any) -> Expr:
    """True division: of integers it is computed in float32."""
    a, b = lift_all(first, second)
    return Expr(e.div(as_float(a), as_float(b)))


def power(first: Any, second: Any) -> Expr:
    """`first ** second`; an integer cannot be raised to a negative integer."""
    base, exponent = lift_all(first, second)
    value = exponent.attrs["value"] if exponent.op.name == "constant" else 0
    if not is_inexact(exponent.dtype) and value < 0:
        raise ConfigError.build(
            "op.pow",
            expected="an exponent of 0 or more for integers",
            got=f"{describe(base)} to the power of {value}",
            hint="write the exponent as a float, as in x ** -1.0",
        )
    return Expr(e.pow_(base, exponent))


def as_float(node: Node) -> Node:
    """The node, cast to float32 if it holds integers or truth values."""
    return node if is_inexact(node.dtype) else cast(node, float32)


def lift(value: Any, like: DType | None = None) -> Node:
    """The node of anything a user may write as an operand.

    Python scalars take the dtype of what stands beside them (`like`).
    """
    if isinstance(value, Expr):
        return value.node
    if isinstance(value, Tensor):
        return _leaf_of(value)
    if isinstance(value, bool | int | float | complex):
        dtype = of_scalar(value, like)
        if side_of_range(value, dtype):
            raise DtypeError.build(
                "operand",
                expected=f"a number that {dtype} can hold",
                got=str(value),
                hint="cast what stands beside it to a wider dtype with op.cast",
            )
        return constant(value, dtype)
    array = array_of(value, "operand")
    # A list of Python numbers is as weak as one number; an array keeps its dtype.
    if not isinstance(value, np.ndarray | np.generic) and array.dtype.kind in "ifc":
        array = exactly(array, of_scalar(array.dtype.type(0).item(), like), "operand")
    return array_node(array)


# A node keeps its tensor alive, so an id is good as long as its entry is.
_leaves: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()


def _leaf_of(value: Tensor) -> Node:
    node = _leaves.get(id(value))
    if node is None:
        spec = Spec(value.shape, value.dtype)
        node = tensor_leaf(symbol=Symbol("", spec, "tensor", value))
        _leaves[id(value)] = node
    return node


def lift_all(*values: Any) -> tuple[Node, ...]:
    """Operands that meet each other: lifted, and cast to the dtype they share."""
    dtypes = [dtype for dtype in map(_dtype_of, values) if dtype is not None]
    # Floats first: beside one, integers do not decide, whatever they would have met in.
    ordered = sorted(dtypes, key=is_inexact, reverse=True)
    shared = reduce(promote, ordered) if ordered else None
    # A weak number still decides the family, also in a list: True + 2 is an int, [1] + 0.5 a float.
    for number in map(_weak_number, values):
        if number is not None:
            weak = of_scalar(number, shared)
            shared = weak if shared is None else promote(shared, weak)
    return tuple(cast(lift(value, shared), shared) if shared else lift(value) for value in values)


def _dtype_of(value: Any) -> DType | None:
    """The dtype an operand insists on; None for what takes that of its neighbours.

    numpy.float64 is a Python float, and as weak: np.sqrt(2) must not turn a network into float64.
    (numpy.complex128 is a Python complex number in the same way.)
    """
    if isinstance(value, Expr | Tensor):
        return value.dtype
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, float | complex):
        return canonical(value.dtype)
    return None


def _weak_number(value: Any) -> bool | int | float | complex | None:
    """A number of the kind that an operand without a dtype of its own holds."""
    if isinstance(value, bool | int | float | complex):
        return value
    if not isinstance(value, list | tuple):
        return None
    return array_of(value, "operand").dtype.type(0).item()


def wrap(nodes: Sequence[Node]) -> tuple[Expr, ...]:
    """Expressions of these nodes."""
    return tuple(Expr(node) for node in nodes)
