"""Random cases: ranks, layouts, shapes, dtypes and ops, each beside dense NumPy.

`python -m tests.unit.compiler.sharding.fuzz 1000 [first seed]` prints the seeds that fail.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.compiler.sharding.axis_split import AxisSplit, cyclic_split, even_split
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.ops import place
from caldera.compiler.sharding.propagation import distribute
from caldera.compiler.sharding.table_layout import TableLayout
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.core.graph.opdef import ITEM
from caldera.core.graph.ops.base import tensor
from caldera.core.graph.program import topological
from caldera.kernels.reference import evaluate
from tests.unit.compiler.sharding.interpreter import interpret

Pair = tuple[Expr, np.ndarray]


class Case:
    """One random program over arrays in random layouts."""

    def __init__(self, seed: int, communicator: Any = None) -> None:
        self.random = np.random.default_rng(seed)
        self.communicator = communicator
        self.ranks = communicator.size if communicator else int(self.random.integers(1, 9))
        self.layouts: dict[Symbol, ShardLayout] = {}
        self.arrays: dict[Symbol, np.ndarray] = {}
        self.story: list[str] = [f"{self.ranks} ranks"]

    # --- what it is made of

    def integer(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def one_of(self, things: Any) -> Any:
        return things[self.integer(0, len(things) - 1)]

    def shape(self, axes: int | None = None) -> tuple[int, ...]:
        count = self.integer(0, 3) if axes is None else axes
        lengths = [1, 2, 3, 4, 5, 7, 9, 0]
        return tuple(self.one_of(lengths[: 7 + (self.integer(0, 4) == 0)]) for _ in range(count))

    def layout(self, shape: tuple[int, ...]) -> ShardLayout:
        if self.integer(0, 3) == 0:
            return self._table(shape)
        splits: list[AxisSplit | None] = []
        left = self.ranks
        for n in shape:
            parts = self.integer(1, min(3, left)) if self.integer(0, 4) else self.integer(1, left)
            left //= parts
            splits.append(self._split(n, parts) if parts > 1 else None)
        needed = self.integer(1, left)
        for split in splits:
            needed *= 1 if split is None else split.parts
        order = self.random.permutation(self.ranks) if self.integer(0, 1) else np.arange(self.ranks)
        return CartesianLayout(shape, tuple(splits), tuple(order[:needed].tolist()))

    def _split(self, n: int, parts: int) -> AxisSplit:
        kind = self.integer(0, 2)
        if kind == 0:
            return even_split(n, parts)
        if kind == 1:
            return cyclic_split(n, parts, self.integer(1, 3))
        cuts = (0, *sorted(self.integer(0, n) for _ in range(self.integer(0, 4))), n)
        return AxisSplit(parts, cuts, tuple(self.integer(0, parts - 1) for _ in cuts[1:]))

    def _table(self, shape: tuple[int, ...]) -> TableLayout:
        blocks, count = [], 1
        for n in shape:
            cuts = (0, *sorted(self.integer(0, n) for _ in range(self.integer(0, 2))), n)
            blocks.append(cuts)
            count *= len(cuts) - 1
        table = []
        for _ in range(count):
            owners = {self.integer(0, self.ranks - 1) for _ in range(self.integer(1, 2))}
            table.append(tuple(sorted(owners)))
        return TableLayout(shape, tuple(blocks), tuple(table))

    def leaf(self, shape: tuple[int, ...], dtype: str = "float64") -> Pair:
        values = self.random.normal(size=shape)
        array = np.asarray(values if dtype != "int64" else np.round(values * 4)).astype(dtype)
        if dtype == "complex128":
            array = array + 1j * self.random.normal(size=shape)
        layout = self.layout(shape)
        symbol = Symbol(f"a{len(self.arrays)}", Spec(shape, array.dtype), "tensor")
        self.layouts[symbol], self.arrays[symbol] = layout, array
        self.story.append(f"{symbol.name}: {dtype} {layout}")
        return Expr(tensor(symbol=symbol)), array

    # --- running it

    def check(self, node: Node, expected: np.ndarray) -> None:
        """Every rank's part is that of NumPy's result, and bytes are those that were foretold."""
        wanted = self.layout(node.shape) if self.integer(0, 1) else None

        def work(comm: Any) -> Any:
            program = distribute([node], self.layouts, [wanted], ranks=self.ranks, rank=comm.rank)
            parts = {s: self.layouts[s].part_of(a, comm.rank) for s, a in self.arrays.items()}
            (made,) = interpret(program, parts, comm)
            return made, program, comm.traffic.total.bytes_sent

        if self.communicator is None:
            done = dict(enumerate(run_virtual_ranks(self.ranks, work)))
            foretold = sum(move.nbytes for move in done[0][1].moves)
            if all(each.op.name != "spmd" for each in topological(done[0][1].roots)):
                # What algorithms send is a matter of their own.
                assert sum(each[2] for each in done.values()) == foretold
        else:
            done = {self.communicator.rank: work(self.communicator)}
        (layout,) = {each[1].layouts[0] for each in done.values()}
        if wanted is not None:
            assert layout == wanted
        for rank, (made, _, _) in done.items():
            assert made.shape == layout.local_shape(rank)
            if rank in layout.ranks:
                right = layout.part_of(np.asarray(expected, node.dtype), rank)
                np.testing.assert_allclose(made, right, rtol=1e-12, atol=1e-12)


STEPS: list[Callable[[Case, Pair], Pair | None]] = []


def step(function: Callable[[Case, Pair], Pair | None]) -> Callable[[Case, Pair], Pair | None]:
    """One thing that can be done with an array; None if it cannot be with this one."""
    STEPS.append(function)
    return function


@step
def _unary(case: Case, x: Pair) -> Pair | None:
    if x[1].dtype.kind != "f":
        return None
    name = case.one_of(["exp", "tanh", "abs", "neg", "square", "sigmoid"])
    numpy: dict[str, Callable[..., Any]] = {
        "exp": lambda a: np.exp(np.minimum(a, 3)),
        "tanh": np.tanh,
        "abs": np.abs,
        "neg": np.negative,
        "square": np.square,
        "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    }
    given = op.minimum(x[0], 3.0) if name == "exp" else x[0]
    return getattr(op, name)(given), numpy[name](x[1])


@step
def _binary(case: Case, x: Pair) -> Pair | None:
    kept = [n if case.integer(0, 3) else 1 for n in x[1].shape]
    other = case.leaf(tuple(kept[case.integer(0, len(kept)) :]), str(x[1].dtype))
    kind = case.integer(0, 5)
    if x[1].dtype.kind == "c":
        kind = min(kind, 2)
    if kind == 0:
        return x[0] + other[0], x[1] + other[1]
    if kind == 1:
        return other[0] - x[0], other[1] - x[1]
    if kind == 2:
        return x[0] * other[0], x[1] * other[1]
    if kind == 3:
        return op.maximum(x[0], other[0]), np.maximum(x[1], other[1])
    if kind == 4:
        return op.cast(x[0] < other[0], "float64"), (x[1] < other[1]).astype("float64")
    return op.where(x[0] > other[0], x[0], other[0] * 2), np.where(
        x[1] > other[1], x[1], other[1] * 2
    )


@step
def _number(case: Case, x: Pair) -> Pair:
    values = np.round(case.random.normal(size=x[1].shape[-1:]), 2)
    if x[1].dtype.kind == "i" or case.integer(0, 1):
        return x[0] * 3 + 1, x[1] * 3 + 1
    return x[0] + values, x[1] + values


@step
def _reduction(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim:
        return None
    axes = tuple(i for i in range(x[1].ndim) if case.integer(0, 1)) or (0,)
    name = case.one_of(["sum", "max", "min", "prod", "mean", "var"])
    if x[1].dtype.kind == "c":
        name = "sum"
    if x[1].dtype.kind == "i" and name in ("mean", "var", "prod"):
        name = "sum"
    if name in ("max", "min", "mean", "var") and any(x[1].shape[i] == 0 for i in axes):
        return None
    keep = bool(case.integer(0, 1))
    return (
        getattr(op, {"var": "variance"}.get(name, name))(x[0], axis=axes, keepdims=keep),
        getattr(np, name)(x[1], axis=axes, keepdims=keep),
    )


@step
def _position(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim or x[1].dtype.kind == "c":
        return None
    axis = case.integer(0, x[1].ndim - 1)
    if x[1].shape[axis] == 0:
        return None
    return op.argmax(x[0], axis=axis), np.argmax(x[1], axis=axis)


@step
def _along(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim or x[1].dtype.kind != "f":
        return None
    axis = case.integer(0, x[1].ndim - 1)
    if x[1].shape[axis] == 0:
        return None
    if case.integer(0, 1):
        return op.cumsum(x[0], axis=axis), np.cumsum(x[1], axis=axis)
    bounded = np.tanh(x[1])
    weights = np.exp(bounded)
    return op.softmax(op.tanh(x[0]), axis=axis), weights / weights.sum(axis, keepdims=True)


@step
def _product(case: Case, x: Pair) -> Pair | None:
    if x[1].ndim < 1 or x[1].dtype.kind != "f":
        return None
    inner = x[1].shape[-1]
    if case.integer(0, 3) == 0 and x[1].ndim >= 2:
        other = case.leaf((x[1].shape[-2], case.integer(1, 5)))
        return op.matmul(op.swapaxes(x[0], -1, -2), other[0]), np.swapaxes(x[1], -1, -2) @ other[1]
    batch = x[1].shape[:-2] if x[1].ndim > 2 and case.integer(0, 1) else ()
    other = case.leaf((*batch, inner, case.integer(1, 5)))
    return x[0] @ other[0], x[1] @ other[1]


@step
def _slice(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim:
        return None
    key = []
    for n in x[1].shape:
        start = case.integer(0, n)
        key.append(slice(start, case.integer(start, n), case.integer(1, 3)))
    return x[0][tuple(key)], x[1][tuple(key)]


@step
def _row(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim or not x[1].shape[0]:
        return None
    number = case.integer(0, x[1].shape[0] - 1)
    if case.integer(0, 1):
        return x[0][number], x[1][number]
    rows = [case.integer(0, x[1].shape[0] - 1) for _ in range(3)]
    return x[0][rows], x[1][rows]


@step
def _transpose(case: Case, x: Pair) -> Pair:
    axes = case.random.permutation(x[1].ndim).tolist()
    return op.transpose(x[0], axes), np.transpose(x[1], axes)


@step
def _flip(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim:
        return None
    axis = case.integer(0, x[1].ndim - 1)
    return op.flip(x[0], axis), np.flip(x[1], axis)


@step
def _reshape(case: Case, x: Pair) -> Pair | None:
    shapes = [(-1,), (x[1].size,), (1, -1), (-1, 1), (2, -1), (-1, 3), x[1].shape[::-1]]
    try:
        made = x[1].reshape(case.one_of(shapes))
    except ValueError:
        return None
    return op.reshape(x[0], made.shape), made


@step
def _join(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim:
        return None
    axis = case.integer(0, x[1].ndim - 1)
    shape = list(x[1].shape)
    if case.integer(0, 2) == 0:
        other = case.leaf(tuple(shape), str(x[1].dtype))
        return op.stack([x[0], other[0]], axis=axis), np.stack([x[1], other[1]], axis)
    shape[axis] = case.integer(0, 4)
    other = case.leaf(tuple(shape), str(x[1].dtype))
    return op.concat([x[0], other[0]], axis=axis), np.concatenate([x[1], other[1]], axis)


@step
def _pad(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim or x[1].dtype.kind == "c":
        return None
    widths = [(case.integer(0, 2), case.integer(0, 2)) for _ in x[1].shape]
    return op.pad(x[0], widths, value=2), np.pad(x[1], widths, constant_values=2)


@step
def _moved(case: Case, x: Pair) -> Pair:
    return Expr(place(x[0].node, case.layout(x[1].shape))), x[1]


@step
def _cast(case: Case, x: Pair) -> Pair | None:
    if x[1].dtype.kind == "c":
        return None
    if x[1].dtype.kind == "i":
        wide = op.cast(x[0], "float64")
        return Expr(place(wide.node, case.layout(x[1].shape))), x[1].astype("float64")
    return op.cast(op.round(op.clip(x[0], -99, 99)), "int64"), np.round(
        np.clip(x[1], -99, 99)
    ).astype("int64")


@step
def _set(case: Case, x: Pair) -> Pair | None:
    if not x[1].ndim or not x[1].shape[0]:
        return None
    number = case.integer(0, x[1].shape[0] - 1)
    changed = x[1].copy()
    changed[number] = 7
    return x[0].at[number].set(7), changed


def _slope(case: Case, x: Pair) -> Pair:
    """The gradient of what was made with respect to one of the arrays, beside the dense one."""
    leaves = {symbol: tensor(symbol=symbol) for symbol in case.arrays}
    floats = [leaf for symbol, leaf in leaves.items() if symbol.spec.dtype == np.float64]
    if not floats:
        return x
    made = op.grad(op.sum(op.tanh(x[0])), Expr(case.one_of(floats)), unused="zero")
    case.story.append(f"its gradient {made.shape}")
    known = {leaves[symbol]: array for symbol, array in case.arrays.items()}
    return made, interpret_whole(made.node, known)


def interpret_whole(node: Node, values: dict[Node, np.ndarray]) -> np.ndarray:
    """What a graph of whole values gives, on one rank and without a layout."""
    results: dict[Node, Any] = {leaf: (array,) for leaf, array in values.items()}
    for each in topological([node]):
        if each in results:
            continue
        inputs = [results[given] for given in each.inputs]
        if each.op is ITEM:
            results[each] = (inputs[0][each.attrs["index"]],)
        elif each.op.name == "place":
            results[each] = inputs[0]
        elif "symbol" in each.attrs:
            results[each] = (each.attrs["symbol"].value.numpy(),)
        else:
            results[each] = evaluate(each, [given[0] for given in inputs])
    found: np.ndarray = results[node][0]
    return found


def run(seed: int, communicator: Any = None) -> None:
    """One case, in threads or on the ranks of a communicator; an error says what it was."""
    case = Case(seed, communicator)
    dtype = case.one_of(["float64", "float64", "float64", "int64", "complex128"])
    x = case.leaf(case.shape(), dtype)
    try:
        with np.errstate(all="ignore"):
            for _ in range(case.integer(1, 4)):
                action = case.one_of(STEPS)
                found = action(case, x)
                if found is not None:
                    x = found
                    case.story.append(f"{action.__name__} -> {x[1].shape} {x[1].dtype}")
            if x[1].dtype == np.float64 and case.integer(0, 2) == 0:
                x = _slope(case, x)
            case.check(x[0].node, x[1])
    except BaseException as error:
        error.add_note(f"seed {seed}: " + "\n  ".join(case.story))
        raise


if __name__ == "__main__":
    count = int(sys.argv[1])
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    wrong = []
    for seed in range(first, first + count):
        try:
            run(seed)
        except Exception:
            wrong.append(seed)
            if len(wrong) <= 3:
                traceback.print_exc()
    print(f"{count} cases, {len(wrong)} wrong: {wrong[:40]}")
