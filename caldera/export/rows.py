"""Check that a network computes the rows of a batch independently.

A library computes any number of rows in batches of fixed sizes. A network that mixes rows, by a
mean over the batch for instance, would have different results for different sizes. Such a network
is found by running its plan: a row of the output must depend on no other row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from caldera.compiler.lazy import Expr
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Node, Spec, topological
from caldera.core.tensor.dtype import is_float
from caldera.errors import CalderaError, ConfigError
from caldera.kernels.reference import interpret

ROWS = 7
"""Rows of the trial in which the mixing operation is searched: a size that few axes have."""
_SPREADS = (16, 2, 1)
"""Upper bounds of integers in trials; a table may have few rows."""

Arrays = Sequence[np.ndarray]
Compute = Callable[[Arrays], Arrays]


def check_rows(
    plan: Plan, specs: Mapping[str, Spec], expressions: Callable[[int], tuple[list[Expr], Expr]]
) -> None:
    """Raise an error that names the operation if a row of the output depends on other rows.

    `expressions` returns the inputs and the output of the network for a number of rows.
    """

    def compute(values: Arrays) -> Arrays:
        feeds = dict(zip(specs, values, strict=True))
        return [plan.run({name: feeds[name] for name in plan.inputs})[0].numpy().copy()]

    if all(
        np.array_equal(first[row], second[row], equal_nan=True)
        for (first,), (second,), row in _trials(list(specs.values()), compute)
    ):
        return
    raise ConfigError.build(
        f"export of op.{_mixing_op(*expressions(ROWS))}",
        expected="a network that computes rows independently",
        got="rows that depend on other rows of the batch",
        hint="replace the operation, or run this model with Caldera",
    )


def _trials(specs: Sequence[Spec], compute: Compute) -> Iterator[tuple[Arrays, Arrays, int]]:
    """Yield results for two batches that have one row in common, and the number of this row."""
    rows = specs[0].shape[0]
    for spread in _SPREADS:
        generator = np.random.default_rng(0)
        given = [_random(each, generator, spread) for each in specs]
        try:
            first = compute(given)
        except (IndexError, CalderaError):
            continue
        for row in {0, rows // 2, rows - 1}:
            others = [_random(each, generator, spread) for each in specs]
            for each, kept in zip(others, given, strict=True):
                each[row] = kept[row]
            yield first, compute(others), row
        return


def _random(spec: Spec, generator: np.random.Generator, spread: int) -> np.ndarray:
    if is_float(spec.dtype):
        return generator.normal(size=spec.shape).astype(spec.dtype)
    return generator.integers(0, spread, spec.shape).astype(spec.dtype)


def _mixing_op(inputs: Sequence[Expr], output: Expr) -> str:
    """Return the name of the first operation whose result has no separate rows."""
    order = topological([output.node])
    fed = [each.node for each in inputs]
    held = {
        node: np.asarray(node.attrs["symbol"].value.numpy())
        for node in order
        if "symbol" in node.attrs and node not in fed
    }

    def compute(values: Arrays) -> Arrays:
        with np.errstate(all="ignore"):
            return interpret(order, {**held, **dict(zip(fed, values, strict=True))})

    mixed: set[Node] = set()
    for first, second, row in _trials([each.spec for each in fed], compute):
        for node, a, b in zip(order, first, second, strict=True):
            if not _has_row(a, b, row):
                mixed.add(node)
    return next((each.op.name for each in order if each in mixed), output.node.op.name)


def _has_row(first: np.ndarray, second: np.ndarray, row: int) -> bool:
    """Return True if two values agree, at least in a row along some axis."""
    if np.array_equal(first, second, equal_nan=True):
        return True
    for axis, length in enumerate(first.shape):
        if length % ROWS == 0:
            # Rows may have been merged with another axis, in either order.
            before, after = first.shape[:axis], first.shape[axis + 1 :]
            for place, pair in enumerate(((ROWS, length // ROWS), (length // ROWS, ROWS))):
                a, b = (
                    each.reshape(*before, *pair, *after).take(row, axis + place)
                    for each in (first, second)
                )
                if np.array_equal(a, b, equal_nan=True):
                    return True
    return False
