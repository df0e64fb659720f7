"""Named arrays that one rank has and all ranks need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from caldera.comm import Communicator
from caldera.core.tensor.dtype import canonical


def broadcast_arrays(
    communicator: Communicator, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The arrays of rank 0, on every rank; what others give is not looked at.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> broadcast_arrays(SingleProcess(), {"w": np.arange(3)})
    {'w': array([0, 1, 2])}
    """
    described = [[name, list(each.shape), each.dtype.name] for name, each in arrays.items()]
    found = {}
    for name, shape, dtype in communicator.bcast_object(described):
        array = np.empty(shape, canonical(dtype))
        if communicator.rank == 0:
            array[...] = arrays[name]
        # As bytes: what an MPI knows of dtypes does not matter.
        communicator.Bcast(array.reshape(-1).view(np.uint8))
        found[name] = array
    return found
