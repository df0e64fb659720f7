"""Synchronous data parallelism: every rank has the whole model and a part of each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Communicator, world
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.plan import Plan
from caldera.compress import redistribute
from caldera.core.graph.ops.collective import Message, next_number
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.parallel.consistency import (
    broadcast_model,
    check_counts,
    check_same_options,
    check_same_setup,
    compile_alike,
)
from caldera.parallel.data.sums import (
    Compression,
    bucketed_sums,
    by_factors,
    described,
    gather_states,
    has_factors,
    in_backward_order,
    joined,
    states_by_rank,
    sum_over_axis,
    virtual_shards_of,
)
from caldera.train.strategy import Gradients, RunSetup, StepProgram, Strategy

BUCKET_BYTES = 4 << 20
"""Large enough that a message's latency does not count, small enough to overlap."""


class DataParallel(Strategy):
    """Every rank has the whole model, computes on its part of each batch, and gets all gradients.

    `batch_size` is that of the whole batch. Gradients are put together in messages of about
    `bucket_bytes`, in the order in which the backward pass finds them, and are exchanged while it
    goes on; with `overlap=False` it is done first. `algorithm` is one of
    `comm.algorithms.ALLREDUCE`. `compression` is an object of `caldera.compress`. With `factors`
    a dense layer's gradient is computed from the inputs and output gradients of all ranks, wherever
    these are less to send than the gradient.

    The parameters are the same on all ranks after every step, to the bit. With `shards` they are
    also the same whatever the number of ranks: the batch is cut into that many parts, each of which
    is computed by itself, and their gradients are added up along a fixed tree.

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
        # Nothing that others send through theirs is ever received here.
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
        # What is ready first is updated first, while the rest is still on its way.
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
