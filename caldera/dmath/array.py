"""`Array`: a matrix whose parts are on many ranks, used like any other expression."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, lift
from caldera.compiler.lazy.expr import add_kind
from caldera.compiler.sharding.distributions import Distribution, Replicated, as_layout
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import place
from caldera.compiler.sharding.rules.registry import default_layout
from caldera.core.graph import Node, Spec, Symbol, substitute
from caldera.core.graph.ops import unslice, where
from caldera.core.graph.ops.base import cast, full, tensor
from caldera.core.tensor import Shape, bool_, canonical
from caldera.dmath.connect import current
from caldera.dmath.explain import ArrayExplanation, explained, layout_picture
from caldera.dmath.numpy_functions import apply_function, apply_ufunc
from caldera.dmath.session import Handle, Session
from caldera.dmath.shards import Box, blocks_of, to_dask, to_pandas
from caldera.draw.svg import Picture

# Known values, by node, for the lifetime of the node.
_values: weakref.WeakKeyDictionary[Node, Node] = weakref.WeakKeyDictionary()


def _method(function: Callable[..., Any], words: str) -> Callable[..., Any]:
    """Return the method that applies a function of NumPy."""

    def method(self: Array, *args: Any, **options: Any) -> Any:
        return apply_function(function, (self, *args), options)

    method.__doc__ = words
    return method


class Array(Expr):
    """Distributed array; results of operations on it are distributed arrays.

    Like every expression it is computed when its value is needed: one program is sent to the ranks,
    and each rank stores a part of the result. `dm.array`, `dm.random` and similar functions create
    arrays.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array(np.arange(6.0).reshape(3, 2), layout=dm.Rows())
    ...     (a @ a.T).sum(axis=0).numpy()
    array([ 9., 39., 69.])
    """

    __slots__ = ()

    # --- where it is

    @property
    def layout(self) -> ShardLayout:
        """The layout it has, or will have once it is computed."""
        known = _values.get(self.node, self.node).attrs.get("symbol")
        if known is not None and isinstance(known.value, Handle):
            return known.value.layout
        return self._explained(again=False).layout

    def to(
        self,
        layout: ShardLayout | Distribution | None = None,
        dtype: Any = None,
        ranks: Iterable[int] | None = None,
    ) -> Array:
        """Return the same values in another layout, in another dtype, on other ranks.

        >>> import numpy as np
        >>> from caldera import dmath as dm
        >>> with dm.connect(threads=4):
        ...     a = dm.array(np.ones((8, 8)), layout=dm.Rows())
        ...     a.to(layout=dm.Columns(), ranks=range(2)).layout.local_shape(1)
        (8, 4)
        """
        node = self.node if dtype is None else cast(self.node, canonical(dtype))
        return Array(place(node, layout_for(layout, node.spec, ranks)))

    def replicate(
        self, layout: ShardLayout | Distribution | None = None, *, wait: bool = True
    ) -> Array:
        """Compute it and store a copy in a second layout, by default replicated.

        The result has the original layout; programs that need the second layout transfer no data.
        With `wait=False` the method returns during the copy, and users of the copy wait for it. A
        copy larger than `Session.limit_cache` allows is not stored.

        >>> import numpy as np
        >>> from caldera import dmath as dm
        >>> with dm.connect(threads=2):
        ...     a = dm.array(np.ones((8, 8)), layout=dm.Rows()).replicate(wait=False)
        ...     float((a @ a).sum())
        512.0
        """
        known = self.eval()
        there = layout_for(Replicated() if layout is None else layout, known.node.spec, None)
        assert there is not None
        current().replicate(known.handle, there, wait)
        return known

    def explain(self) -> ArrayExplanation:
        """Explain the transfers of its computation: bytes, seconds, and the rejected alternatives.

        >>> import numpy as np
        >>> from caldera import dmath as dm
        >>> with dm.connect(threads=2):
        ...     a = dm.array(np.ones((64, 64)), layout=dm.Rows())
        ...     (a + a.to(layout=dm.Columns())).explain().nbytes
        16384
        """
        return self._explained(again=True)

    def _explained(self, *, again: bool) -> ArrayExplanation:
        return explained(_with_leaves([self.node], but=self.node)[0], current(), again=again)

    def draw(self, path: str | PathLike[str] | None = None) -> Picture:
        """Return a picture of its layout, which a notebook shows; with a path it is also a file.

        >>> import numpy as np
        >>> from caldera import dmath as dm
        >>> with dm.connect(threads=4):
        ...     picture = dm.array(np.ones((4, 4)), layout=dm.Grid(2, 2)).draw()
        >>> picture.svg.startswith("<svg")
        True
        """
        made = layout_picture(self.layout)
        if path is not None:
            made.save(path)
        return made

    # --- asking for the value

    def eval(self, **feeds: Any) -> Array:  # type: ignore[override] # what is here is a part
        """Compute it. The result is an array whose parts are on the ranks, ready to be used."""
        require(
            not feeds,
            "dm.Array.eval",
            "no inputs",
            ", ".join(feeds),
            hint="convert them with dm.array",
        )
        return evaluate([self])[0]

    def numpy(self) -> np.ndarray:
        """Return the whole array as a NumPy array in this process."""
        handle = self.handle
        return handle.session.get(handle)

    @property
    def handle(self) -> Handle:
        """Handle of the computed array in its session."""
        return _handle(self.eval().node)

    def item(self) -> Any:
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __str__(self) -> str:
        return str(self.numpy())

    def __repr__(self) -> str:
        return f"Array(shape={self.shape}, dtype={self.dtype.name})"

    def blocks(self) -> Iterator[tuple[Box, np.ndarray]]:
        """Yield its blocks as (slices, elements); only one block is in this process at a time.

        >>> import numpy as np
        >>> from caldera import dmath as dm
        >>> with dm.connect(threads=2):
        ...     a = dm.array(np.arange(6.0).reshape(3, 2), layout=dm.Rows())
        ...     [(box[0], float(block.sum())) for box, block in a.blocks()]
        [(slice(0, 2, None), 6.0), (slice(2, 3, None), 9.0)]
        """
        return blocks_of(self.eval())

    def to_dask(self) -> Any:
        """Return an array of Dask, whose chunks are the blocks of this one; each is brought here
        when Dask computes something with it."""
        return to_dask(self.eval())

    def to_pandas(self, columns: Sequence[Any] | None = None, index: Any = None) -> Any:
        """Return a matrix as a pandas DataFrame or a vector as a Series, gathered in this
        process.
        """
        return to_pandas(self, columns, index)

    # --- assignment

    def __setitem__(self, key: Any, values: Any) -> None:
        """Replace a part; expressions built from the array before keep the old values."""
        bounds = _bounds(key, self.shape)
        if bounds is None:
            # Even if every element is replaced, it stays a distributed array.
            self.node = place(self.at[key].set(values).node, None)
            return
        shape = tuple(len(range(*bound)) for bound in bounds)
        given = op.broadcast(Expr(cast(lift(values, self.dtype), self.dtype)), shape).node
        there = unslice(full(shape, True, bool_), shape=self.shape, bounds=bounds)
        new = unslice(given, shape=self.shape, bounds=bounds)
        self.node = place(where(there, new, self.node), None)

    # --- NumPy's habits

    def __array_ufunc__(  # type: ignore[override] # expressions leave all to their own operators
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        return apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        return apply_function(function, args, options)

    T = property(_method(np.transpose, "The transpose."))
    real = property(_method(np.real, "The real parts; real numbers are their own."))
    imag = property(_method(np.imag, "Return the imaginary parts, which are 0 for real numbers."))
    ravel = _method(np.ravel, "The elements along one axis.")
    sum = _method(np.sum, "Return the sum over axes, by default over all.")
    mean = _method(np.mean, "Return the mean over axes, by default over all.")
    max = _method(np.max, "The largest element along axes.")
    min = _method(np.min, "The smallest element along axes.")
    prod = _method(np.prod, "The product over axes.")
    var = _method(np.var, "The variance over axes.")
    std = _method(np.std, "The standard deviation over axes.")
    argmax = _method(np.argmax, "The index of the largest element along an axis.")
    argmin = _method(np.argmin, "The index of the smallest element along an axis.")
    cumsum = _method(np.cumsum, "Running sums along an axis, or of all elements.")
    dot = _method(np.dot, "The matrix product.")

    def transpose(self, *axes: int) -> Array:
        """Return the array with its axes permuted; reversed if none are given."""
        return _own(op.transpose(self, axes)) if axes else self.T

    def reshape(self, *shape: Any) -> Array:
        """Return an array with the same elements in another shape."""
        return _own(op.reshape(self, shape[0] if len(shape) == 1 else shape))

    def astype(self, dtype: Any) -> Array:
        """Return an array with the same values in another dtype."""
        return _own(op.cast(self, dtype))

    def conj(self) -> Array:
        """Return the complex conjugates; real numbers are unchanged."""
        return _own(op.conj(self))


OPERATORS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.divide,
    "pow": np.power,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "matmul": np.matmul,
}
"""Operators that NumPy's ufuncs compute, so that `A / 2` and `2 / A` have one rule of dtypes."""


def _operator(ufunc: Any, *, turned: bool) -> Callable[[Any, Any], Any]:
    def method(self: Array, other: Any) -> Any:
        return apply_ufunc(ufunc, "__call__", (other, self) if turned else (self, other), {})

    return method


for _name, _ufunc in OPERATORS.items():
    setattr(Array, f"__{_name}__", _operator(_ufunc, turned=False))
    setattr(Array, f"__r{_name}__", _operator(_ufunc, turned=True))


def _own(made: Expr) -> Array:
    assert isinstance(made, Array)
    return made


def evaluate(arrays: Sequence[Expr]) -> list[Array]:
    """Compute several arrays with a single program.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array(np.arange(4.0))
    ...     total, largest = dm.evaluate([a.sum(), a.max()])
    ...     float(total), float(largest)
    (6.0, 3.0)
    """
    nodes = _with_leaves([each.node for each in arrays])
    wanted = [number for number, node in enumerate(nodes) if not _is_value(node)]
    session = current()
    handles = session.run([nodes[number] for number in wanted]) if wanted else []
    for number, handle in zip(wanted, handles, strict=True):
        nodes[number] = _values[arrays[number].node] = leaf_of(handle)
    return [Array(node) for node in nodes]


def leaf_of(handle: Handle) -> Node:
    """Return the node of an array that ranks have."""
    return tensor(symbol=Symbol("", handle.spec, "tensor", handle))


def put(values: np.ndarray, layout: ShardLayout, session: Session | None = None) -> Array:
    """Return a distributed array with the values of a local one."""
    return Array(leaf_of((session or current()).put(values, layout)))


def _with_leaves(nodes: Sequence[Node], but: Node | None = None) -> list[Node]:
    """Return the nodes with leaves in place of all that was computed before."""
    stand_ins: dict[Node, Node] = {}
    waiting, seen = list(nodes), set(nodes)
    while waiting:
        node = waiting.pop()
        leaf = None if node is but else _values.get(node)
        if leaf is not None and _handle(leaf).session.is_open:
            stand_ins[node] = leaf
            continue
        waiting += [given for given in node.inputs if given not in seen]
        seen.update(node.inputs)
    return list(substitute(nodes, stand_ins)) if stand_ins else list(nodes)


def _is_value(node: Node) -> bool:
    symbol = node.attrs.get("symbol")
    return isinstance(symbol, Symbol) and isinstance(symbol.value, Handle)


def _handle(node: Node) -> Handle:
    return node.attrs["symbol"].value


def layout_for(
    layout: ShardLayout | Distribution | None, spec: Spec, ranks: Iterable[int] | None
) -> ShardLayout | None:
    """Return the layout of an array on some ranks or on all, or None if none is given."""
    own = None if ranks is None else checked_ranks(ranks)
    if layout is None:
        return None if own is None else default_layout(spec.shape, own, spec.dtype.itemsize)
    found = as_layout(layout, spec.shape, range(current().ranks) if own is None else own)
    checked_ranks(found.ranks)
    return found


def checked_ranks(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return ranks that the session has."""
    own, there = tuple(int(rank) for rank in ranks), current().ranks
    require(
        own and not any(not 0 <= rank < there for rank in own),
        "dmath",
        f"one or more ranks from 0 to {there - 1}",
        own,
        hint="dm.connect returns a session with the number of ranks",
    )
    return own


def _bounds(key: Any, shape: Shape) -> tuple[tuple[int, int, int], ...] | None:
    """Return the bounds that a key of slices names; None for other keys."""
    parts = list(key) if isinstance(key, tuple) else [key]
    # Not by `in`: arrays of indices compare element by element.
    place_of = next((number for number, part in enumerate(parts) if part is Ellipsis), None)
    if place_of is not None:
        parts[place_of : place_of + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    parts += [slice(None)] * (len(shape) - len(parts))
    if len(parts) != len(shape) or not all(isinstance(part, slice) for part in parts):
        return None
    found = []
    for part, n in zip(parts, shape, strict=True):
        start, stop, step = part.indices(n)
        if step < 1:
            return None
        found.append((start, max(start, stop), step))
    return tuple(found)


def _is_shared_out(node: Node) -> bool:
    return node.op.kind == "distributed" or _is_value(node)


add_kind(Array, _is_shared_out)
