"""Weights that are numbers of a format of few bits after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.compress import LowPrecisionWeights
from caldera.train.callbacks import Callback

if TYPE_CHECKING:
    from caldera.train.run import Run


class RoundWeights(Callback):
    """Rounds all weights by chance to what `dtype` can hold, after every step.

    Then no bit is lost where they are stored or sent in that format (`low.store`,
    `low.broadcast`; see `caldera.compress.LowPrecisionWeights`). While a plan runs they lie in the
    model's own dtype. All ranks of data-parallel training round alike.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", batch_size=4)
    >>> x = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
    >>> _ = model.fit((x, x[:, :1]), callbacks=[cd.RoundWeights("bfloat16")], verbose=0)
    >>> weight = model.parameters()[0].numpy()
    >>> bool((weight.view(np.uint32) & 0xFFFF == 0).all())
    True
    """

    def __init__(self, dtype: str = "bfloat16", seed: int = 0) -> None:
        self.low = LowPrecisionWeights(dtype, seed)

    def batch_ends(self, run: Run) -> None:
        for parameter in run.model.trainable():
            weights = np.array(parameter.numpy(), np.float32)
            self.low.round(parameter.name, weights)
            parameter.assign(weights.astype(parameter.dtype))

    def arrays(self) -> dict[str, np.ndarray]:
        return self.low.state()

    def take_back(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.low.restore(arrays)
