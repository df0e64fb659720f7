"""Synchronous data parallelism, plain and with sharded parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Communicator, world
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.plan import Plan
from caldera.compress import redistribute
from caldera.core.graph import Node, topological
from caldera.core.graph.ops.collective import (
    Message,
    all_gather_flat,
    next_number,
    reduce_scatter_flat,
)
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.optim.sharding import Sharding
from caldera.parallel.consistency import (
    broadcast_model,
    check_counts,
    check_same_options,
    check_same_setup,
    compile_alike,
)
from caldera.parallel.data.sums import (
    Compression,
    bucket_indices,
    bucketed_sums,
    buckets,
    by_factors,
    described,
    gather_states,
    has_factors,
    in_backward_order,
    joined,
    owned,
    states_by_rank,
    sum_over_axis,
    virtual_shards_of,
)
from caldera.parallel.distributed_variables import FlatLayout, ParameterShards
from caldera.train.strategy import Gradients, RunSetup, StepProgram, Strategy, VariableView

BUCKET_BYTES = 4 << 20
"""Default bytes of a gradient message.

This is large enough to hide a message's latency, and small enough to overlap with the backward
pass.
"""


class DataParallel(Strategy):
    """Every rank has the whole model, computes on its share of each batch, and sums gradients.

    `batch_size` is the size of the whole batch. Gradients are combined into messages in the order
    of the backward pass. The parameters are the same on all ranks after every step, to the bit.

    Args:
        bucket_bytes: Size of a message.
        algorithm: "auto" measures; or one of `comm.algorithms.ALLREDUCE`.
        overlap: True to exchange during the backward pass, False to exchange after it.
        compression: Object of `caldera.compress`.
        factors: True to compute a dense layer's gradient from the inputs and output gradients of
            all ranks, where these are smaller than the gradient.
        shards: Number of parts of a batch, computed separately and added along a fixed tree, for
            the same parameters on any number of ranks.
        communicator: Communicator of the ranks; by default the world.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", batch_size=5)
    >>> models = [model() for _ in range(3)]
    >>> def work(comm):
    ...     strategy = parallel.DataParallel(communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(3, work)
    >>> losses[0] == losses[1] == losses[2]
    True
    >>> np.allclose(losses[0], model().fit((x, 2 * x), verbose=0)["loss"])
    True
    """

    replicas_are_equal = True

    def __init__(
        self,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str = "auto",
        overlap: bool = True,
        compression: Compression | None = None,
        factors: bool = False,
        shards: int | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        check_counts(type(self).__name__, bucket_bytes=bucket_bytes, shards=shards)
        given = world() if communicator is None else communicator
        if compression is not None and not isinstance(compression, Compression):
            raise ConfigError.build(
                "DataParallel",
                expected="an object as compression",
                got=repr(compression),
                hint="make one of caldera.compress, as in compression=compress.TopK(0.01)",
            )
        if compression is not None and compression.mean:
            raise ConfigError.build(
                "DataParallel",
                expected="a compression that takes sums",
                got=repr(compression),
                hint="losses are divided by the samples of all ranks: make it with mean=False",
            )
        plain = compression is None and not factors
        if shards is not None and (shards < given.size or not plain):
            raise ConfigError.build(
                "DataParallel",
                expected=f"at least one shard for each of {given.size} ranks, and whole gradients",
                got=f"shards={shards}, compression={compression}, factors={factors}",
            )
        check_same_options(
            given,
            self,
            bucket_bytes=bucket_bytes,
            algorithm=algorithm,
            overlap=overlap,
            compression=described(compression),
            factors=factors,
            shards=shards,
        )
        # Duplicates: messages of the caller's communicator never arrive here.
        self.communicator, self.plan_communicator = given.Dup(), given.Dup()
        self.plan_communicator.algorithm = algorithm
        self.bucket_bytes = bucket_bytes
        self.overlap = overlap
        self.compression = compression
        self.factors = factors
        self.shards = shards
        self.batch_parts = shards or 0

    @property
    def is_distributed(self) -> bool:
        return self.communicator.size > 1 or self.shards is not None

    # --- graphs

    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        return sum_over_axis(values, "data") if self.is_distributed else list(values)

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        order = in_backward_order(loss, parameters)
        found = op.grad(loss, list(parameters), unused="zero")
        exchanged: dict[int, Expr] = dict(enumerate(found))
        if self.is_distributed:
            factored = [i for i in order if self.factors and has_factors(found[i].node, share)]
            exchanged |= {index: self._by_factors(found[index], share) for index in factored}
            exchanged |= bucketed_sums(
                found,
                [index for index in order if index not in factored],
                self.bucket_bytes,
                now=not self.overlap,
                exchange=self.compression,
                names=[each.name for each in parameters],
            )
        # Updates follow the order of arrival, while later gradients are still being exchanged.
        return Gradients([parameters[index] for index in order], [exchanged[i] for i in order])

    def _by_factors(self, gradient: Expr, share: Share) -> Expr:
        message = Message(
            "gather", "data", next_number(), ranks=self.communicator.size, now=not self.overlap
        )
        return Expr(by_factors(gradient.node, share, message))

    def parts(self, share: Share) -> list[Share]:
        if self.shards is None:
            return [share]
        return virtual_shards_of(share, self.shards, self.communicator.rank, self.communicator.size)

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        if self.shards is None:
            return super().program(parts)
        programs = [part.assignments() for part in parts]
        return joined(programs, self.shards, self.communicator.rank, self.communicator.size)

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        return compile_alike(self.communicator, make)

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        check_same_setup(self.communicator, given)

    def begin(self, setup: RunSetup) -> None:
        if self.compression is not None:
            self.compression = owned(self.compression, setup.owner)
        broadcast_model(self.communicator, setup.model, setup.optimizer)

    # --- checkpoints

    def saved(self) -> dict[str, np.ndarray]:
        if self.compression is None:
            return {}
        return gather_states(self.communicator, self.compression.state())

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        saved = states_by_rank(arrays)
        if self.compression is not None and saved:
            states = redistribute(saved, self.communicator.size)
            self.compression.restore(states[self.communicator.rank])


_NO_LIMIT = sys.maxsize


def gather_buckets(
    nbytes: Sequence[int], dtypes: Sequence[str], bucket_bytes: int
) -> list[list[int]]:
    """Return groups of parameters to gather together, in the order of the forward pass.

    Group sizes are in reverse order compared with gradients: the first group should arrive early.

    >>> from caldera.parallel.data.data_parallel import gather_buckets
    >>> gather_buckets([40] * 5, ["float32"] * 5, bucket_bytes=80)
    [[0], [2, 1], [4, 3]]
    """
    return bucket_indices(nbytes, dtypes, range(len(nbytes))[::-1], bucket_bytes)[::-1]


class Sharded(DataParallel):
    """Each rank stores and updates its part of every parameter.

    A step gathers the parameters at the start of its forward pass, each before the layer that needs
    it, and sends each part of the gradients to the rank that owns it. Results equal `DataParallel`.
    Between epochs, and in checkpoints, values are as in one process.

    Args:
        stage: Values that are partitioned while steps run: optimizer state (1), also gradients (2),
            also parameters (3), which are then gathered around the layer that needs them. Stages 1
            and 2 send the bytes of `DataParallel`, stage 3 one and a half times as many.
        bucket_bytes: Size of a message.
        overlap: True to exchange while layers compute.
        communicator: Communicator of the ranks; by default the world.

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
        """Return the roots rebuilt with parameters that are gathered from their parts.

        Nodes of the forward pass share one gather. In stage 3 the remaining nodes gather again.
        """
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
        """Return the gathered value of each parameter, by the node that replaces it."""
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
        self._shards.shard()

    def unshard(self) -> None:
        self._shards.unshard()

    def end(self) -> None:
        self._shards.end()
        self._parameters = []

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        return self._shards.views(variables)
