"""Items of other libraries as arrays: PyTorch's tensors, pictures, dicts, lists for tuples.

Nothing is imported for it: a tensor is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caldera.core.tensor.convert import real_array_of
from caldera.data.sources.base import Array, Arrays
from caldera.errors import CalderaError, DataError

TARGETS = ("y", "label", "labels", "target", "targets")
"""What a target is called among the values of a dict."""


def array_of_item(value: Any, where: str) -> Array:
    """A value of a sample as an array: numbers, arrays, PyTorch's tensors, Pillow's pictures."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        # NumPy knows no bfloat16.
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return real_array_of(value.numpy(), where)
    if hasattr(value, "getbands") and hasattr(value, "convert"):
        picture = value if value.mode in ("L", "RGB") else value.convert("RGB")
        pixels = np.asarray(picture)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return real_array_of(value, where)


def arrays_of_item(item: Any, where: str) -> Arrays:
    """A sample or a batch as arrays: the inputs, then the targets.

    It is a tuple, a dict (see `values_in_order`), or one array. A list is one array if it can be,
    and else stands for a tuple: PyTorch's `DataLoader` makes lists of tensors.

    >>> [array.tolist() for array in arrays_of_item({"label": 1, "image": [0.5, 2.0]}, "item 0")]
    [[0.5, 2.0], 1]
    """
    if isinstance(item, Mapping):
        parts: Sequence[Any] = values_in_order(item, where)
    elif isinstance(item, tuple) or (isinstance(item, list) and _stands_for_tuple(item)):
        parts = item
    else:
        parts = [item]
    try:
        return tuple(array_of_item(part, where) for part in parts)
    except CalderaError as error:
        raise DataError.build(where, expected="arrays of numbers", got=str(error)) from None


def values_in_order(given: Mapping[Any, Any], where: str) -> list[Any]:
    """The values of a dict, those last that are targets by their names.

    >>> values_in_order({"y": 1, "x": 2}, "fit")
    [2, 1]
    """
    if not given:
        raise DataError.build(where, expected="arrays by their names", got="an empty dict")
    targets = [name for name in TARGETS if name in given]
    if len(targets) > 1:
        raise DataError.build(
            where,
            expected="one target in a dict: " + " or ".join(map(repr, TARGETS)),
            got=" and ".join(map(repr, targets)),
            hint="leave one out, or write fit(inputs, targets)",
        )
    inputs = [value for name, value in given.items() if name not in targets]
    return [*inputs, *(given[name] for name in targets)]


def is_data_loader(value: Any) -> bool:
    """Whether something is a `DataLoader` of PyTorch, or like one: it gives batches."""
    return all(hasattr(value, name) for name in ("dataset", "batch_size", "collate_fn", "__iter__"))


def is_indexed(value: Any) -> bool:
    """Whether something has samples by number, as a `Dataset` of PyTorch has.

    >>> is_indexed([1]), is_indexed(iter([1])), is_indexed(np.zeros(3))
    (True, False, False)
    """
    if isinstance(value, str | bytes | Mapping | type) or hasattr(value, "__array__"):
        return False
    # PyTorch's IterableDataset inherits a [] that it does not have.
    if any(kind.__name__ == "IterableDataset" for kind in type(value).__mro__):
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _stands_for_tuple(item: list[Any]) -> bool:
    if any(hasattr(part, "detach") for part in item):
        return True
    shapes = [getattr(part, "shape", ()) for part in item]
    return len(set(shapes)) > 1
