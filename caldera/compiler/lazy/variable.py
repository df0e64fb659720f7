"""Variables (state that runs may change) and inputs (values fed at each run)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from caldera.base.arguments import checked
from caldera.compiler.lazy.expr import Expr
from caldera.core.graph.node import Spec, Symbol
from caldera.core.graph.ops.base import input_, variable
from caldera.core.memory import MANAGED, Device, Kind
from caldera.core.tensor import Tensor, array_of, canonical
from caldera.errors import ShapeError


class Variable(Expr):
    """A named tensor that expressions read and `op.assign` or an optimizer changes.

    >>> import caldera as cd
    >>> from caldera import op
    >>> w = op.var("w", (2,), fill=cd.constant(1.0))
    >>> w.assign([3.0, 4.0])
    >>> (w * 2.0).eval().tolist()
    [6.0, 8.0]
    """

    __slots__ = ("symbol",)

    def __init__(self, symbol: Symbol) -> None:
        super().__init__(variable(symbol=symbol))
        self.symbol = symbol

    @property
    def name(self) -> str:
        """The name it was given."""
        return self.symbol.name

    @property
    def tensor(self) -> Tensor:
        """Tensor with the variable's value; runs write to it."""
        return self.symbol.value

    def numpy(self) -> np.ndarray:
        """A copy of the value (unlike `tensor.numpy()`, it does not change under you)."""
        return np.array(self.tensor.numpy())

    def eval(self, **feeds: Any) -> Tensor:
        """Return a copy of the value."""
        return self.tensor.copy()

    def assign(self, value: Any) -> None:
        """Set the value now, from an array or anything that can become one."""
        array = array_of(value, f"variable {self.name}")
        if array.shape != self.shape:
            raise ShapeError.build(
                f"variable {self.name}",
                expected=f"shape {self.shape}",
                got=f"{array.shape}",
                hint="reshape the value, or give op.var its shape; a variable keeps it",
            )
        self.tensor[...] = array

    def move(self, device: Device | str | int) -> None:
        """Keep the value on another device from now on. Plans for the old one do not run any more.

        >>> import caldera as cd
        >>> from caldera import op
        >>> w = op.var("w", (2,), fill=cd.constant(3.0))
        >>> w.move("loopback")
        >>> w.tensor.device, (w * 2.0).eval().device
        (<device loopback:0>, <device loopback:0>)
        """
        self.symbol.move(self.tensor.to(device))

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.node.spec})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Variable.of, (self.name, self.tensor)

    @classmethod
    @checked
    def of(cls, name: str, tensor: Tensor) -> Variable:
        """Return a variable that lives in this tensor.

        >>> import caldera as cd
        >>> from caldera.compiler.lazy import Variable
        >>> Variable.of("w", cd.tensor([1.0, 2.0])).numpy().tolist()
        [1.0, 2.0]
        """
        return cls(Symbol(name, Spec(tensor.shape, tensor.dtype), "variable", tensor))


def var(
    name: str,
    shape: int | Sequence[int] | None = None,
    fill: Any = None,
    dtype: Any = "float32",
    *,
    kind: Kind = MANAGED,
    device: Device | str | int | None = None,
) -> Variable:
    """A variable: `fill` is a filler, a number or an array (zeros if none is given).

    Without a shape it has the shape of an array `fill`, or else it is a single number.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.var("W", (2, 2), fill=cd.identity()).numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if shape is None:
        has_shape = isinstance(fill, np.ndarray | Tensor | list | tuple)
        shape = array_of(fill, f"variable {name}").shape if has_shape else ()
    wanted = canonical(dtype)
    tensor = Tensor(shape, fill=fill, dtype=wanted, kind=kind, device=device, name=name)
    return Variable.of(name, tensor)


class PlanInput(Expr):
    """A value that is fed when a plan runs; made by `op.input`.

    >>> from caldera import op
    >>> op.input("x", (3,)).name
    'x'
    """

    __slots__ = ("symbol",)

    def __init__(self, symbol: Symbol) -> None:
        super().__init__(input_(symbol=symbol))
        self.symbol = symbol

    @property
    def name(self) -> str:
        """The name under which it is fed."""
        return self.symbol.name
