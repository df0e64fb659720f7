"""Sums over ranks, and values of which ranks have parts, written like any other operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caldera.compiler.lazy import Expr, lift
from caldera.core.graph.opdef import Op, location
from caldera.core.graph.ops import collective
from caldera.core.tensor.shape import normalise_axis
from caldera.errors import ShapeError


def all_sum(x: Any, axis: str = "data") -> Expr:
    """The sum of `x` over all ranks along a named axis of the mesh; alone, `x` itself.

    The plan is given its communicator by `cd.compile(..., communicator=)`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.all_sum(cd.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return Expr(collective.all_sum(lift(x), axis=axis, number=collective.next_number()))


def all_gather(x: Any, sizes: Sequence[int], rank: int, dim: int = 0, axis: str = "model") -> Expr:
    """The parts of all ranks along a named axis of the mesh, one after the other along `dim`.

    `sizes` has the length of each rank's part, of which this one, `rank`, has `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     x = cd.tensor([1.0, 2.0][: comm.rank + 1])
    ...     whole = op.all_gather(x, (1, 2), comm.rank)
    ...     return cd.compile(whole, communicator=comm).run()[0].tolist()
    >>> run_virtual_ranks(2, work)
    [[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
    """
    return _parts(collective.all_gather, "all_gather", x, sizes, rank, dim, axis)


def sum_scatter(x: Any, sizes: Sequence[int], rank: int, dim: int = 0, axis: str = "model") -> Expr:
    """This rank's part, along `dim`, of the sum of `x` over ranks; see `all_gather`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     x = cd.tensor([1.0, 2.0, 3.0])
    ...     part = op.sum_scatter(x, (1, 2), comm.rank)
    ...     return cd.compile(part, communicator=comm).run()[0].tolist()
    >>> run_virtual_ranks(2, work)
    [[2.0], [4.0, 6.0]]
    """
    return _parts(collective.sum_scatter, "sum_scatter", x, sizes, rank, dim, axis)


def _parts(
    make: Op, name: str, x: Any, sizes: Sequence[int], rank: int, dim: int, axis: str
) -> Expr:
    node, where = lift(x), location(name)
    if not 0 <= rank < len(sizes):
        raise ShapeError.build(
            where, expected=f"a rank of the {len(sizes)} that have parts", got=f"{rank}"
        )
    return Expr(
        make(
            node,
            axis=axis,
            dim=normalise_axis(dim, len(node.shape), where),
            sizes=tuple(sizes),
            rank=rank,
            number=collective.next_number(),
        )
    )
