"""Data parallelism in which each rank updates its part of the parameters."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import (
    Message,
    all_gather_flat,
    next_number,
    reduce_scatter_flat,
)
from caldera.core.graph.program import topological
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.optim.sharding import Sharding
from caldera.parallel.data.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.data.sums import bucket_indices, buckets, in_backward_order
from caldera.parallel.distributed_variables import FlatLayout, ParameterShards
from caldera.train.strategy import Gradients, RunSetup, StepProgram, VariableView

_NO_LIMIT = sys.maxsize


def gather_buckets(
    nbytes: Sequence[int], dtypes: Sequence[str], bucket_bytes: int
) -> list[list[int]]:
    """Which parameters are gathered together, in the order in which a forward pass needs them.

    The other way round than gradients: who waits for the first has nothing to do either.

    >>> from caldera.parallel.data.sharded import gather_buckets
    >>> gather_buckets([40] * 5, ["float32"] * 5, bucket_bytes=80)
    [[0], [2, 1], [4, 3]]
    """
    last_first = range(len(nbytes))[::-1]
    return bucket_indices(nbytes, dtypes, last_first, bucket_bytes)[::-1]


class Sharded(DataParallel):
    """Each rank keeps and updates its part of every parameter.

    A step gathers the parameters while its forward pass begins, each before the layer that needs
    it, and sends each part of the gradients to the rank whose part it is. `stage` says what a rank
    has only a part of while steps run: of what the optimizer keeps (1), also of the gradients (2),
    also of the parameters (3), which are then gathered once more for the backward pass and take
    memory only around the layer that needs them. Stages 1 and 2 move as many bytes as
    `DataParallel`, stage 3 half as many again.

    The numbers are those of `DataParallel`. Between epochs, and for checkpoints, everything is as
    one process would have it.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", batch_size=5)
    >>> models = [model() for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.Sharded(stage=2, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(2, work)
    >>> np.allclose(losses[0], model().fit((x, 2 * x), verbose=0)["loss"])
    True
    """

    replicas_are_equal = False

    def __init__(
        self,
        stage: int = 1,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        communicator: Communicator | None = None,
    ) -> None:
        if stage not in (1, 2, 3):
            raise ConfigError.build("Sharded", expected="stage 1, 2 or 3", got=repr(stage))
        super().__init__(bucket_bytes=bucket_bytes, overlap=overlap, communicator=communicator)
        self.stage = stage
        self._shards = ParameterShards(self.communicator, release=stage == 3)
        self._parameters: list[Variable] = []
        self._is_sharded = False

    # --- graphs

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        if not self.is_distributed:
            return super().gradients(loss, parameters, share)
        order = in_backward_order(loss, parameters)
        values = op.grad(loss, list(parameters), unused="zero")
        found: dict[int, Expr] = {}
        for bucket in buckets(values, order, self.bucket_bytes):
            message = self._message("scatter", ahead=_NO_LIMIT if self.stage == 1 else 1)
            parts = reduce_scatter_flat([values[index].node for index in bucket], message)
            found |= {index: Expr(part) for index, part in zip(bucket, parts, strict=True)}
        return Gradients(
            [self._shards.part(parameters[index]) for index in order],
            [found[index] for index in order],
            Sharding(self._shards.wholes),
        )

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        (part,) = parts
        assignments = list(part.assignments())
        # Evaluation reads the whole model: it happens between epochs.
        if part.loss is None or part.gradients is None or part.gradients.sharding is None:
            return assignments
        forward = set(topological([part.loss.node]))
        return [Expr(node) for node in self._gathering([e.node for e in assignments], forward)]

    def _gathering(self, roots: Sequence[Node], forward: Collection[Node]) -> list[Node]:
        """The program over parameters that are gathered from their parts, for the nodes of the
        forward pass and, in stage 3, once more for others."""
        ahead = _NO_LIMIT if self.stage < 3 else 1
        first = self._gathered(ahead)
        second = first if self.stage < 3 else self._gathered(ahead)
        new: dict[Node, Node] = {}
        for node in topological(roots):
            there = first if node in forward else second
            inputs = tuple(there.get(given, new[given]) for given in node.inputs)
            new[node] = node.op.rebuild(node, inputs)
        return [new[root] for root in roots]

    def _gathered(self, ahead: int) -> dict[Node, Node]:
        """The whole of each parameter, by the node that stands for it."""
        wholes = self._parameters
        found: dict[Node, Node] = {}
        sizes = [each.node.spec.nbytes for each in wholes]
        dtypes = [each.dtype.name for each in wholes]
        for bucket in gather_buckets(sizes, dtypes, self.bucket_bytes):
            chosen = [wholes[index] for index in bucket]
            parts = [self._shards.part(each).node for each in chosen]
            message = self._message("gather", ahead)
            values = all_gather_flat(parts, [each.shape for each in chosen], message)
            found |= dict(zip((each.node for each in chosen), values, strict=True))
        return found

    def _message(self, kind: str, ahead: int) -> Message:
        ranks = self.communicator.size
        return Message(kind, "data", next_number(), ranks, now=not self.overlap, ahead=ahead)

    # --- a run

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        self._parameters = setup.model.trainable() if self.is_distributed else []
        for parameter in self._parameters:
            layout = FlatLayout(parameter.shape, self.communicator.size)
            self._shards.add(parameter, layout, setup.optimizer)

    def shard(self) -> None:
        self._is_sharded = True
        self._shards.shard()

    def unshard(self) -> None:
        self._is_sharded = False
        self._shards.unshard()

    def end(self) -> None:
        self._shards.end()
        self._parameters = []

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        found = self._shards.views({}, is_sharded=self._is_sharded)
        return {name: found.get(each, each) for name, each in variables.items()}
