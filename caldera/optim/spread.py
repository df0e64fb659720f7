"""What optimizers need to know where each rank updates only its part of every parameter.

An optimizer writes down the mathematics of one parameter. Element by element that is the same for a
part of it; whatever is about the parameter as a whole (its length, say) has to be added up over the
ranks that have the other parts. `total` and `length` do that where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from caldera import op
from caldera.errors import ConfigError
from caldera.graph.body import substitute, topological, users_of
from caldera.graph.opdef import parameter
from caldera.graph.ops.collective import all_sum
from caldera.lazy import Expr, Variable

_wholes: ContextVar[Mapping[Variable, Variable] | None] = ContextVar(
    "caldera_optim_spread", default=None
)


@contextmanager
def spread(wholes: Mapping[Variable, Variable]) -> Iterator[None]:
    """Inside, variables are the parts of others, and their ranks have the other parts.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> from caldera.optim.spread import spread
    >>> whole, part = op.var("w", (4,)), op.var("w", (2,))
    >>> with spread({part: whole}):
    ...     slope = optim.length(cd.tensor([3.0, 4.0]))
    >>> float(slope)
    5.0
    """
    token = _wholes.set(wholes)
    try:
        yield
    finally:
        _wholes.reset(token)


def total(x: Any) -> Expr:
    """The sum of all elements of something that has the shape of a parameter.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> float(optim.total(cd.tensor([1.0, 2.0])))
    3.0
    """
    here = op.sum(x)
    return here if _wholes.get() is None else op.all_sum(here)


def length(x: Any) -> Expr:
    """The Euclidean length of something that has the shape of a parameter.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> float(optim.length(cd.tensor([3.0, 4.0])))
    5.0
    """
    return op.norm(x) if _wholes.get() is None else op.sqrt(total(op.square(x)))


def whole_of(variable: Variable) -> Variable:
    """The parameter that a variable is, or is a part of.

    >>> from caldera import op
    >>> from caldera.optim.spread import whole_of
    >>> w = op.var("w", (4,))
    >>> whole_of(w) is w
    True
    """
    return (_wholes.get() or {}).get(variable, variable)


def check_spread(where: str, given: Sequence[Expr], results: Sequence[Expr]) -> None:
    """Refuse a rule that takes a part of a parameter for all of it.

    `given` are the parameter, its gradient and its state; `results` what the rule makes of them.
    """
    if _wholes.get() is None:
        return
    # Stand-ins keep the walk from going on into what the gradient was computed from.
    ends = {each.node: parameter(index, each.node.spec) for index, each in enumerate(given)}
    order = topological(substitute([each.node for each in results], ends))
    users = users_of(order)
    of_part = set(ends.values())
    for node in order:
        if node.op is all_sum or not any(each in of_part for each in node.inputs):
            continue
        of_part.add(node)
        is_added_up = users[node] and all(user.op is all_sum for user in users[node])
        if node.shape != given[0].shape and not is_added_up:
            raise ConfigError.build(
                where, expected="a rule for each element by itself, where ranks have parts",
                got=f"op.{node.op.name} of a part of {given[0]!r}",
                hint="use optim.total and optim.length, or parallel.DataParallel",
            )  # fmt: skip
