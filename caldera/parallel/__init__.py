"""Strategies: how ranks share the work of training. `fit(..., parallel=...)` takes one.

    model.fit(data, parallel=parallel.DataParallel(bucket_bytes=1 << 20))

Without `parallel=`, a program that was started by `mpiexec`, `srun` or `caldera run` trains with
`DataParallel()` over all of its processes.

| strategy | equals | while steps run a rank has | a rank sends in a step |
|---|---|---|---|
| `DataParallel()` | one process on the whole batch, but for rounding | everything | 2 S (n-1)/n |
| `DataParallel(factors=True)` | the same | everything | less, where batches are small |
| `DataParallel(shards=k)` | itself on any number of ranks, to the bit | everything | that or more |
| `Sharded(1)` | one process, but for rounding | 1/n of what the optimizer keeps | 2 S (n-1)/n |
| `Sharded(2)` | the same | and 1/n of the gradients | 2 S (n-1)/n |
| `Sharded(3)` | the same | and 1/n of the parameters | 3 S (n-1)/n |
| `ParameterServer()` | the same | everything | S |
| `ParameterServer(mode="stale", bound=b)` | that, if b = 0 | the same | S |
| `ParameterServer(mode="asynchronous")` | itself alone | the same | S |
| `Hogwild()` | itself alone | one copy of everything, shared | 0 |

S is the bytes of all parameters, n the number of ranks. A server sends S of its parameters to each
other rank in a step as well, if it is the only one. In all of them `batch_size` is that of the
whole batch, of which each rank reads its own samples and no others, and random numbers do not
depend on how it is split. Losses, metrics and the history are those of all ranks, and a checkpoint
can be resumed on any number of them, with any of these strategies.

The last three go at their own pace: between the ends of epochs each rank has parameters of its own
moment (with `Hogwild`, all have the same at every moment), and batch normalisation is refused. In
all others batch normalisation is over the whole batch, and parameters are the same on all ranks
after every step, to the bit.
"""

from __future__ import annotations

from caldera.parallel.data_parallel import DataParallel
from caldera.parallel.hogwild import Hogwild
from caldera.parallel.parameter_server import ParameterServer
from caldera.parallel.sharded import Sharded

__all__ = ["DataParallel", "Hogwild", "ParameterServer", "Sharded"]
