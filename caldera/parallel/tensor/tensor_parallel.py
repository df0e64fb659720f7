"""Layers that all ranks compute together, each a part of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caldera.parallel.layout import AXIS
from caldera.parallel.tensor.hybrid import Hybrid


class TensorParallel(Hybrid):
    """All ranks compute on the whole batch, and share its layers; see `Hybrid`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     layers = [nn.Input((1,)), nn.Dense(8, activation="tanh", name="hidden"), nn.Dense(1)]
    ...     return cd.NeuralNetwork(layers, loss="mse", batch_size=5)
    >>> models = [model() for _ in range(3)]
    >>> def work(comm):
    ...     strategy = parallel.TensorParallel({"hidden": "auto"}, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(3, work)
    >>> np.allclose(losses, [model().fit((x, 2 * x), verbose=0)["loss"]] * 3)
    True
    """

    def __init__(self, splits: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__({AXIS: -1}, splits, **options)
