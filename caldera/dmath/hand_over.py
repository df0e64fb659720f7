"""Arrays from those of Dask and from frames of pandas: block by block, never as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.sharding.algorithms.process_grid import even_cuts
from caldera.compiler.sharding.distributions import Distribution, Rows, as_layout
from caldera.compiler.sharding.layout import Layout
from caldera.core.graph.node import Spec
from caldera.core.tensor.dtype import canonical
from caldera.dmath.array import Array, leaf_of
from caldera.dmath.connect import current
from caldera.dmath.sources import Source, read_part
from caldera.errors import ConfigError

Where = Layout | Distribution | None


def from_dask(values: Any, layout: Where = None) -> Array:
    """An array from one of Dask, or from a frame of it: what a rank is to have is computed and sent
    to it, then what the next one is to have.

    Without a layout the rows are cut between chunks, so that each chunk is computed once.

    >>> import numpy as np
    >>> from caldera import dmath as dm
    >>> import dask.array as da                                         # doctest: +SKIP
    >>> A = dm.from_dask(da.ones((1000, 20), chunks=(100, 20)))         # doctest: +SKIP
    """
    if hasattr(values, "to_dask_array"):
        values = values.to_dask_array(lengths=True)
    if not hasattr(values, "chunks") or not hasattr(values, "compute"):
        raise ConfigError.build(
            "dm.from_dask",
            expected="an array or a frame of Dask",
            got=type(values).__name__,
            hint="dm.array takes arrays of NumPy",
        )
    if any(n != n for n in values.shape):
        raise ConfigError.build(
            "dm.from_dask",
            expected="chunks of known sizes",
            got=f"shape {values.shape}",
            hint="call its compute_chunk_sizes() first",
        )
    shape = tuple(int(n) for n in values.shape)
    if layout is None and shape:
        layout = Rows(cuts=_near(np.cumsum((0, *values.chunks[0])), current().ranks))
    return _from(Source(shape, canonical(values.dtype), _Computed(values)), layout)


def from_pandas(frame: Any, layout: Where = None, dtype: Any = None) -> Array:
    """A matrix from the numbers of a frame of pandas, or a vector from a series.

    Columns of different kinds meet in one dtype, as NumPy has them meet, unless one is given; texts
    and other objects are refused.

    >>> from caldera import dmath as dm
    >>> import pandas                                                   # doctest: +SKIP
    >>> A = dm.from_pandas(pandas.DataFrame({"a": [1, 2], "b": [0.5, 1]}))  # doctest: +SKIP
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "to_numpy"):
        raise ConfigError.build(
            "dm.from_pandas",
            expected="a DataFrame or a Series",
            got=type(frame).__name__,
            hint="dm.array takes arrays of NumPy",
        )
    kinds = frame.dtypes.to_dict() if frame.ndim == 2 else {frame.name: frame.dtype}
    numbers = {name: getattr(kind, "numpy_dtype", kind) for name, kind in kinds.items()}
    wrong = [
        str(name)
        for name, kind in numbers.items()
        if not isinstance(kind, np.dtype) or kind.kind not in "biufc"
    ]
    if wrong:
        raise ConfigError.build(
            "dm.from_pandas",
            expected="columns of numbers",
            got="others in " + ", ".join(wrong),
            hint="leave them out, or make numbers of them with pandas.get_dummies",
        )
    found = np.result_type(*numbers.values()) if numbers else np.dtype(np.float64)
    wanted = canonical(found if dtype is None else dtype)
    return _from(Source(tuple(frame.shape), wanted, _Taken(frame, wanted)), layout)


def _from(source: Source, layout: Where) -> Array:
    session = current()
    spec = Spec(source.shape, source.dtype)
    where = as_layout(Rows() if layout is None else layout, spec.shape, range(session.ranks))
    handle = session.put_parts(spec, where, lambda rank: read_part(source, where, rank))
    return Array(leaf_of(handle))


def _near(bounds: np.ndarray, ranks: int) -> list[int]:
    """Cuts among these that are near to equal parts.

    >>> _near(np.array([0, 3, 6, 9, 10]), 2)
    [0, 6, 10]
    """
    even = even_cuts(int(bounds[-1]), ranks)
    found = [int(bounds[np.argmin(np.abs(bounds - cut))]) for cut in even]
    return [0, *found[1:-1], int(bounds[-1])]


class _Computed:
    """The elements of an array of Dask."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __getitem__(self, box: Any) -> np.ndarray:
        return np.asarray(self._values[box].compute())


class _Taken:
    """The elements of a frame or a series, in one dtype."""

    def __init__(self, frame: Any, dtype: Any) -> None:
        self._frame = frame
        self._dtype = dtype

    def __getitem__(self, box: Any) -> np.ndarray:
        taken = self._frame.iloc[box if self._frame.ndim == 2 else box[0]]
        try:
            return np.asarray(taken.to_numpy(dtype=self._dtype))
        except (TypeError, ValueError) as error:
            raise ConfigError.build(
                "dm.from_pandas",
                expected=f"numbers that are {np.dtype(self._dtype).name}",
                got=str(error),
                hint="fill or drop what is missing, or give dtype='float64'",
            ) from None
