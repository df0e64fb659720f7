"""One strategy of each family, for what all of them have to do."""

from __future__ import annotations

from collections.abc import Callable

from caldera import compress, parallel
from caldera.comm import Communicator
from caldera.train.strategy import Strategy

FAMILIES: dict[str, Callable[[Communicator], Strategy]] = {
    "data": lambda comm: parallel.DataParallel(communicator=comm),
    "compressed": lambda c: parallel.DataParallel(
        compression=compress.TopK(0.1, bits=4), communicator=c
    ),
    "sharded": lambda comm: parallel.Sharded(3, communicator=comm),
    "layers": lambda comm: parallel.TensorParallel(least=1, communicator=comm),
    "pipeline": lambda comm: parallel.PipelineParallel(communicator=comm),
    "server": lambda comm: parallel.ParameterServer(communicator=comm),
    "stale": lambda c: parallel.ParameterServer(mode="stale", bound=1, communicator=c),
    "asynchronous": lambda c: parallel.ParameterServer(mode="asynchronous", communicator=c),
    "hogwild": lambda comm: parallel.Hogwild(communicator=comm),
    "local": lambda comm: parallel.LocalSGD(every=2, communicator=comm),
    "elastic": lambda comm: parallel.ElasticAveraging(communicator=comm),
    "gossip": lambda comm: parallel.Gossip("random pairs", communicator=comm),
    "ensemble": lambda comm: parallel.Ensemble(communicator=comm),
}
EQUAL = ("data", "sharded", "layers", "pipeline", "server")
"""Those whose result is that of one process."""
