"""Strategies: how ranks share the work of training. `fit(..., parallel=...)` takes one.

    model.fit(data, parallel=parallel.DataParallel(bucket_bytes=1 << 20))

Without `parallel=`, a program that was started by `mpiexec`, `srun` or `caldera run` trains with
`DataParallel()` over all of its processes.

| strategy | equals | while steps run a rank has | a rank sends in a step |
|---|---|---|---|
| `DataParallel()` | one process on the whole batch, but for rounding | everything | 2 S (n-1)/n |
| `DataParallel(shards=k)` | itself on any number of ranks, to the bit | everything | that or more |
| `Sharded(1)` | one process, but for rounding | 1/n of what the optimizer keeps | 2 S (n-1)/n |
| `Sharded(2)` | the same | and 1/n of the gradients | 2 S (n-1)/n |
| `Sharded(3)` | the same | and 1/n of the parameters | 3 S (n-1)/n |
| `PipelineParallel()` | one process, but for rounding | its stage: parameters and state | 2 A |

S is the bytes of all parameters, n the number of ranks, A those of what crosses a cut for
the whole batch. In all of them `batch_size` is that of the
whole batch, of which each rank reads its own samples and no others; batch normalisation is over all
of it, and random numbers do not depend on how it is split. Parameters are the same on all ranks, to
the bit. Losses, metrics and the history are those of all ranks, and a checkpoint can be resumed on
any number of them, with any of these strategies.
"""

from __future__ import annotations

from caldera.parallel.data_parallel import DataParallel
from caldera.parallel.pipeline_parallel import PipelineParallel
from caldera.parallel.sharded import Sharded

__all__ = ["DataParallel", "PipelineParallel", "Sharded"]
