"""Strategies: how ranks share the work of training. `fit(..., parallel=...)` takes one.

    model.fit(data, parallel=parallel.DataParallel(bucket_bytes=1 << 20))

Without `parallel=`, a program that was started by `mpiexec`, `srun` or `caldera run` trains with
`DataParallel()` over all of its processes.

| strategy | equals | while steps run a rank has | a rank sends in a step |
|---|---|---|---|
| `DataParallel()` | one process on the whole batch, but for rounding | everything | 2 S (n-1)/n |
| `DataParallel(factors=True)` | the same | everything | less, where batches are small |
| `DataParallel(shards=k)` | itself on any number of ranks, to the bit | everything | that or more |
| `Sharded(1)` | one process, but for rounding | 1/n of the optimizer state | 2 S (n-1)/n |
| `Sharded(2)` | the same | and 1/n of the gradients | 2 S (n-1)/n |
| `Sharded(3)` | the same | and 1/n of the parameters | 3 S (n-1)/n |
| `TensorParallel()` | the same | 1/n of the layers that are split | activations, each way |
| `Layouts({...})` | the same | its parts of each layer | what layouts make of it |
| `Hybrid({"data": d, "model": n})` | the same | the same | that, and gradients |
| `Hybrid(..., samples="all")` | the same | the same | the same, and features of samples |
| `PipelineParallel()` | the same | its stage's layers | activations, each way |
| `PipelineParallel(data=d, model=n)` | the same | 1/n of those | that, and gradients |

S is the size of all parameters in bytes, n the number of ranks. With all of these strategies
`batch_size` is the size of the whole batch, and each rank reads only its share. Batch normalisation
is over the whole batch, and random numbers do not depend on the split. Parameters are the same on
all ranks, to the bit. Losses, metrics and the history cover all ranks. A checkpoint can be resumed
on any number of ranks, with any of these strategies. In a pipeline, batch normalisation is over a
part of the batch, and every rank reads the samples of its pipeline.

`ParameterServer()` equals one process as well: a rank sends and receives S in a step. With the
following strategies ranks run at their own pace, with the same `batch_size`, losses, metrics and
checkpoints. Parameters are the same on all ranks at the end of an epoch. Batch normalisation is by
rank, and its running statistics are averaged at the end of an epoch:

| strategy | equals | a rank sends in a step |
|---|---|---|
| `ParameterServer(mode="stale", bound=b)` | `ParameterServer()`, if b = 0 | S |
| `ParameterServer(mode="asynchronous")` | itself alone | S |
| `Hogwild()` | itself alone | nothing: all change one copy |

With the last group, ranks take independent steps and exchange data only now and then:

| strategy | equals | a rank sends in an exchange |
|---|---|---|
| `LocalSGD(every=1)` with SGD | `DataParallel()`, but for rounding | 2 (S + state) (n-1)/n |
| `LocalSGD(every=h)` | the mean of n runs of h steps, again and again | the same |
| `LocalSGD(h, momentum=m)` | the same, and SGD with momentum on what means move by | the same |
| `ElasticAveraging(coupling=0)` | n independent runs, to the bit | nothing |
| `ElasticAveraging(coupling=b)` | EASGD with a moving rate of b / n | 2 S (n-1)/n |
| `Gossip("ring")` | `mixing_matrix()` times the models of all ranks | 2 S |
| `Gossip("random pairs")` | the same, another matrix each time | S |
| `Ensemble()` | n runs of one process with other seeds, to the bit | nothing |

An exchange takes place every `every` steps. Between epochs and after the run, every rank has the
combined model: the mean or the centre. Members of an ensemble stay separate, and their predictions
are averaged. Batch normalisation is by rank, and running statistics are averaged. A checkpoint
contains every rank: the same number of ranks continues to the bit, a different number from the
combined model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caldera.base.arguments import imported_later as _imported_later
from caldera.base.foreign_names import answer_foreign as _answer_foreign

if TYPE_CHECKING:
    from caldera.parallel.asynchronous.hogwild import Hogwild
    from caldera.parallel.asynchronous.parameter_server import ParameterServer
    from caldera.parallel.averaging.ensemble import Ensemble
    from caldera.parallel.averaging.gossip import Gossip
    from caldera.parallel.averaging.local_sgd import ElasticAveraging, LocalSGD
    from caldera.parallel.data.data_parallel import DataParallel, Sharded
    from caldera.parallel.pipeline.pipeline_parallel import PipelineParallel
    from caldera.parallel.planner import Proposal, plan
    from caldera.parallel.tensor.tensor_parallel import Hybrid, Layouts, TensorParallel

# Strategies are loaded on first use: a rank needs only one, and loading all would add a third to
# the import time. The planner times training, which needs strategies.
_LATER = {
    "DataParallel": "caldera.parallel.data.data_parallel",
    "ElasticAveraging": "caldera.parallel.averaging.local_sgd",
    "Ensemble": "caldera.parallel.averaging.ensemble",
    "Gossip": "caldera.parallel.averaging.gossip",
    "Hogwild": "caldera.parallel.asynchronous.hogwild",
    "Hybrid": "caldera.parallel.tensor.tensor_parallel",
    "Layouts": "caldera.parallel.tensor.tensor_parallel",
    "LocalSGD": "caldera.parallel.averaging.local_sgd",
    "ParameterServer": "caldera.parallel.asynchronous.parameter_server",
    "PipelineParallel": "caldera.parallel.pipeline.pipeline_parallel",
    "Proposal": "caldera.parallel.planner",
    "Sharded": "caldera.parallel.data.data_parallel",
    "TensorParallel": "caldera.parallel.tensor.tensor_parallel",
    "plan": "caldera.parallel.planner",
}

__all__ = [
    "DataParallel",
    "ElasticAveraging",
    "Ensemble",
    "Gossip",
    "Hogwild",
    "Hybrid",
    "Layouts",
    "LocalSGD",
    "ParameterServer",
    "PipelineParallel",
    "Proposal",
    "Sharded",
    "TensorParallel",
    "plan",
]


_answer_foreign(globals(), _imported_later(globals(), _LATER))


def __dir__() -> list[str]:
    return sorted(__all__)
