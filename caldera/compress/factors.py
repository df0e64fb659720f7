"""Factors of a dense layer's gradient instead of the gradient, where they are smaller.

The weight's gradient is inputs.T @ output_gradient, a sum over samples. The sum over ranks is the
same product over the samples of all ranks: it is enough that every rank has all inputs and output
gradients, which for small batches and wide layers are much less than the weights. Nothing is lost.
"""

from __future__ import annotations

import numpy as np

from caldera.comm import Communicator
from caldera.errors import ShapeError


def factors_are_smaller(samples: int, inputs: int, outputs: int, ranks: int) -> bool:
    """Whether a rank sends fewer bytes with factors (`samples` are those of all ranks together).

    A rank sends its factors to all others, (n - 1) / n * samples * (inputs + outputs) values; a
    ring sends 2 (n - 1) / n * inputs * outputs.

    >>> from caldera import compress
    >>> compress.factors_are_smaller(100, 784, 528, ranks=8)
    True
    >>> compress.factors_are_smaller(800, 784, 528, ranks=8)
    False
    """
    return ranks > 1 and samples * (inputs + outputs) < 2 * inputs * outputs


def sum_by_factors(
    inputs: np.ndarray, output_gradient: np.ndarray, communicator: Communicator
) -> np.ndarray:
    """The sum over ranks of inputs.T @ output_gradient, by gathering both on every rank.

    Ranks may have different numbers of samples, also none.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     x = np.full((1, 3), communicator.rank + 1.0)
    ...     return compress.sum_by_factors(x, np.ones((1, 2)), communicator)
    >>> comm.run_virtual_ranks(2, work)[0]
    array([[3., 3.],
           [3., 3.],
           [3., 3.]])
    """
    if inputs.ndim != 2 or output_gradient.ndim != 2 or len(inputs) != len(output_gradient):
        raise ShapeError.build(
            "sum_by_factors", expected="two matrices with a row for each sample",
            got=f"{inputs.shape} and {output_gradient.shape}",
        )  # fmt: skip
    columns = inputs.shape[1] + output_gradient.shape[1]
    rows = np.empty(communicator.size, np.int64)
    communicator.Allgather(np.array([len(inputs)], np.int64), rows)
    together = np.ascontiguousarray(np.concatenate([inputs, output_gradient], axis=1))
    gathered = np.empty((int(rows.sum()), columns), together.dtype)
    communicator.Allgather(together, gathered, (rows * columns).tolist())
    return gathered[:, : inputs.shape[1]].T @ gathered[:, inputs.shape[1] :]
