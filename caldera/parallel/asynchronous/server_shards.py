"""Which server has which parameters, and how they travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate, pairwise

import numpy as np

from caldera.compiler.lazy import Variable
from caldera.core.tensor.dtype import DType, promote
from caldera.errors import ConfigError


@dataclass(frozen=True, eq=False)
class ServerShard:
    """The parameters of one server, which lie one after the other in its messages.

    - `rank`: where the server is.
    """

    rank: int
    parameters: tuple[Variable, ...]

    @cached_property
    def dtype(self) -> DType:
        """One that holds all of them exactly."""
        return reduce(promote, (each.dtype for each in self.parameters))

    @cached_property
    def size(self) -> int:
        """Their elements."""
        return sum(each.size for each in self.parameters)

    @property
    def nbytes(self) -> int:
        """What they take in a message."""
        return self.size * self.dtype.itemsize

    def parts(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Views of a message, by the names of the parameters and in their shapes."""
        edges = accumulate((each.size for each in self.parameters), initial=0)
        return {
            each.name: flat[begin:end].reshape(each.shape)
            for each, (begin, end) in zip(self.parameters, pairwise(edges), strict=True)
        }

    def packed(self, values: Mapping[Variable, Variable]) -> np.ndarray:
        """The values of the variables that stand for the parameters, as a message."""
        flat = np.empty(self.size, self.dtype)
        for each, part in zip(self.parameters, self.parts(flat).values(), strict=True):
            part[...] = values[each].tensor.numpy()
        return flat


def server_ranks(servers: int, ranks: int) -> list[int]:
    """The ranks of the servers, as far from one another as may be: on several machines if there
    are several.

    >>> from caldera.parallel.asynchronous.server_shards import server_ranks
    >>> server_ranks(1, 4), server_ranks(2, 4), server_ranks(3, 4)
    ([0], [0, 2], [0, 1, 2])
    """
    return [server * ranks // servers for server in range(servers)]


def deal(nbytes: Sequence[int], servers: int) -> list[int]:
    """The server of each parameter: the largest are dealt first, about equally many bytes to each.

    >>> from caldera.parallel.asynchronous.server_shards import deal
    >>> deal([24, 20, 8], servers=2)
    [0, 1, 1]
    """
    loads = [0] * servers
    owner = [0] * len(nbytes)
    for index in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[index] = loads.index(min(loads))
        # At least one, so that parameters without elements are dealt out as well.
        loads[owner[index]] += max(nbytes[index], 1)
    return owner


def deal_parameters(parameters: Sequence[Variable], ranks: Sequence[int]) -> list[ServerShard]:
    """Whole parameters for the servers at these ranks, about equally many bytes for each.

    >>> from caldera import op
    >>> from caldera.parallel.asynchronous.server_shards import deal_parameters
    >>> a, b, c = op.var("a", (6,)), op.var("b", (5,)), op.var("c", (2,))
    >>> [[each.name for each in shard.parameters] for shard in deal_parameters([a, b, c], [0, 2])]
    [['a'], ['b', 'c']]
    """
    if len(parameters) < len(ranks):
        raise ConfigError.build(
            "ParameterServer",
            expected=f"at most {len(parameters)} servers, one a parameter",
            got=f"servers={len(ranks)}",
        )
    owner = deal([each.node.spec.nbytes for each in parameters], len(ranks))
    return [
        ServerShard(rank, tuple(p for i, p in enumerate(parameters) if owner[i] == server))
        for server, rank in enumerate(ranks)
    ]
