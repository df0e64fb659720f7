"""Cases for a relu whose gradient reads bits, which a pass makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import wrap
from caldera.core.graph.ops.epilogue import mask_bytes, relu_mask, relu_mask_grad
from tests.unit.ops.case import Case, numbers

COLUMNS = 19
_X = numbers(3, COLUMNS)


def packed(positive: np.ndarray) -> np.ndarray:
    """Bits as NumPy packs them, with rows of the length that masks have."""
    rows, columns = positive.shape
    whole = np.zeros((rows, 8 * mask_bytes(columns)), bool)
    whole[:, :columns] = positive
    return np.packbits(whole, axis=1, bitorder="little")


def _masked(g: np.ndarray, mask: np.ndarray) -> Any:
    bits = np.unpackbits(mask, axis=1, bitorder="little")[:, : g.shape[1]]
    result = np.where(bits == 1, g, 0)
    return result, result.sum(0)


CASES = [
    Case(
        "relu_mask",
        lambda x: wrap(relu_mask.outputs(x.node)),
        (_X,),
        lambda x: (np.maximum(x, 0), packed(x > 0)),
    ),
    Case(
        "relu_mask_grad",
        lambda g, mask: wrap(relu_mask_grad.outputs(g.node, mask.node, summed=True)),
        (numbers(3, COLUMNS, seed=1), packed(_X > 0)),
        _masked,
    ),
]
