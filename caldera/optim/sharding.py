"""What optimizers need to know where each rank updates only its part of every parameter.

An optimizer writes down the mathematics of one parameter. Element by element that is the same for a
part of it; whatever is about the parameter as a whole (its length, say) has to be added up over the
ranks that have the other parts. `total` and `length` do that where it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from caldera import op
from caldera.compiler.lazy import Expr, Variable, lift
from caldera.core.graph import Node, parameter, substitute, topological, users_of
from caldera.core.graph.ops.collective import all_sum
from caldera.errors import ConfigError


@dataclass(frozen=True)
class Sharding:
    """Which variables are parts of others, the axis along which ranks have the other parts, and
    of which part the gradients are (None: all are those of some part). `copies` has how many ranks
    have the same part of a variable, where that is more than one."""

    wholes: Mapping[Variable, Variable]
    axis: str = "data"
    gradients: Mapping[Node, Variable | None] | None = None
    copies: Mapping[Variable, int] = field(default_factory=dict)

    def ranks_alike(self, node: Node) -> int:
        """How many ranks have the same part of a value, by what it was computed from; 0, if each
        has all of it."""
        variable = _variable.get()
        if variable is not None:
            return self.copies.get(variable, 1) if variable in self.wholes else 0
        if self.gradients is None:
            return 1
        pending, seen = [node], {node}
        while pending:
            found = pending.pop()
            if found in self.gradients:
                part = self.gradients[found]
                if part is not None:
                    return self.copies.get(part, 1)
            elif found.op is not all_sum:
                pending += [given for given in found.inputs if given not in seen]
                seen.update(found.inputs)
        return 0


_sharding: ContextVar[Sharding | None] = ContextVar("caldera_optim_sharding", default=None)
_variable: ContextVar[Variable | None] = ContextVar("caldera_optim_variable", default=None)


@contextmanager
def sharded_parameters(sharding: Sharding | None) -> Iterator[None]:
    """Inside, some variables are the parts of others; None, if none is.

    >>> import caldera as cd
    >>> from caldera import op, optim
    >>> from caldera.optim.sharding import Sharding, sharded_parameters
    >>> whole, part = op.var("w", (4,)), op.var("w", (2,))
    >>> with sharded_parameters(Sharding({part: whole})):
    ...     norm = optim.length(cd.tensor([3.0, 4.0]))
    >>> float(norm)
    5.0
    """
    token = _sharding.set(sharding)
    try:
        yield
    finally:
        _sharding.reset(token)


@contextmanager
def updating(variable: Variable) -> Iterator[None]:
    """Inside, everything is about this variable."""
    token = _variable.set(variable)
    try:
        yield
    finally:
        _variable.reset(token)


def _alike(x: Any) -> int:
    """How many ranks have the same part of a value; 0 if this one has all of it."""
    now = _sharding.get()
    return 0 if now is None else now.ranks_alike(lift(x))


def total(x: Any) -> Expr:
    """The sum of all elements of something that has the shape of a parameter.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> float(optim.total(cd.tensor([1.0, 2.0])))
    3.0
    """
    now, alike = _sharding.get(), _alike(x)
    if now is None or not alike:
        return op.sum(x)
    found = op.all_sum(op.sum(x), now.axis)
    return found if alike == 1 else found / alike


def length(x: Any) -> Expr:
    """The Euclidean length of something that has the shape of a parameter.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> float(optim.length(cd.tensor([3.0, 4.0])))
    5.0
    """
    return op.sqrt(total(op.square(x))) if _alike(x) else op.norm(x)


def whole_of(variable: Variable) -> Variable:
    """The parameter that a variable is, or is a part of.

    >>> from caldera import op
    >>> from caldera.optim.sharding import whole_of
    >>> w = op.var("w", (4,))
    >>> whole_of(w) is w
    True
    """
    now = _sharding.get()
    return variable if now is None else now.wholes.get(variable, variable)


def check_sharded_update(where: str, given: Sequence[Expr], results: Sequence[Expr]) -> None:
    """Refuse a rule that takes a part of a parameter for all of it.

    `given` are the parameter, its gradient and its state; `results` what the rule makes of them.
    """
    now = _sharding.get()
    if now is None or given[0] not in now.wholes:
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
                where,
                expected="a rule for each element by itself, where ranks have parts",
                got=f"op.{node.op.name} of a part of {given[0]!r}",
                hint="use optim.total and optim.length, or parallel.DataParallel",
            )
