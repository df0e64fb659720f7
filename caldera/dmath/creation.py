"""Creation of distributed arrays: from values, at random, and from Dask and pandas.

Dask arrays and pandas frames are transferred block by block, never as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.compiler.lazy.indexing import array_node
from caldera.compiler.sharding.algorithms.process_grid import even_cuts
from caldera.compiler.sharding.distributions import Distribution, Rows, as_layout
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import place
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.ops import add, cast, constant, iota, mul
from caldera.core.graph.ops import full as full_node
from caldera.core.graph.ops.random import random_normal, random_uniform
from caldera.core.tensor import array_of, as_shape, bool_, canonical, int64, is_float
from caldera.dmath.array import Array, layout_for, leaf_of, put
from caldera.dmath.connect import current
from caldera.dmath.shards import Elements, FileArray, read_part
from caldera.errors import ConfigError

Where = ShardLayout | Distribution | None


def _array(node: Node, layout: Where, ranks: Iterable[int] | None) -> Array:
    return Array(place(node, layout_for(layout, node.spec, ranks)))


def array(
    values: Any,
    layout: Where = None,
    dtype: Any = None,
    ranks: Iterable[int] | None = None,
) -> Array:
    """Return an array with these values, in a layout, or in one that is chosen.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     a = dm.array([[1.0, 2.0], [3.0, 4.0]], layout=dm.Columns())
    ...     a.layout.local_shape(0), a.dtype.name
    ((2, 1), 'float64')
    """
    if isinstance(values, Expr) and not isinstance(values, Array):
        values = values.numpy()
    if isinstance(values, Array):
        return values.to(layout, dtype, ranks)
    given = values if isinstance(values, np.ndarray) else array_of(values, "dm.array")
    if dtype is not None:
        given = given.astype(canonical(dtype))
    spec = Spec(given.shape, canonical(given.dtype))
    where = layout_for(layout, spec, range(current().ranks) if ranks is None else ranks)
    assert where is not None
    return put(given, where)


def full(
    shape: Any,
    value: complex,
    dtype: Any = "float64",
    layout: Where = None,
    ranks: Iterable[int] | None = None,
) -> Array:
    """Return an array with the same value in every element.

    >>> from caldera import dmath as dm
    >>> dm.full((2,), 7.0).numpy().tolist()
    [7.0, 7.0]
    """
    return _array(full_node(as_shape(shape), value, canonical(dtype)), layout, ranks)


def zeros(
    shape: Any, dtype: Any = "float64", layout: Where = None, ranks: Iterable[int] | None = None
) -> Array:
    """Return an array of zeros.

    >>> from caldera import dmath as dm
    >>> dm.zeros((2,)).numpy().tolist()
    [0.0, 0.0]
    """
    return full(shape, 0, dtype, layout, ranks)


def ones(
    shape: Any, dtype: Any = "float64", layout: Where = None, ranks: Iterable[int] | None = None
) -> Array:
    """Return an array of ones.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     dm.ones((2, 2)).numpy().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return full(shape, 1, dtype, layout, ranks)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: Any = None,
    layout: Where = None,
    ranks: Iterable[int] | None = None,
) -> Array:
    """Return numbers from `start` up to `stop`, as NumPy's.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=2):
    ...     dm.arange(2, 8, 3).numpy().tolist()
    [2, 5]
    """
    first, last = (0, start) if stop is None else (start, stop)
    try:
        count = len(np.arange(first, last, step))
    except (ValueError, ZeroDivisionError, MemoryError, OverflowError) as error:
        raise ConfigError.build(
            "dm.arange", expected="a finite number of values", got=f"{first} to {last} by {step}"
        ) from error
    kind = canonical(np.result_type(first, last, step) if dtype is None else dtype)
    steps = cast(iota(shape=(count,), axis=0, dtype=int64), kind)
    return _array(add(mul(steps, constant(step, kind)), constant(first, kind)), layout, ranks)


def eye(
    rows: int,
    columns: int | None = None,
    dtype: Any = "float64",
    layout: Where = None,
    ranks: Iterable[int] | None = None,
) -> Array:
    """Return a matrix with ones on the diagonal and zeros elsewhere.

    >>> from caldera import dmath as dm
    >>> dm.eye(2).numpy().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    shape = (rows, rows if columns is None else columns)
    down, across = (iota(shape=shape, axis=axis, dtype=int64) for axis in (0, 1))
    same = cast((Expr(down) == Expr(across)).node, bool_)
    return _array(cast(same, canonical(dtype)), layout, ranks)


def _random(
    where: str, make: Any, shape: Any, seed: int, dtype: Any, layout: Where, ranks: Any
) -> Array:
    kind = canonical(dtype)
    require(is_float(kind), where, "a dtype of floats", kind.name)
    state = array_node(np.array([np.uint64(index(seed) % 2**64).astype(np.int64), 0], np.int64))
    offset = constant(0, int64)
    drawn = make(state, offset, shape=as_shape(shape), dtype=kind, stream=0)
    return _array(drawn, layout, ranks)


def random(
    shape: Any,
    seed: int = 0,
    dtype: Any = "float64",
    layout: Where = None,
    ranks: Iterable[int] | None = None,
) -> Array:
    """Return uniform numbers from 0 to 1, the same for a seed in any layout on any ranks.

    >>> from caldera import dmath as dm
    >>> with dm.connect(threads=3):
    ...     rows = dm.random((3, 3), seed=7, layout=dm.Rows()).numpy()
    ...     columns = dm.random((3, 3), seed=7, layout=dm.Columns()).numpy()
    >>> bool((rows == columns).all())
    True
    """
    return _random("dm.random", random_uniform, shape, seed, dtype, layout, ranks)


def normal(
    shape: Any,
    seed: int = 0,
    dtype: Any = "float64",
    layout: Where = None,
    ranks: Iterable[int] | None = None,
) -> Array:
    """Return normal numbers with mean 0 and deviation 1, the same for a seed in any layout.

    >>> from caldera import dmath as dm
    >>> dm.normal((2, 3), seed=1).shape
    (2, 3)
    """
    return _random("dm.normal", random_normal, shape, seed, dtype, layout, ranks)


def from_dask(values: Any, layout: Where = None) -> Array:
    """Return an array from a Dask array or frame; each rank's part is computed and sent in turn.

    Without a layout, rows are split between chunks, so that each chunk is computed once.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> import dask.array as da                                         # doctest: +SKIP
    >>> A = dm.from_dask(da.ones((1000, 20), chunks=(100, 20)))         # doctest: +SKIP
    """
    if hasattr(values, "to_dask_array"):
        values = values.to_dask_array(lengths=True)
    require(
        hasattr(values, "chunks") and hasattr(values, "compute"),
        "dm.from_dask",
        "an array or a frame of Dask",
        type(values).__name__,
        hint="dm.array takes arrays of NumPy",
    )
    require(
        not any(n != n for n in values.shape),
        "dm.from_dask",
        "chunks of known sizes",
        f"shape {values.shape}",
        hint="call its compute_chunk_sizes() first",
    )
    shape = tuple(int(n) for n in values.shape)
    if layout is None and shape:
        layout = Rows(cuts=_near(np.cumsum((0, *values.chunks[0])), current().ranks))
    dtype = canonical(values.dtype)
    computed = Elements(shape, dtype, lambda box: np.asarray(values[box].compute()))
    return _from(FileArray(shape, dtype, computed), layout)


def from_pandas(frame: Any, layout: Where = None, dtype: Any = None) -> Array:
    """Return a matrix from the numbers of a frame of pandas, or a vector from a series.

    Columns of different dtypes are promoted to one by NumPy's rules, unless `dtype` is given. Texts
    and other objects raise an error.

    >>> from caldera import dmath as dm
    >>> import pandas                                                   # doctest: +SKIP
    >>> A = dm.from_pandas(pandas.DataFrame({"a": [1, 2], "b": [0.5, 1]}))  # doctest: +SKIP
    """
    require(
        hasattr(frame, "iloc") and hasattr(frame, "to_numpy"),
        "dm.from_pandas",
        "a DataFrame or a Series",
        type(frame).__name__,
        hint="dm.array takes arrays of NumPy",
    )
    kinds = frame.dtypes.to_dict() if frame.ndim == 2 else {frame.name: frame.dtype}
    numbers = {name: getattr(kind, "numpy_dtype", kind) for name, kind in kinds.items()}
    wrong = [
        str(name)
        for name, kind in numbers.items()
        if not isinstance(kind, np.dtype) or kind.kind not in "biufc"
    ]
    require(
        not wrong,
        "dm.from_pandas",
        "columns of numbers",
        "others in " + ", ".join(wrong),
        hint="leave them out, or convert them to numbers with pandas.get_dummies",
    )
    found = np.result_type(*numbers.values()) if numbers else np.dtype(np.float64)
    wanted = canonical(found if dtype is None else dtype)

    def taken(box: Any) -> np.ndarray:
        part = frame.iloc[box if frame.ndim == 2 else box[0]]
        try:
            return np.asarray(part.to_numpy(dtype=wanted))
        except (TypeError, ValueError) as error:
            raise ConfigError.build(
                "dm.from_pandas",
                expected=f"numbers that are {wanted.name}",
                got=str(error),
                hint="fill or drop missing values, or pass dtype='float64'",
            ) from None

    shape = tuple(frame.shape)
    return _from(FileArray(shape, wanted, Elements(shape, wanted, taken)), layout)


def _from(source: FileArray, layout: Where) -> Array:
    session = current()
    spec = Spec(source.shape, source.dtype)
    where = as_layout(Rows() if layout is None else layout, spec.shape, range(session.ranks))
    handle = session.put_parts(spec, where, lambda rank: read_part(source, where, rank))
    return Array(leaf_of(handle))


def _near(bounds: np.ndarray, ranks: int) -> list[int]:
    """Return the cuts among these bounds that are nearest to equal parts.

    >>> _near(np.array([0, 3, 6, 9, 10]), 2)
    [0, 6, 10]
    """
    even = even_cuts(int(bounds[-1]), ranks)
    found = [int(bounds[np.argmin(np.abs(bounds - cut))]) for cut in even]
    return [0, *found[1:-1], int(bounds[-1])]
