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
| `TensorParallel()` | the same | 1/n of the layers that are split | activations, each way |
| `Layouts({...})` | the same | its parts of each layer | what layouts make of it |
| `Hybrid({"data": d, "model": n})` | the same | the same | that, and gradients |
| `Hybrid(..., samples="all")` | the same | the same | the same, and features of samples |
| `PipelineParallel()` | the same | its stage's layers | activations, each way |
| `PipelineParallel(data=d, model=n)` | the same | 1/n of those | that, and gradients |

S is the bytes of all parameters, n the number of ranks. In all of these `batch_size` is that of the
whole batch, of which each rank reads its own samples and no others; batch normalisation is over all
of it, and random numbers do not depend on how it is split. Parameters are the same on all ranks, to
the bit. Losses, metrics and the history are those of all ranks, and a checkpoint can be resumed on
any number of them, with any of these strategies. In a pipeline batch normalisation is over a part
of the batch, and every rank reads the samples of its pipeline.

`ParameterServer()` equals one process as well: a rank sends S in a step, and gets S. These go at
their own pace, with the same `batch_size`, losses, metrics and checkpoints; parameters are the same
on all ranks at the ends of epochs, and batch normalisation is by rank, its running statistics being
averaged there:

| strategy | equals | a rank sends in a step |
|---|---|---|
| `ParameterServer(mode="stale", bound=b)` | `ParameterServer()`, if b = 0 | S |
| `ParameterServer(mode="asynchronous")` | itself alone | S |
| `Hogwild()` | itself alone | nothing: all change one copy |

With those that follow, a rank takes steps of its own, and sends nothing in most of them:

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

An exchange is due every `every` steps. Between epochs and after the run every rank has what all
amount to: the mean, or the centre. Only members of an ensemble stay what they are: their
predictions are averaged. Batch normalisation is by rank, and running statistics are averaged. A
checkpoint holds every rank: as many ranks go on to the bit, others from what all amounted to.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from caldera.base.arguments import guard as _guard
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

# A strategy is loaded when it is first asked for: every rank needs one of them, and all take as
# long as a third of what else it imports. The planner times training, which needs strategies.
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


def _found(name: str) -> Any:
    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    _guard({"__all__": [name], name: found})
    return found


_answer_foreign(globals(), _found)


def __dir__() -> list[str]:
    return sorted(__all__)
