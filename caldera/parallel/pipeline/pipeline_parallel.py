"""Pipeline parallelism: every rank has some layers, and parts of a batch flow through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from caldera.base.config import settings
from caldera.comm import Communicator, Mesh
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import Node, substitute
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.parallel.consistency import (
    broadcast_model,
    check_counts,
    check_neighbours,
    check_same_setup,
    compile_alike,
)
from caldera.parallel.data.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.data.sums import bucketed_sums, sum_over_axis
from caldera.parallel.distributed_variables import OwnedVariable, release
from caldera.parallel.pipeline.schedule import SCHEDULES
from caldera.parallel.pipeline.stage_partition import (
    Costs,
    check_starts,
    stage_starts,
    traced_samples,
    unit_seconds,
)
from caldera.parallel.pipeline.stage_program import (
    AXIS,
    DATA,
    EVERYONE,
    MODEL,
    STAGE,
    MicroBatch,
    PipelineMesh,
    StageProgram,
)
from caldera.parallel.pipeline.stage_update import (
    StageUpdate,
    early_sums,
    is_vote,
    late_sums,
    stand_in,
    zero,
)
from caldera.parallel.tensor.candidates import LEAST
from caldera.parallel.tensor.layer_layouts import WAYS, LayerLayouts, described
from caldera.parallel.tensor.layer_sharding import (
    ShardedLayers,
    rank_network,
    rewritten_network,
)
from caldera.train.strategy import Gradients, RunSetup, StepProgram, Strategy, VariableView

BALANCES = ("operations", "time")
"""Quantities that can be balanced between stages."""


class PipelineParallel(Strategy):
    """Each rank has a stage of the model: some consecutive layers.

    A batch is split into `micro_batches` parts, which pass through the stages. Gradients are summed
    over the parts, and a step updates the parameters once. `schedule` is "1f1b" (a stage has at
    most one part in flight per stage) or "fill-drain" (all parts are in flight).

    `stages` is the number of stages, with balanced operations, or the names of the layers that
    start the stages after the first. By default all ranks are stages of one pipeline. With
    `balance="time"` rank 0 times the layers first, and stages have balanced times; deterministic
    runs always count operations.

    `data=2` creates two pipelines, each with its share of every batch. With `model=2` two ranks
    share the layers of a stage; `splits` and `least` are as in `Hybrid`. Alternatively pass a
    `mesh` with the axes "data", "pipeline" and "model".

    Results equal one process for any number of parts, except for batch normalisation: its
    statistics cover one part (over all pipelines), and running statistics are updated part by part.
    While steps run, a rank stores only the parameters and optimizer state of its stage. Between
    epochs, and in checkpoints, values are as in one process. Evaluation is data parallel, since the
    model is whole then.

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
        splits: LayerLayouts | None = None,
        least: int = LEAST,
        mesh: Mesh | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        if isinstance(stages, int):
            check_counts("PipelineParallel", stages=stages)
        check_counts("PipelineParallel", micro_batches=micro_batches, data=data, model=model)
        if schedule not in SCHEDULES or balance not in BALANCES:
            raise ConfigError.build(
                "PipelineParallel",
                expected="schedule "
                + " or ".join(map(repr, SCHEDULES))
                + ", and balance "
                + " or ".join(map(repr, BALANCES)),
                got=f"schedule={schedule!r}, balance={balance!r}",
            )
        self.mesh = PipelineMesh(stages, data, model, mesh, communicator)
        self.communicator, self.plan_communicator = (
            self.mesh.communicator,
            self.mesh.plan_communicator,
        )
        self.stages, self.stage = self.mesh.shape[AXIS], self.mesh.coordinates[AXIS]
        self.micro_batches = micro_batches
        self.schedule = schedule
        self.balance = balance
        self._wanted = self.stages if stages is None or isinstance(stages, int) else list(stages)
        self.begins_with: list[str] = []
        """The layers with which stages after the first begin, once that has been decided."""
        self._starts: list[int] = []
        self._model: Layer | None = None
        self._optimizer: Optimizer | None = None
        self._layers = ShardedLayers(
            "splits", self.mesh.axis(MODEL), self.communicator, splits, least
        )
        if self._layers.may_place:
            raise ConfigError.build(
                "PipelineParallel",
                expected="splits by " + ", ".join((*WAYS, "auto")),
                got=repr(splits),
                hint="parallel.Layouts takes any layouts, without stages",
            )
        self._stage_of: dict[Variable, int] = {}
        self._evaluating: DataParallel | None = None

    @property
    def reader(self) -> tuple[int, int]:
        return self.mesh.coordinates[DATA], self.mesh.shape[DATA]

    @property
    def shares_batches(self) -> bool:
        return self.mesh.shape[DATA] > 1

    def evaluating(self) -> Strategy:
        # The model is whole then, and ranks do not wait for each other.
        if self._evaluating is None:
            self._evaluating = DataParallel(communicator=self.communicator)
        return self._evaluating

    # --- graphs

    def parts(self, share: Share) -> list[Share]:
        # The same number on all ranks, determined by the largest share, so that no rank waits.
        count = max(1, min(self.micro_batches, -(-share.count // self.mesh.shape[DATA])))
        ends = [share.samples * k // count for k in range(count + 1)]
        return [
            Share(share.start, share.first + begin, end - begin, share.count, share.size)
            for begin, end in pairwise(ends)
        ]

    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        # All micro-batches have to be there first.
        return [Expr(stand_in("sum over the batch", value.node)) for value in values]

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        own = [self._layers.part(each) for each in parameters]
        leaves = [stand_in("gradient", parameter.node) for parameter in own]
        return Gradients(own, [Expr(leaf) for leaf in leaves], self._layers.sharding(own, leaves))

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        first, found = parts[0], parts[0].gradients
        assert found is not None
        # Traced first, on one part: the optimizer creates its state variables here.
        changes = [each.node for each in first.assignments()]
        micro_batches = [self._micro_batch(part) for part in parts]
        trained = [each.node for each in found.variables]
        program = StageProgram(micro_batches, self._starts, self.stage, trained)
        self._know(program)
        new = early_sums(
            micro_batches,
            lambda value: value not in micro_batches[0].stages,
            self.stage == 0,
            lambda values: self._over_ranks(values, now=False),
        )
        for each in micro_batches:
            each.new |= new
        program.run(SCHEDULES[self.schedule](self.stage, self.stages, len(parts)))
        new |= late_sums(micro_batches[0], program.totals, new, self._over_ranks)
        new |= self._gradients(program, found)
        assignments, stages = self._update(program, first, changes, found, new)
        self._release()
        assert program.token is not None
        own = StageUpdate(stages, new, self.stage).run(assignments)
        return [Expr(node) for node in (*own, program.token)]

    def _micro_batch(self, part: StepProgram) -> MicroBatch:
        """Return the values that a step computes for a part of the batch, with partitioned
        parameters.
        """
        assert part.loss is not None
        assert self._model is not None
        graph = self._layers.graph()
        # Ranks along "model" compute the same: the loss of the job is the sum of all theirs.
        loss = graph.share(part.loss.node)
        sums = [
            dict(
                zip(
                    (total.node for total in each.totals),
                    graph.written([value.node for value in each.values]),
                    strict=True,
                )
            )
            for each in part.sums
        ]
        changed = _states(part)
        states = dict(zip(changed, graph.written(changed.values()), strict=True))
        totals = [value for each in sums for value in each.values() if not is_vote(value)]
        roots = [loss, *totals, *states.values()]
        network = rewritten_network(self._model, part.context, graph, roots, self._layers.part)
        return MicroBatch(network, loss, sums, totals, states)

    def _over_ranks(self, values: list[Node], *, now: bool = True) -> list[Node]:
        if not self.is_distributed:
            return values
        # Ranks along "model" have the same values.
        found = sum_over_axis(
            [Expr(value) for value in values], EVERYONE, alike=self._layers.ranks, now=now
        )
        return [each.node for each in found]

    # --- gradients and updates

    def _know(self, program: StageProgram) -> None:
        """Assign each variable that only one stage uses to that stage."""
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

    def _gradients(self, program: StageProgram, found: Gradients) -> dict[Node, Node]:
        """Return the values of this rank's gradient placeholders, summed over all ranks that have
        them.
        """
        new: dict[Node, Node] = {}
        # Grouped by the stages that have a parameter, and by its partition along "model".
        for one_stage, in_parts, axes in (
            (True, True, [DATA]),
            (True, False, [STAGE]),
            (False, True, [DATA, AXIS]),
            (False, False, [EVERYONE]),
        ):
            own = {
                leaf.node: each
                for each, leaf in zip(found.variables, found.values, strict=True)
                if self._stage_of.get(each, self.stage) == self.stage
                and (each in self._stage_of) == one_stage
                and (each in self._layers.shards.wholes) == in_parts
            }
            sums = [
                Expr(program.gradients.get(each.node) or zero(each.node)) for each in own.values()
            ]
            for axis in axes:
                if self.plan_communicator.along(axis).size > 1:
                    summed = bucketed_sums(sums, range(len(sums))[::-1], BUCKET_BYTES, axis)
                    sums = [summed[index] for index in range(len(sums))]
            new |= zip(own, (each.node for each in sums), strict=True)
        return new

    def _update(
        self,
        program: StageProgram,
        first: StepProgram,
        changes: Sequence[Node],
        found: Gradients,
        new: dict[Node, Node],
    ) -> tuple[list[Node], dict[Node, int]]:
        """Return the assignments over leaves, and the stage of each leaf that belongs to one."""
        stages = {variable.node: stage for variable, stage in self._owners().items()}
        for variable, value in zip(found.variables, found.values, strict=True):
            if variable in self._stage_of:
                stages[value.node] = self._stage_of[variable]
        leaves: dict[Node, Node] = {}
        for state, new_value in _states(first).items():
            leaf = leaves[new_value] = stand_in("state", new_value)
            if state in stages:
                stages[leaf] = stages[state]
            if state in program.states:
                new[leaf] = program.states[state]
        return list(substitute(changes, leaves)), stages

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        plan = compile_alike(self.mesh.mates, make)
        check_neighbours(self.mesh.axis(AXIS), plan, AXIS)
        return plan

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        check_same_setup(
            self.communicator,
            {
                **given,
                "micro_batches": self.micro_batches,
                "schedule": self.schedule,
                "stages": self._wanted,
                "balance": self.balance,
                "mesh": self.mesh.shape,
                "splits": described(self._layers.wanted),
                "least": self._layers.least,
            },
        )

    def begin(self, setup: RunSetup) -> None:
        broadcast_model(self.communicator, setup.model, setup.optimizer)
        self._model, self._optimizer = setup.model, setup.optimizer
        self._stage_of = {}
        layers = self._layers
        layers.clear()
        traced = setup.trace(
            traced_samples(
                setup.batch_size, self.mesh.shape[DATA], self.micro_batches, layers.ranks
            )
        )
        network = rank_network(
            setup.model,
            traced,
            rank=layers.rank,
            ranks=layers.ranks,
            splits=layers.wanted,
            least=layers.least,
            links=layers.links,
        )
        costs: Costs | None = None
        # Rank 0 decides: parts and clocks differ between ranks.
        if self.balance == "time" and not settings.deterministic and self.communicator.rank == 0:
            costs = partial(unit_seconds, network, setup.device, setup.precision)
        self._starts = self.communicator.bcast_object(stage_starts(network, self._wanted, costs))
        self.begins_with = [traced.calls[each].layer.path for each in self._starts]
        check_starts(self._starts, self.begins_with)
        layers.choose(setup.model, setup.optimizer, traced.calls, dense_only=False)

    def shard(self) -> None:
        self._layers.shards.shard()
        # Whose variables are which is known with the first plan.
        self._release()

    def _release(self) -> None:
        if self._layers.shards.is_sharded:
            for variable, stage in self._owners().items():
                if stage != self.stage:
                    release(variable)

    def unshard(self) -> None:
        for owned in self._owned().values():
            owned.give_to_all()
        self._layers.shards.unshard()

    def _owned(self) -> dict[Variable, OwnedVariable]:
        axis = self.mesh.axis(AXIS)
        return {each: OwnedVariable(each, axis, owner) for each, owner in self._owners().items()}

    def _owners(self) -> dict[Variable, int]:
        """Return the stage of each variable that only one has, in the same order on all ranks."""
        found: dict[Variable, int] = {}
        for variable, stage in self._stage_of.items():
            found[variable] = stage
            if self._optimizer is not None:
                found |= dict.fromkeys(self._optimizer.kept_for(variable), stage)
        return found

    def end(self) -> None:
        self._layers.shards.end()
        self._model, self._optimizer, self._stage_of = None, None, {}

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        shards = self._layers.shards
        return shards.views(variables, self._owned() if shards.is_sharded else {})


def _states(part: StepProgram) -> dict[Node, Node]:
    """Return the new values of variables that layers change, by the nodes of those."""
    return {each.node.inputs[0]: each.node.inputs[1] for each in part.context.updates}
