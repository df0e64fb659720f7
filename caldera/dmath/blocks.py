"""An array block by block, for whoever wants no more than one of them at a time: Dask, pandas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caldera.base.registry import optional_import
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.table_layout import TableLayout
from caldera.errors import ConfigError, ShapeError

Box = tuple[slice, ...]
MOST_BLOCKS = 4096
"""Of more than that, as small blocks dealt out in turns are, neighbours are taken together."""


def cuts_of_blocks(layout: ShardLayout) -> list[list[int]]:
    """Where the blocks of a layout begin along each axis, and where the last ends.

    >>> from caldera.compiler.sharding.distributions import Rows
    >>> cuts_of_blocks(Rows().of((5, 3), range(2)))
    [[0, 3, 5], [0, 3]]
    """
    if isinstance(layout, CartesianLayout):
        splits = zip(layout.splits, layout.shape, strict=True)
        cuts = [[0, n] if split is None else sorted({0, *split.cuts, n}) for split, n in splits]
    else:
        assert isinstance(layout, TableLayout)
        cuts = [list(each) for each in layout.blocks]
    while np.prod([len(each) - 1 for each in cuts]) > MOST_BLOCKS:
        longest = max(range(len(cuts)), key=lambda axis: len(cuts[axis]))
        cuts[longest] = sorted({*cuts[longest][::2], cuts[longest][-1]})
    return cuts


def blocks_of(array: Any) -> Iterator[tuple[Box, np.ndarray]]:
    """Where each block lies, and its elements: brought here when it is its turn."""
    cuts = cuts_of_blocks(array.layout)
    for place in np.ndindex(*(len(each) - 1 for each in cuts)):
        box = tuple(slice(each[i], each[i + 1]) for each, i in zip(cuts, place, strict=True))
        yield box, array[box].numpy() if box else array.numpy()


class Elements:
    """What Dask takes for an array: slices of it are brought here when they are asked for."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, np.dtype(array.dtype), array.ndim

    def __getitem__(self, key: Any) -> np.ndarray:
        return self._array[key].numpy()


def to_dask(array: Any) -> Any:
    """An array of Dask with the blocks of this one as its chunks."""
    dask_array = optional_import("dask.array", "dask", "dm.Array.to_dask")
    chunks = tuple(tuple(int(n) for n in np.diff(each)) for each in cuts_of_blocks(array.layout))
    # One after the other: they come from one session.
    return dask_array.from_array(
        Elements(array), chunks=chunks, asarray=False, fancy=False, lock=True
    )


def to_pandas(array: Any, columns: Sequence[Any] | None = None, index: Any = None) -> Any:
    """A frame of pandas, whole; a vector is a series."""
    pandas = optional_import("pandas", "pandas", "dm.Array.to_pandas")
    if array.ndim not in (1, 2):
        raise ShapeError.build(
            "dm.Array.to_pandas",
            expected="a vector or a matrix",
            got=f"shape {array.shape}",
            hint="reshape it first",
        )
    if array.ndim == 1:
        if columns is not None:
            raise ConfigError.build(
                "dm.Array.to_pandas", expected="no columns for a vector", got=repr(columns)
            )
        return pandas.Series(array.numpy(), index=index)
    if columns is not None and len(columns) != array.shape[1]:
        raise ShapeError.build(
            "dm.Array.to_pandas",
            expected=f"{array.shape[1]} names of columns",
            got=f"{len(columns)}",
        )
    return pandas.DataFrame(array.numpy(), index=index, columns=columns)
