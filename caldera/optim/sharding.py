"""Support for optimizers on ranks that each update only a part of every parameter.

An optimizer defines the update of a single parameter. Elementwise operations are the same for a
part. Quantities of the whole parameter, such as its norm, must be summed over the ranks that have
the remaining parts. `total` and `length` do that if needed.
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
    """Parameters that are split between ranks.

    - `wholes`: the whole variable of each part.
    - `axis`: the axis of ranks that have the remaining parts.
    - `gradients`: the part that each gradient belongs to; None if all are gradients of some part.
    - `copies`: the number of ranks with the same part of a variable, if more than one.
    """

    wholes: Mapping[Variable, Variable]
    axis: str = "data"
    gradients: Mapping[Node, Variable | None] | None = None
    copies: Mapping[Variable, int] = field(default_factory=dict)

    def ranks_alike(self, node: Node) -> int:
        """Return the number of ranks with the same part of a value; 0 if each has the whole value.

        The number follows from the variables and gradients that the value was computed from.
        """
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
    """Context manager in which variables are shards of other variables; None for no shards.

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
    """Context manager that sets the variable being updated."""
    token = _variable.set(variable)
    try:
        yield
    finally:
        _variable.reset(token)


def _alike(x: Any) -> int:
    """Return the number of ranks with the same part of a value; 0 if this rank has the whole."""
    now = _sharding.get()
    return 0 if now is None else now.ranks_alike(lift(x))


def total(x: Any) -> Expr:
    """Return the sum of all elements of something that has the shape of a parameter.

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
    """Return the Euclidean length of something that has the shape of a parameter.

    >>> import caldera as cd
    >>> from caldera import optim
    >>> float(optim.length(cd.tensor([3.0, 4.0])))
    5.0
    """
    return op.sqrt(total(op.square(x))) if _alike(x) else op.norm(x)


def whole_of(variable: Variable) -> Variable:
    """Return the whole parameter of a shard; other variables are returned unchanged.

    >>> from caldera import op
    >>> from caldera.optim.sharding import whole_of
    >>> w = op.var("w", (4,))
    >>> whole_of(w) is w
    True
    """
    now = _sharding.get()
    return variable if now is None else now.wholes.get(variable, variable)


def check_sharded_update(where: str, given: Sequence[Expr], results: Sequence[Expr]) -> None:
    """Raise if a rule treats a part of a parameter as the whole.

    `given` are the parameter, its gradient and its state; `results` the values computed by the
    rule.
    """
    now = _sharding.get()
    if now is None or given[0] not in now.wholes:
        return
    # Stand-ins end the walk before the inputs of the gradient's computation.
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
                expected="an element-wise rule, where ranks store parts of parameters",
                got=f"op.{node.op.name} of a part of {given[0]!r}",
                hint="use optim.total and optim.length, or parallel.DataParallel",
            )
