"""Hogwild!: processes on one machine update the same parameters without locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator, world
from caldera.comm.shared_memory import SharedMemory
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor import Tensor
from caldera.errors import ConfigError
from caldera.optim import Optimizer
from caldera.parallel.asynchronous.server import (
    AsynchronousStrategy,
    StopConsensus,
    optimizer_assignments,
)
from caldera.parallel.asynchronous.staleness import MOMENTUM
from caldera.parallel.asynchronous.transport import ServerShard
from caldera.parallel.consistency import check_choice, check_same_options
from caldera.train.strategy import Gradients, RunSetup, VariableView


class Hogwild(AsynchronousStrategy):
    """All ranks share one copy of the parameters and update it without synchronisation.

    After Niu and others (2011). Parameters and optimizer state are stored in memory shared by the
    ranks of one machine. Each rank reads them while others write, computes the gradient of its
    share of the batch and takes a step. This equals one process with `batch_size / ranks` samples,
    except that simultaneous updates of an element may lose one update. `updates` is the total
    number of steps of all ranks.

    Steps of other ranks during a computation act like momentum (`implicit_momentum`). If it is
    large compared with the optimizer's momentum, a warning reports it after the first epoch. With
    `momentum="corrected"` the optimizer's momentum is reduced by the expected momentum of n ranks,
    1 - 1/n, or by the one measured in the last call of `fit`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork(
    ...         [nn.Input((1,)), nn.Dense(1)], loss="mse", optimizer="sgd", learning_rate=0.1
    ...     )
    >>> models = [model() for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.Hogwild(communicator=comm)
    ...     history = models[comm.rank].fit(
    ...         (x, 2 * x), parallel=strategy, verbose=0, batch_size=8, epochs=20
    ...     )
    ...     return history["loss"][-1] < 1e-2, strategy.updates
    >>> run_virtual_ranks(2, work)
    [(True, 320), (True, 320)]
    """

    def __init__(
        self, *, momentum: str = "given", communicator: Communicator | None = None
    ) -> None:
        check_choice("Hogwild", "momentum", momentum, MOMENTUM)
        given = world() if communicator is None else communicator
        check_same_options(given, self, momentum=momentum)
        super().__init__(given, momentum, lockstep=False)
        everyone = self.communicator
        if len(set(everyone.nodes)) > 1:
            raise ConfigError.build(
                "Hogwild",
                expected="ranks of a single machine, which can share memory",
                got=f"{everyone.size} ranks on {len(set(everyone.nodes))} machines",
                hint="parallel.ParameterServer(mode='asynchronous') goes over the network",
            )
        self.updates = 0
        self._shared: SharedMemory | None = None
        self._optimizer: Optimizer | None = None
        self._variables: list[Variable] = []
        self._consensus = StopConsensus.of(1)
        self._taken = self._lag = np.zeros((), np.int64)
        self._rule: Optimizer | None = None
        self._known = self._before = 0

    # --- graphs

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Gradients, ok: Expr, weight: Expr
    ) -> list[Expr]:
        if self.has_others:
            self._correction.check_unchanged(optimizer)
        # Who has no samples takes no step.
        ok = ok if self.lockstep else op.logical_and(ok, weight > 0)
        return super().apply_gradients(self._rule or optimizer, gradients, ok, weight)

    # --- a run

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        if not self.has_others:
            return
        parameters, optimizer, device = setup.model.trainable(), setup.optimizer, setup.device
        if not device.is_host or optimizer.accumulate > 1:
            raise ConfigError.build(
                "Hogwild",
                expected="parameters in host memory, and a step for every batch",
                got=f"device {device.name}, accumulate={optimizer.accumulate}",
                hint="parallel.ParameterServer(mode='asynchronous') takes both",
            )
        # This makes the variables that the optimizer keeps.
        optimizer_assignments(optimizer, [ServerShard(0, tuple(parameters))])
        kept = [each for parameter in parameters for each in optimizer.kept_for(parameter)]
        self._optimizer, self.updates = optimizer, 0
        self._rule = self._correction.corrected(optimizer)
        self._variables = [*parameters, *kept]
        wanted = [(each.shape, each.dtype) for each in self._variables]
        whole = np.dtype(np.int64)
        counters = [((StopConsensus.size(self.communicator.size),), whole), *[((), whole)] * 2]
        self._shared = SharedMemory(self.communicator, [*wanted, *counters])
        *arrays, table, self._taken, self._lag = self._shared.arrays  # type: ignore[assignment]
        self._consensus = StopConsensus(table)
        places = iter(arrays)
        # All ranks have the same values, so the order of writes does not matter.
        self._move(lambda value: _put(next(places), value))
        self.communicator.Barrier()

    def shard(self) -> None:
        super().shard()
        if self._optimizer is None:
            return
        self._known = self._before = int(self._optimizer.step.numpy())
        self.communicator.Barrier()
        if self.communicator.rank == 0:
            self._consensus.table[:] = 0
            self._taken[...], self._lag[...] = self._known, 0
        self.communicator.Barrier()

    def after_step(self, votes: Sequence[float]) -> Sequence[float] | None:
        if self._shared is None or self._optimizer is None:
            return None
        # The counter is exact, although updates take no lock.
        with self._shared.alone():
            tally = self._consensus.arrived(self.communicator.rank, votes)
            own = int(self._optimizer.step.numpy()) - self._known
            self._lag += own * (int(self._taken) - self._known)
            self._taken += own
        self._know_steps()
        return tally

    def _know_steps(self) -> None:
        """The optimizer's schedule goes by the steps of all ranks."""
        assert self._optimizer is not None
        self._known = int(self._taken)
        self._optimizer.step.assign(self._known)

    def unshard(self) -> None:
        if self._is_stepping and self._optimizer is not None:
            self._wait_for_all()
            taken = self._known - self._before
            self.updates += taken
            if taken:
                age, rank = int(self._lag) / taken, self.communicator.rank
                self._correction.take(age, self._optimizer, warns=rank == 0)
        super().unshard()

    def _wait_for_all(self) -> None:
        """Wait until no rank writes; from then on all ranks read the same values."""
        self.communicator.Barrier()
        self._know_steps()

    def end(self) -> None:
        if self._optimizer is None:
            return
        self._move(np.array)
        # Others may still be reading.
        self.communicator.Barrier()
        self._optimizer, self._rule, self._shared, self._variables = None, None, None, []

    def _move(self, placed: Callable[[np.ndarray], np.ndarray]) -> None:
        """Keep the values of parameters and of the optimizer somewhere else."""
        for each in self._variables:
            array = placed(each.tensor.numpy())
            each.symbol.move(Tensor.from_numpy(array, name=each.name, copy=False))

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        if self._is_stepping and self._optimizer is not None:
            self._wait_for_all()
        return super().checkpoint_views(variables)


def _put(place: np.ndarray, value: np.ndarray) -> np.ndarray:
    place[...] = value
    return place
