"""What one process computes, which all ranks compare with theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import caldera as cd
from caldera.comm import Communicator


def of_rank_0(
    everyone: Communicator, train: Callable[[], tuple[dict[str, np.ndarray], cd.History]]
) -> tuple[dict[str, np.ndarray], dict[str, list[float]]]:
    """Values and losses of a run that rank 0 makes: the others would need as long for it, and there
    are more of them than cores."""
    written: tuple[dict[str, Any], dict[str, list[float]]] | None = None
    if everyone.rank == 0:
        values, history = train()
        kept = {
            name: [each.dtype.str, each.shape, each.tobytes().hex()]
            for name, each in values.items()
        }
        written = kept, {"val_loss": list(history["val_loss"])}
    found, losses = everyone.bcast_object(written)
    return {
        name: np.frombuffer(bytes.fromhex(bits), dtype).reshape(shape)
        for name, (dtype, shape, bits) in found.items()
    }, losses
