"""Parameter servers: workers send gradients and get parameters, in step or at their own pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from caldera import op
from caldera.comm import Communicator, Request, world
from caldera.compiler.lazy import Expr, Variable
from caldera.compress import Compressor, redistribute
from caldera.errors import CommError, ConfigError
from caldera.optim import Optimizer
from caldera.parallel.asynchronous.server import (
    AsynchronousStrategy,
    ServerOptimizer,
    ServerThread,
    optimizer_assignments,
    owners,
)
from caldera.parallel.asynchronous.staleness import MOMENTUM
from caldera.parallel.asynchronous.transport import (
    BARRIER,
    LEAVE,
    PUSH,
    Connection,
    Push,
    RemoteConnection,
    Reply,
    ServerEndpoint,
    ServerShard,
    deal_parameters,
    push_codec,
    replies,
    server_ranks,
)
from caldera.parallel.consistency import check_choice, check_counts, check_same_options
from caldera.parallel.data.sums import described, gather_states, states_by_rank
from caldera.parallel.distributed_variables import OwnedVariable
from caldera.train.strategy import NO_VOTES, Gradients, RunSetup, VariableView

MODES = ("synchronous", "asynchronous", "stale")


@dataclass
class ServerRecord:
    """Statistics of workers and servers, summed over all ranks.

    - `sent`: gradients that workers sent to each server.
    - `applied`: updates that each server applied.
    - `gaps`: number of gradients by staleness, the number of updates that the parameters had
      missed; each server counts for its own parameters.
    """

    sent: int = 0
    applied: int = 0
    gaps: Counter[int] = field(default_factory=Counter)


class ParameterServer(AsynchronousStrategy):
    """Parameter servers: some ranks store the parameters and run the optimizer for all ranks.

    Every rank is a worker. `servers` ranks also serve a part of the parameters each, on a separate
    thread. `batch_size` is the size of the whole batch. In each step, a worker sends the gradient
    of its share to the servers and receives their parameters.

    - "synchronous": an update uses the gradients of all workers. It equals one process.
    - "stale": the same updates, but a worker may start a step while its parameters lack up to
      `bound` updates. `bound=0` equals "synchronous".
    - "asynchronous": every gradient is a separate update, applied on arrival: a step of one process
      on `batch_size / workers` samples, from parameters that may be older.

    Stale gradients act like momentum (`implicit_momentum`). If it is large compared with the
    optimizer's momentum, a warning reports it after the first epoch. With `momentum="corrected"`
    servers reduce the optimizer's momentum by the momentum of staleness: the expected one in the
    first epoch, then the one measured in the previous epoch.

    `compression` is a compressor of `caldera.compress` for pushed gradients; parameters are sent
    back exactly. `record` contains the statistics. `channels` are the communicators of the servers,
    which count bytes.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> models = [cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse") for _ in range(3)]
    >>> def work(comm):
    ...     strategy = parallel.ParameterServer(mode="stale", bound=2, communicator=comm)
    ...     models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0, batch_size=6)
    ...     return strategy.record.applied, max(strategy.record.gaps) <= 2
    >>> run_virtual_ranks(3, work)
    [(2, True), (2, True), (2, True)]
    """

    def __init__(
        self,
        servers: int = 1,
        *,
        mode: str = "synchronous",
        bound: int | None = None,
        momentum: str = "given",
        compression: Compressor | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        _check(mode, bound)
        check_choice("ParameterServer", "momentum", momentum, MOMENTUM)
        check_counts("ParameterServer", servers=servers)
        given = world() if communicator is None else communicator
        check_same_options(
            given,
            self,
            servers=servers,
            mode=mode,
            bound=bound,
            momentum=momentum,
            compression=described(compression),
        )
        # With a bound of 0 no worker is ever ahead: plans can talk, and norms see the whole batch.
        in_step = mode == "synchronous" or bound == 0
        super().__init__(given, momentum, lockstep=in_step, bound=bound)
        everyone = self.communicator
        if servers > everyone.size:
            raise ConfigError.build(
                "ParameterServer",
                expected=f"from 1 to {everyone.size} servers, one a rank",
                got=f"servers={servers}",
            )
        if self.has_others and not everyone.many_threads:
            raise CommError.build(
                "ParameterServer",
                expected="an MPI that several threads may call concurrently",
                got=everyone.describe().splitlines()[0],
                hint="servers answer while their ranks compute; take parallel.DataParallel",
            )
        self.mode = mode
        self.bound = {"synchronous": 0, "stale": bound, "asynchronous": None}[mode]
        self.record = ServerRecord()
        self.channels = [everyone.Dup() for _ in range(servers)]
        self._server_ranks = server_ranks(servers, everyone.size)
        self._code = None if compression is None else push_codec(compression, everyone.rank)
        self._shards: list[ServerShard] = []
        self._leaving: list[Variable] = []
        self._note: Variable | None = None
        self._connections: list[Connection] = []
        self._server: ServerThread | None = None
        self._server_step: ServerOptimizer | None = None
        self._serving: Request | None = None
        self._optimizer: Optimizer | None = None
        self._has_scale = False
        self._number = 0
        self._sent = 0
        self._versions: list[int] = []

    # --- graphs

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Gradients, ok: Expr, weight: Expr
    ) -> list[Expr]:
        if not self.has_others:
            return super().apply_gradients(optimizer, gradients, ok, weight)
        assert self._note is not None
        self._correction.check_unchanged(optimizer)
        found = dict(zip(gradients.variables, gradients.values, strict=True))
        words = [op.reshape(op.cast(each, "float64"), (1,)) for each in (ok, weight)]
        updates = [op.assign(self._note, op.concat(words))]
        for shard, leaving in zip(self._shards, self._leaving, strict=True):
            flat = [
                op.reshape(op.cast(found[each], shard.dtype), (each.size,))
                for each in shard.parameters
            ]
            updates.append(op.assign(leaving, op.concat(flat)))
        return updates

    # --- a run

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        self._has_scale = setup.precision == "float16"
        if not self.has_others:
            return
        everyone, device, optimizer = self.communicator, setup.device, setup.optimizer
        self._optimizer = optimizer
        self._shards = deal_parameters(setup.model.trainable(), self._server_ranks)
        self._note = op.var("ok and weight", (2,), dtype="float64", device=device)
        self._leaving = [
            op.var("gradient", (shard.size,), dtype=shard.dtype, device=device)
            for shard in self._shards
        ]
        if self._code is not None:
            self._code.begin(self._shards)
        optimizer_assignments(optimizer, self._shards)
        self.record, self._connections, self._server = ServerRecord(), [], None
        for number, (shard, channel) in enumerate(zip(self._shards, self.channels, strict=True)):
            if shard.rank == everyone.rank:
                rule = self._correction.corrected(optimizer)
                step = ServerOptimizer(rule, self._shards, shard)
                endpoint = ServerEndpoint(channel)
                self._server_step, self._server = (
                    step,
                    ServerThread(
                        shard,
                        endpoint,
                        everyone.size,
                        step.update,
                        step.current,
                        bound=self.bound,
                        means=not self.lockstep,
                        consensus=number == 0 and not self.lockstep,
                        decoded=None if self._code is None else self._code.decoded,
                    ),
                )
                self._connections.append(endpoint.local_connection())
            else:
                self._connections.append(
                    RemoteConnection(channel, shard.rank, shard.size, shard.dtype)
                )

    def shard(self) -> None:
        super().shard()
        if not self.has_others:
            return
        self._number, self._sent, self._versions = 0, 0, [0] * len(self._shards)
        if self._server is not None and self._server_step is not None:
            self._server_step.take_over()
            self._correct(self._server_step)
            self._serving = self._server.start()

    def _correct(self, step: ServerOptimizer) -> None:
        """Give a server the momentum that the last epoch's staleness leaves."""
        assert self._optimizer is not None
        rule = self._correction.corrected(self._optimizer)
        if getattr(rule, "momentum", 0.0) != getattr(step.optimizer, "momentum", 0.0):
            step.use(rule)

    def after_step(self, votes: Sequence[float]) -> Sequence[float] | None:
        if not self.has_others:
            return None
        assert self._note is not None
        ok, weight = self._note.numpy().tolist()
        found = self._asked(PUSH, ok=bool(ok), weight=weight, votes=votes)
        self._sent += bool(ok and weight > 0)
        self._number += 1
        if ok or self.lockstep or self._has_scale:
            # The values that led to a non-finite loss are kept for diagnosis. With loss scaling,
            # however, gradients may overflow occasionally.
            self._take(found)
        return None if self.lockstep else found[0].tally

    def unshard(self) -> None:
        if self.has_others and self._is_stepping:
            self._take(self._asked(LEAVE))
            if self._serving is not None:
                self._serving.wait()
            self._put_record_together()
        super().unshard()

    def end(self) -> None:
        if self._optimizer is None:
            return
        for variable, rank in owners(self._optimizer, self._shards).items():
            variable.assign(OwnedVariable(variable, self.communicator, rank).numpy())
        self._optimizer = None

    def _asked(
        self,
        kind: int,
        ok: bool = True,
        weight: float = 0.0,
        votes: Sequence[float] = NO_VOTES,
    ) -> list[Reply]:
        """Tell all servers something, and wait for their answers."""
        for index, (shard, connection) in enumerate(
            zip(self._shards, self._connections, strict=True)
        ):
            # The server would reject it, and sent gradients are not sent again.
            counts = kind == PUSH and ok and weight > 0
            payload = self._payload(index, shard) if counts else None
            version = self._versions[index]
            connection.send(
                Push(
                    kind, self._number, version, ok, weight, votes, payload, self.communicator.rank
                )
            )
        if kind == PUSH and self._code is not None:
            self._code.step_taken()
        # A server that has failed never answers; its error is the cause.
        return replies(self._connections, lambda: self._serving is None or self._serving.test())

    def _payload(self, index: int, shard: ServerShard) -> np.ndarray:
        flat = self._leaving[index].tensor.numpy()
        if self._code is None:
            return np.ascontiguousarray(flat).view(np.uint8)
        return self._code.encoded(shard, flat)

    def _take(self, found: Sequence[Reply]) -> None:
        for index, (shard, reply) in enumerate(zip(self._shards, found, strict=True)):
            self._versions[index] = reply.version
            parts = shard.parts(reply.parameters)
            for each in shard.parameters:
                each.assign(parts[each.name])

    def _put_record_together(self) -> None:
        """Combine the statistics of all ranks on every rank."""
        applied = 0 if self._server is None else self._server.applied
        gaps = {} if self._server is None else dict(self._server.gaps)
        found = self.communicator.gather_objects([self._sent, applied, list(gaps.items())])
        self.record.sent += sum(sent for sent, _, _ in found)
        self.record.applied += found[self._server_ranks[0]][1]
        epoch = Counter[int]()
        for _, _, some in found:
            for gap, count in some:
                epoch[gap] += count
        self.record.gaps += epoch
        if self._optimizer is not None and epoch and not self.lockstep:
            age = sum(gap * count for gap, count in epoch.items()) / epoch.total()
            self._correction.take(age, self._optimizer, warns=self.communicator.rank == 0)

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        found = super().checkpoint_views(variables)
        if self._optimizer is None:
            return found
        if self._is_stepping:
            # All workers are here, and servers have taken everything they sent.
            self._take(self._asked(BARRIER))
        held = owners(self._optimizer, self._shards)
        return {
            name: OwnedVariable(each, self.communicator, held[each], held_by_all=True)
            if isinstance(each, Variable) and each in held
            else each
            for name, each in found.items()
        }

    def saved(self) -> dict[str, np.ndarray]:
        return {} if self._code is None else gather_states(self.communicator, self._code.state())

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        if self._code is not None and arrays:
            states = redistribute(states_by_rank(arrays), self.communicator.size)
            self._code.restore(states[self.communicator.rank])


def _check(mode: str, bound: int | None) -> None:
    if mode not in MODES:
        raise ConfigError.build(
            "ParameterServer", expected="mode= " + ", ".join(map(repr, MODES)), got=repr(mode)
        )
    is_bound = isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0
    if not is_bound if mode == "stale" else bound is not None:
        raise ConfigError.build(
            "ParameterServer",
            expected="bound= 0 or more with mode='stale', and none with others",
            got=f"mode={mode!r}, bound={bound!r}",
        )
