"""Pipeline parallelism: every rank has some layers, and parts of a batch flow through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from caldera.comm import Communicator, Mesh
from caldera.config import settings
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.graph.body import substitute
from caldera.graph.node import Node
from caldera.graph.ops.collective import Message, all_reduce, next_number
from caldera.lazy import Expr, Variable
from caldera.nn.layer import Layer
from caldera.nn.tracing import Context
from caldera.optim import Optimizer
from caldera.optim.sharding import sharded_parameters
from caldera.parallel.consistency import (
    broadcast_values,
    check_neighbours,
    check_same,
    compile_alike,
)
from caldera.parallel.data.buckets import buckets
from caldera.parallel.data.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.options import check_counts
from caldera.parallel.pipeline.batch_sums import (
    MicroBatchTrace,
    early_sums,
    late_sums,
    over_axis,
    stand_in,
    zero,
)
from caldera.parallel.pipeline.mesh import DATA, EVERYONE, MODEL, STAGE, PipelineMesh
from caldera.parallel.pipeline.schedule import SCHEDULES
from caldera.parallel.pipeline.stage_partition import (
    Costs,
    check_starts,
    stage_starts,
    traced_samples,
)
from caldera.parallel.pipeline.stage_profile import unit_seconds
from caldera.parallel.pipeline.stage_program import AXIS, Part, StageProgram
from caldera.parallel.pipeline.stage_update import StageUpdate
from caldera.parallel.pipeline.stage_variables import Owned, let_go, made_whole
from caldera.parallel.tensor.layer_sharding import LEAST
from caldera.parallel.tensor.rank_network import rank_network, rewritten_network
from caldera.parallel.tensor.sharded_layers import ShardedLayers
from caldera.plan.plan import Plan
from caldera.strategy import Strategy, VariableView

if TYPE_CHECKING:
    from caldera.train.model import Model

BALANCES = ("operations", "time")
"""What stages have about as much of as each other."""


class PipelineParallel(Strategy):
    """Each rank has a stage of the model: some of its layers, one after the other.

    A batch is cut into `micro_batches` parts, which flow through the stages; what the parts add to
    the gradients is summed, and a step changes the parameters once. `schedule` is "1f1b" (a stage
    has at most as many parts on their way as there are stages) or "fill-drain" (it has all).

    `stages` is how many there are, cut such that they have about as many operations to do, or the
    names of the layers with which those after the first begin. Without it, all ranks are stages of
    one pipeline. With `balance="time"` rank 0 times the layers first, and stages take about as long
    as each other; a deterministic run counts operations all the same.

    `data=2` makes two pipelines, each of which has its part of every batch. With `model=2` a stage
    is two ranks, which share its layers; `splits` and `least` are those of `Hybrid`. Or give a
    `mesh` with the axes "data", "pipeline" and "model".

    The numbers are those of one process, whatever the parts, but for batch normalisation: its
    statistics are those of a part (over all pipelines), and its running ones go on from part to
    part. While steps run a rank has the parameters of its stage, and what the optimizer keeps for
    them, and no others; between epochs, and for checkpoints, everything is as one process would
    have it. Evaluation is data parallel, for the model is whole then.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     layers = [nn.Input((1,)), nn.Dense(8, activation="tanh"), nn.Dense(1)]
    ...     return cd.NeuralNetwork(layers, loss="mse", batch_size=6)
    >>> models = [model() for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.PipelineParallel(micro_batches=3, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(2, work)
    >>> np.allclose(losses[0], model().fit((x, 2 * x), verbose=0)["loss"])
    True
    """

    def __init__(
        self,
        stages: int | Sequence[str] | None = None,
        *,
        micro_batches: int = 4,
        schedule: str = "1f1b",
        balance: str = "operations",
        data: int | None = None,
        model: int = 1,
        splits: Mapping[str, str] | None = None,
        least: int = LEAST,
        mesh: Mesh | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        check_counts("PipelineParallel", micro_batches=micro_batches, data=data, model=model)
        if schedule not in SCHEDULES or balance not in BALANCES:
            raise ConfigError.build(
                "PipelineParallel",
                expected="schedule " + " or ".join(map(repr, SCHEDULES))
                + ", and balance " + " or ".join(map(repr, BALANCES)),
                got=f"schedule={schedule!r}, balance={balance!r}",
            )  # fmt: skip
        self.mesh = PipelineMesh(stages, data, model, mesh, communicator)
        self.communicator, self.plan_communicator = (
            self.mesh.communicator,
            self.mesh.plan_communicator,
        )
        self.stages, self.stage = self.mesh.shape[AXIS], self.mesh.coordinates[AXIS]
        self.micro_batches = micro_batches
        self.schedule = schedule
        self.balance = balance
        self._samples = 1
        self._wanted = self.stages if stages is None or isinstance(stages, int) else list(stages)
        self.begins_with: list[str] = []
        """The layers with which stages after the first begin, once that has been decided."""
        self._starts: list[int] = []
        self._traces: list[MicroBatchTrace] = []
        self._model: Layer | None = None
        self._optimizer: Optimizer | None = None
        self._layers = ShardedLayers("PipelineParallel", self.mesh.axis(MODEL), splits, least)
        self._stage_of: dict[Variable, int] = {}
        self._evaluating: DataParallel | None = None
        self._is_apart = False

    @property
    def reader(self) -> tuple[int, int]:
        return self.mesh.coordinates[DATA], self.mesh.shape[DATA]

    @property
    def shares_batches(self) -> bool:
        return self.mesh.shape[DATA] > 1

    def evaluating(self) -> Strategy:
        # The model is whole then, and nobody has to wait for others.
        if self._evaluating is None:
            self._evaluating = DataParallel(communicator=self.communicator)
        return self._evaluating

    # --- graphs

    def parts(self, share: Share) -> list[Share]:
        self._traces = []
        # As many on all ranks, so that none waits for another: the largest share decides.
        largest = -(-share.count // self.mesh.shape[DATA])
        count = max(1, min(self.micro_batches, largest))
        ends = [share.samples * k // count for k in range(count + 1)]
        return [
            Share(share.start, share.first + begin, end - begin, share.count, share.size)
            for begin, end in pairwise(ends)
        ]

    def traced(self, written: Context) -> None:
        self._traces.append(MicroBatchTrace(written))

    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        return self._traces[-1].all_reduce(values)

    def gradients(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        now = self._traces[-1]
        now.loss, now.parameters = loss, [self._layers.part(each) for each in parameters]
        now.gradients = [stand_in("gradient", parameter.node) for parameter in now.parameters]
        return list(now.parameters), [Expr(node) for node in now.gradients]

    @contextmanager
    def updating(self) -> Iterator[None]:
        now = self._traces[-1]
        gradients = self._layers.are_parts(now.parameters, now.gradients)
        with sharded_parameters(self._layers.wholes, MODEL, gradients):
            yield

    def written(self, programs: Sequence[Sequence[Expr]]) -> list[Expr]:
        first, roots = self._traces[0], [each.node for each in programs[0]]
        parts = [self._part(writing) for writing in self._traces]
        parameters = [each.node for each in first.parameters]
        program = StageProgram(parts, self._starts, self.stage, parameters)
        self._know(program)
        new = early_sums(
            self._traces, lambda value: value not in parts[0].stages, self.stage == 0,
            lambda values: self._over_ranks(values, now=False),
        )  # fmt: skip
        for part in parts:
            part.new |= new
        program.run(SCHEDULES[self.schedule](self.stage, self.stages, len(parts)))
        new |= late_sums(first, program.totals, new, self._over_ranks)
        new |= self._gradients(program, first)
        assignments, stages = self._update(program, roots, new)
        self._let_go()
        assert program.token is not None
        own = StageUpdate(stages, new, self.stage).run(assignments)
        return [Expr(node) for node in (*own, program.token)]

    def _part(self, writing: MicroBatchTrace) -> Part:
        """What a step wants of a part of the batch, over this rank's parts of parameters."""
        assert writing.loss is not None
        assert self._model is not None
        graph = self._layers.graph()
        (loss,) = graph.written([writing.loss.node])
        if self._layers.ranks > 1:
            # Ranks along "model" compute the same: the loss of the job is the sum of all theirs.
            loss = (Expr(loss) * (1.0 / self._layers.ranks)).node
        writing.values = [graph.written(values) for values in writing.values]
        kept = writing.states()
        states = dict(zip(kept, graph.written(kept.values()), strict=True))
        totals = writing.samples()
        roots = [loss, *totals, *states.values()]
        written = rewritten_network(self._model, writing.context, graph, roots, self._layers.part)
        return Part(written, loss, totals, states)

    def _over_ranks(self, values: list[Node], *, now: bool = True) -> list[Node]:
        if not self.is_distributed:
            return values
        # Ranks along "model" have the same values.
        return over_axis(values, EVERYONE, alike=self._layers.ranks, now=now)

    # --- gradients and updates

    def _know(self, program: StageProgram) -> None:
        """Whose variables are which."""
        assert self._model is not None
        users = program.used_by()
        changed = {node: program.stage_of_state(node) for node in program.parts[0].states}
        parameters = map(self._layers.part, self._model.parameters())
        for variable in [*parameters, *self._model.states()]:
            stages = users.get(variable.node, set())
            if variable.node in changed:
                stages = {changed[variable.node]}
            # One that several stages read, all ranks have.
            if len(stages) == 1 and self.stages > 1:
                (self._stage_of[variable],) = stages

    def _gradients(self, program: StageProgram, first: MicroBatchTrace) -> dict[Node, Node]:
        """What the stand-ins for the gradients of this rank are, summed over all that have some."""
        leaves = dict(zip(first.parameters, first.gradients, strict=True))
        found: dict[Variable, Node] = {}
        # By whether one stage has a parameter, and whether ranks along "model" have parts of it.
        for one_stage, in_parts, axes in (
            (True, True, [DATA]),
            (True, False, [STAGE]),
            (False, True, [DATA, AXIS]),
            (False, False, [EVERYONE]),
        ):
            own = [
                each
                for each in first.parameters
                if self._stage_of.get(each, self.stage) == self.stage
                and (each in self._stage_of) == one_stage
                and (each in self._layers.wholes) == in_parts
            ]
            gradients = [program.gradients.get(each.node) or zero(each.node) for each in own]
            for axis in axes:
                gradients = self._summed(gradients, axis)
            found |= zip(own, gradients, strict=True)
        return {leaves[variable]: slope for variable, slope in found.items()}

    def _summed(self, gradients: Sequence[Node], axis: str) -> list[Node]:
        """Over the ranks along an axis."""
        found = dict(enumerate(gradients))
        if self.plan_communicator.along(axis).size > 1:
            values = [Expr(slope) for slope in gradients]
            for bucket in buckets(values, range(len(values) - 1, -1, -1), BUCKET_BYTES):
                message = Message("sum", axis, next_number())
                found |= zip(
                    bucket, all_reduce([gradients[i] for i in bucket], message), strict=True
                )
        return [found[index] for index in range(len(gradients))]

    def _update(
        self, program: StageProgram, roots: Sequence[Node], new: dict[Node, Node]
    ) -> tuple[list[Node], dict[Node, int]]:
        """The assignments over leaves, and the stage of each leaf that belongs to one."""
        assert self._optimizer is not None
        first = self._traces[0]
        stages = {variable.node: stage for variable, stage in self._owners().items()}
        for variable, leaf in zip(first.parameters, first.gradients, strict=True):
            if variable in self._stage_of:
                stages[leaf] = self._stage_of[variable]
        leaves: dict[Node, Node] = {}
        for state, value in first.states().items():
            leaf = leaves[value] = stand_in("state", value)
            if state in stages:
                stages[leaf] = stages[state]
            if state in program.states:
                new[leaf] = program.states[state]
        return list(substitute(roots, leaves)), stages

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        plan = compile_alike(self.mesh.mates, make)
        check_neighbours(self.mesh.axis(AXIS), plan, AXIS)
        return plan

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        self._samples = traced_samples(
            given["batch_size"], self.mesh.shape[DATA], self.micro_batches, self._layers.ranks
        )
        # The number of threads decides in which order long sums are added up.
        known = {**given, "threads": settings.threads, "micro_batches": self.micro_batches,
                 "schedule": self.schedule, "stages": self._wanted, "balance": self.balance,
                 "mesh": self.mesh.shape,
                 "splits": self._layers.wanted, "least": self._layers.least}  # fmt: skip
        check_same(self.communicator, "fit", [f"{name}={value}" for name, value in known.items()])

    def begin(self, model: Layer, optimizer: Optimizer) -> None:
        kept = optimizer.variables() if optimizer.state else []
        broadcast_values(self.communicator, [*model.parameters(), *model.states(), *kept])
        self._model, self._optimizer = model, optimizer
        self._stage_of = {}
        self._layers.clear()

    def prepare(self, network: Callable[[int], Context]) -> None:
        if self._model is None or self._optimizer is None:
            return
        layers, model = self._layers, cast("Model", self._model)
        traced = network(self._samples)
        found = rank_network(
            model, traced, rank=layers.rank, ranks=layers.ranks, splits=layers.wanted,
            least=layers.least,
        )  # fmt: skip
        costs: Costs | None = None
        # Ranks have parts of different sizes, and clocks of their own: one decides for all.
        if self.balance == "time" and not settings.deterministic and self.communicator.rank == 0:
            costs = partial(unit_seconds, found, model.device, model.precision)
        self._starts = self.communicator.bcast_object(stage_starts(found, self._wanted, costs))
        self.begins_with = [traced.calls[each].layer.path for each in self._starts]
        check_starts(self._starts, self.begins_with)
        layers.choose(model, self._optimizer, traced.calls[0].outputs, dense_only=False)

    def shard(self) -> None:
        self._is_apart = True
        self._layers.shard()
        # Whose variables are which is known with the first plan.
        self._let_go()

    def _let_go(self) -> None:
        if self._is_apart:
            for variable, stage in self._owners().items():
                if stage != self.stage:
                    let_go(variable)

    def unshard(self) -> None:
        self._is_apart = False
        for variable, stage in self._owners().items():
            made_whole(variable, stage, self.mesh.axis(AXIS))
        self._layers.unshard()

    def _owners(self) -> dict[Variable, int]:
        """The stage of each variable that only one has, in the same order on all ranks."""
        found: dict[Variable, int] = {}
        for variable, stage in self._stage_of.items():
            found[variable] = stage
            if self._optimizer is not None:
                found |= dict.fromkeys(self._optimizer.kept_for(variable), stage)
        return found

    def end(self) -> None:
        self._layers.end()
        self._model, self._optimizer = None, None
        self._stage_of, self._traces = {}, []

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        held: dict[Variable, VariableView] = {}
        if self._is_apart:
            axis = self.mesh.axis(AXIS)
            held = {each: Owned(each, stage, axis) for each, stage in self._owners().items()}
        return self._layers.checkpoint_views(variables, held, is_apart=self._is_apart)
