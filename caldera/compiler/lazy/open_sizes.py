"""Expressions over inputs with open sizes, which are rebuilt for each size that is fed.

Shapes are static in a graph. An op or a layer that is called with such an expression is therefore
recorded with its arguments, and called again for each new size. The plans of the sizes used last
are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.lazy.lift import SizesOpen
from caldera.compiler.lazy.variable import PlanInput
from caldera.compiler.plan.buffers import check_feeds
from caldera.compiler.plan.cache import RecentPlans
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Spec, Symbol
from caldera.core.tensor import DType, Tensor, array_of, as_shape, canonical
from caldera.errors import ConfigError, ShapeError

F = TypeVar("F", bound=Callable[..., Any])
MOST_SIZES = 64
"""Plans of an expression that are kept: those for the sizes that were fed last."""


class Sizes:
    """One choice of the sizes that are open: by the name of an input, or the same for all."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]] | int) -> None:
        self._shapes = shapes

    def of(self, name: str, shape: Sequence[int | None]) -> tuple[int, ...]:
        """Return the shape of an input."""
        if isinstance(self._shapes, int):
            return tuple(self._shapes if size is None else size for size in shape)
        return self._shapes[name]


_TRIED = (Sizes(64), Sizes(96))
"""Sizes with which an expression is written down to check it and to find its shape.

Both are multiples of 32, since networks for images halve their sides up to five times.
"""


class OpenExpr(SizesOpen):
    """An expression with sizes that are open; made by `op.input` with a size of None.

    `op` functions, operators, layers, `eval` and `cd.compile` take it like any expression. Sizes
    that are open are None in its `shape`.

    >>> from caldera import op
    >>> x = op.input("x", (None, 4))
    >>> y = op.mean(x * 2.0, axis=0)
    >>> x.shape, y.shape
    ((None, 4), (4,))
    >>> y.eval(x=[[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 0.0]]).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """

    __array_ufunc__ = None
    __iter__ = None

    def __init__(self, write: Callable[[Sizes], Any], operands: Sequence[OpenExpr] = ()) -> None:
        self._write, self._operands = write, operands
        self.inputs: dict[str, OpenExpr] = {}
        """The inputs it depends on whose sizes are open, by name."""
        for each in operands:
            for name, source in each.inputs.items():
                require(
                    self.inputs.setdefault(name, source) is source,
                    "op.input",
                    "distinct names of inputs",
                    f"two inputs {name!r}",
                )
        # An expression that is read twice is one node.
        self._written: WeakKeyDictionary[Sizes, Any] = WeakKeyDictionary()
        self._plans: OpenPlan | None = None

    def written_for(self, sizes: Sizes) -> Any:
        """Return the expression for one choice of sizes."""
        waiting = [self]
        while waiting:  # without recursion: a network may have more ops than Python has frames
            last = waiting[-1]
            missing = [each for each in last._operands if sizes not in each._written]
            waiting.extend(missing)
            if not missing:
                waiting.pop()
                if sizes not in last._written:
                    last._written[sizes] = last._write(sizes)
        return self._written[sizes]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the value, with None for each size that is open."""
        first, second = (self.written_for(sizes).shape for sizes in _TRIED)
        return tuple(a if a == b else None for a, b in zip(first, second, strict=True))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return cast("DType", self.written_for(_TRIED[0]).dtype)

    def __repr__(self) -> str:
        return f"OpenExpr({self.shape} {self.dtype.name})"

    def __bool__(self) -> bool:
        raise ConfigError.build("bool", expected="a value that is known", got=repr(self))

    def eval(self, **feeds: Any) -> Tensor:
        """Compute the value; see `Expr.eval`."""
        if self._plans is None:
            self._plans = OpenPlan([self], lambda made: compile_nodes((made[0].node,)))
        return self._plans.run(feeds)[0]


def open_input(name: str, shape: Sequence[int | None], dtype: Any) -> OpenExpr:
    """Return an input of which some sizes are open."""
    known = as_shape([0 if size is None else size for size in shape], "op.input")
    wanted = tuple(None if size is None else n for size, n in zip(shape, known, strict=True))
    kind = canonical(dtype)

    def write(sizes: Sizes) -> PlanInput:
        return PlanInput(Symbol(name, Spec(sizes.of(name, wanted), kind), "input"))

    made = OpenExpr(write)
    made.inputs = {name: made}
    return made


def input(name: str, shape: int | Sequence[int | None], dtype: Any = "float32") -> PlanInput:
    """A value given by name at each run: `expr.eval(x=...)` or `plan.run({"x": ...})`.

    A size of None is open: each size that is fed has a plan; see `caldera.compiler.lazy.OpenExpr`.

    >>> from caldera import op
    >>> x = op.input("x", (2,))
    >>> (x + 1.0).eval(x=[1.0, 2.0]).tolist()
    [2.0, 3.0]
    >>> x = op.input("x", (None,))
    >>> [op.sum(x).eval(x=[1.0] * size).item() for size in (2, 3)]
    [2.0, 3.0]
    """
    if isinstance(shape, list | tuple) and None in shape:
        # Used like an input, in all that takes open sizes.
        return cast("PlanInput", open_input(name, shape, dtype))
    sizes = as_shape(cast("Sequence[int]", shape), "op.input")
    return PlanInput(Symbol(name, Spec(sizes, canonical(dtype)), "input"))


_MAY_BE_OPEN = frozenset({OpenExpr, dict, list, tuple})


def sizes_open_in(arguments: Collection[Any]) -> list[OpenExpr]:
    """Return the expressions with open sizes in the arguments of a call."""
    found: list[OpenExpr] = []
    waiting: list[Any] = [arguments]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, OpenExpr):
            found.append(each)
        elif id(each) not in seen:
            seen.add(id(each))  # a list may contain itself
            elements = each.values() if isinstance(each, dict) else each
            if not _MAY_BE_OPEN.isdisjoint(map(type, elements)):
                waiting.extend(item for item in elements if type(item) in _MAY_BE_OPEN)
    return found


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of arguments, with other values in the same lists, tuples and dicts."""
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, change) for each in value)
    return change(value)


def _written(value: Any, sizes: Sizes) -> Any:
    """Return arguments of a call, with expressions for these sizes."""
    return _mapped(value, lambda x: x.written_for(sizes) if isinstance(x, OpenExpr) else x)


def call_later(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return the result of a call for every choice of sizes; several results stay separate."""
    # Copied: later calls have the values of this one, though the caller changes lists and arrays.
    kept = _mapped((list(args), dict(named)), lambda x: x.copy() if type(x) is np.ndarray else x)

    def write(sizes: Sizes) -> Any:
        positional, by_name = _written(kept, sizes)
        return function(*positional, **by_name)

    return _results(OpenExpr(write, sizes_open_in(kept)))


def _results(whole: OpenExpr) -> Any:
    """Return an expression for each part of a result, which is also checked immediately."""
    tried = whole.written_for(_TRIED[0])
    if not isinstance(tried, dict | list | tuple):
        return whole
    keys = tried if isinstance(tried, dict) else range(len(tried))
    parts = {
        key: _results(
            OpenExpr(lambda sizes, key=key: whole.written_for(sizes)[key], [whole])  # type: ignore[misc]
        )
        for key in keys
    }
    return parts if isinstance(tried, dict) else type(tried)(parts.values())


def takes_open_sizes(function: F) -> F:
    """Return the function, noted down for later where an argument has a size that is open."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if sizes_open_in(args) or (named and sizes_open_in(named)):
            return call_later(function, args, named)
        return function(*args, **named)

    return cast("F", call)


class OpenPlan:
    """The plans of expressions with open sizes, one for each choice of sizes; by `cd.compile`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = op.input("x", (None,))
    >>> plan = cd.compile([op.sum(x), x + 1.0])
    >>> [plan.run({"x": [1.0] * size})[0].item() for size in (2, 3, 2)], len(plan.kept)
    ([2.0, 3.0, 2.0], 2)
    """

    def __init__(
        self, outputs: Sequence[Any], compiled: Callable[[list[Any]], Plan], most: int = MOST_SIZES
    ) -> None:
        self._compiled, listed = compiled, list(outputs)
        self._whole = OpenExpr(lambda sizes: _written(listed, sizes), sizes_open_in(listed))
        self._open = {name: source.shape for name, source in self._whole.inputs.items()}
        self.kept = RecentPlans(most)
        """The plans of the sizes that were fed last."""

    def run(self, feeds: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Run the plan for the sizes of these feeds; see `Plan.run`."""
        check_feeds(feeds)
        given = dict(feeds or {})
        shapes: dict[str, tuple[int, ...]] = {}
        for name, wanted in self._open.items():
            require(name in given, "run", f"a value for the input {name!r}", f"{sorted(given)}")
            if not hasattr(given[name], "shape"):
                given[name] = array_of(given[name], f"input {name}")
            shape = tuple(given[name].shape)
            fits = len(shape) == len(wanted) and all(
                size in (None, n) for size, n in zip(wanted, shape, strict=True)
            )
            require(fits, f"input {name}", f"shape {wanted}", f"{shape}", error=ShapeError)
            shapes[name] = shape
        key = tuple(shapes.values())
        plan = self.kept.get(key)
        if plan is None:
            plan = self._compiled(self._whole.written_for(Sizes(shapes)))
            self.kept.add(key, plan)
        # Of some inputs only the sizes are used, which are constants of the plan.
        used = set(plan.inputs)
        return plan.run({k: v for k, v in given.items() if k in used or k not in self._open})


_REFLECTED = "add sub mul truediv pow floordiv mod matmul and_ or_ xor lshift rshift"
_OTHERS = "eq ne lt le gt ge neg pos abs invert getitem"


def _add_operator(name: str) -> None:
    function, is_reflected = getattr(operator, name), name in _REFLECTED.split()
    plain = name.strip("_")
    setattr(OpenExpr, f"__{plain}__", lambda self, *more: call_later(function, (self, *more), {}))
    if is_reflected:
        reflected = lambda self, other: call_later(function, (other, self), {})  # noqa: E731
        setattr(OpenExpr, f"__r{plain}__", reflected)


for _name in f"{_REFLECTED} {_OTHERS}".split():
    _add_operator(_name)
