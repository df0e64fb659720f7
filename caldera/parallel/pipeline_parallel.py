"""Pipeline parallelism: every rank has some layers, and parts of a batch flow through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from caldera.comm import Communicator, Mesh, world
from caldera.config import settings
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.graph.body import substitute
from caldera.graph.node import Node
from caldera.graph.ops.collective import Message, next_number, summed
from caldera.lazy import Expr, Variable
from caldera.nn.context import Context
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.parallel.agreement import check_neighbours, check_same, same_plan, same_values
from caldera.parallel.batch_sums import (
    Writing,
    early_sums,
    late_sums,
    over_axis,
    stand_in,
    zero,
)
from caldera.parallel.buckets import buckets
from caldera.parallel.cutting import Written, check_begins, chosen
from caldera.parallel.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.owned import Owned, let_go, made_whole
from caldera.parallel.shared_update import SharedUpdate
from caldera.parallel.stage_program import AXIS, Part, StageProgram
from caldera.parallel.timetable import SCHEDULES
from caldera.plan.plan import Plan
from caldera.strategy import Holder, Strategy

DATA, EVERYONE = "data", "all"


class PipelineParallel(Strategy):
    """Each rank has a stage of the model: some of its layers, one after the other.

    A batch is cut into `micro_batches` parts, which flow through the stages; what the parts add to
    the gradients is summed, and a step changes the parameters once. `schedule` is "1f1b" (a stage
    has at most as many parts on their way as there are stages) or "fill-drain" (it has all).

    `stages` is how many there are, cut such that they have about as many operations to do, or the
    names of the layers with which those after the first begin. Without it, all ranks are stages of
    one pipeline. `data=2` makes two pipelines, each of which has its part of every batch; or give a
    `mesh` with the axes "data" and "pipeline".

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
        data: int | None = None,
        mesh: Mesh | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        if micro_batches < 1 or schedule not in SCHEDULES:
            raise ConfigError.build(
                "PipelineParallel",
                expected="micro_batches >= 1, and schedule " + " or ".join(map(repr, SCHEDULES)),
                got=f"micro_batches={micro_batches}, schedule={schedule!r}",
            )  # fmt: skip
        axes, given = _axes(stages, data, mesh, communicator)
        # Nothing that others send through theirs is ever received here.
        self.communicator, self.in_plans = given.Dup(), given.Dup()
        self.mesh = Mesh(self.communicator, axes)
        self.communicator.axes = self.mesh.axes
        self.in_plans.axes = Mesh(self.in_plans, axes).axes
        self.stages = axes[AXIS]
        self.stage = self.mesh.coordinates[AXIS]
        self.micro_batches = micro_batches
        self.schedule = schedule
        self._wanted = self.stages if stages is None or isinstance(stages, int) else list(stages)
        self.begins_with: list[str] = []
        """The layers with which stages after the first begin, once that has been decided."""
        self._begins: list[int] | None = None
        self._writing: list[Writing] = []
        self._model: Layer | None = None
        self._optimizer: Optimizer | None = None
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
        self._writing = []
        # As many on all ranks, so that none waits for another: the largest share decides.
        largest = -(-share.count // self.mesh.shape[DATA])
        count = max(1, min(self.micro_batches, largest))
        ends = [share.samples * k // count for k in range(count + 1)]
        return [
            Share(share.start, share.first + begin, end - begin, share.count, share.size)
            for begin, end in pairwise(ends)
        ]

    def traced(self, written: Context) -> None:
        self._writing.append(Writing(written))

    def over_all(self, values: Sequence[Expr]) -> list[Expr]:
        return self._writing[-1].summed(values)

    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        now = self._writing[-1]
        now.loss, now.parameters = loss, list(parameters)
        now.slopes = [stand_in("gradient", parameter.node) for parameter in parameters]
        return list(parameters), [Expr(node) for node in now.slopes]

    def written(self, programs: Sequence[Sequence[Expr]]) -> list[Expr]:
        first, roots = self._writing[0], [each.node for each in programs[0]]
        parts = [self._part(writing) for writing in self._writing]
        if self._begins is None:
            self._begins = chosen(parts[0].written, self._wanted)
            self.begins_with = [first.context.calls[each].layer.path for each in self._begins]
            check_begins(self._begins, self.begins_with)
        parameters = [each.node for each in first.parameters]
        program = StageProgram(parts, self._begins, self.stage, parameters)
        self._know(program)
        new = early_sums(
            self._writing, lambda value: value not in parts[0].stages, self.stage == 0,
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
        own = SharedUpdate(stages, new, self.stage).run(assignments)
        return [Expr(node) for node in (*own, program.token)]

    def _part(self, writing: Writing) -> Part:
        assert writing.loss is not None
        assert self._model is not None
        totals = writing.samples()
        changes = [update.node.inputs for update in writing.context.updates]
        states = {each[0]: each[1] for each in changes}
        free = [each.node for each in (*self._model.parameters(), *self._model.states())]
        if writing.context.random is not None:
            free.append(writing.context.random.node)
        roots = [writing.loss.node, *totals, *states.values()]
        written = Written(writing.context.calls, roots, frozenset(free))
        return Part(written, writing.loss.node, totals, states)

    def _over_ranks(self, values: list[Node], *, now: bool = True) -> list[Node]:
        return over_axis(values, EVERYONE, now=now) if self.several else values

    # --- gradients and updates

    def _know(self, program: StageProgram) -> None:
        """Whose variables are which."""
        assert self._model is not None
        users = program.used_by()
        changed = {node: program.stage_of_state(node) for node in program.parts[0].states}
        for variable in [*self._model.parameters(), *self._model.states()]:
            stages = users.get(variable.node, set())
            if variable.node in changed:
                stages = {changed[variable.node]}
            # One that several stages read, all ranks have.
            if len(stages) == 1 and self.stages > 1:
                (self._stage_of[variable],) = stages

    def _gradients(self, program: StageProgram, first: Writing) -> dict[Node, Node]:
        """What the stand-ins for the gradients of this rank are, summed over all pipelines."""
        leaves = dict(zip(first.parameters, first.slopes, strict=True))
        alone = [each for each in first.parameters if each in self._stage_of]
        own = [each for each in alone if self._stage_of[each] == self.stage]
        shared = [each for each in first.parameters if each not in self._stage_of]
        found = self._summed(own, program, DATA, self.mesh.shape[DATA])
        found |= self._summed(shared, program, EVERYONE, self.communicator.size)
        return {leaves[variable]: slope for variable, slope in found.items()}

    def _summed(
        self, variables: Sequence[Variable], program: StageProgram, axis: str, ranks: int
    ) -> dict[Variable, Node]:
        slopes = [program.gradients.get(each.node) or zero(each.node) for each in variables]
        if ranks == 1:
            return dict(zip(variables, slopes, strict=True))
        found: dict[Variable, Node] = {}
        values = [Expr(slope) for slope in slopes]
        for bucket in buckets(values, range(len(values) - 1, -1, -1), BUCKET_BYTES):
            message = Message("sum", axis, next_number())
            totals = summed([slopes[index] for index in bucket], message)
            found |= zip([variables[index] for index in bucket], totals, strict=True)
        return found

    def _update(
        self, program: StageProgram, roots: Sequence[Node], new: dict[Node, Node]
    ) -> tuple[list[Node], dict[Node, int]]:
        """The assignments over leaves, and the stage of each leaf that belongs to one."""
        assert self._optimizer is not None
        first = self._writing[0]
        stages = {variable.node: stage for variable, stage in self._owners().items()}
        for variable, leaf in zip(first.parameters, first.slopes, strict=True):
            if variable in self._stage_of:
                stages[leaf] = self._stage_of[variable]
        leaves: dict[Node, Node] = {}
        for state, value in program.parts[0].states.items():
            leaf = leaves[value] = stand_in("state", value)
            if state in stages:
                stages[leaf] = stages[state]
            if state in program.states:
                new[leaf] = program.states[state]
        return list(substitute(roots, leaves)), stages

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        plan = same_plan(self.mesh.axis(DATA), make)
        check_same(self.communicator, "stages of the pipeline", self.begins_with)
        check_neighbours(self.mesh.axis(AXIS), plan, AXIS)
        return plan

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        # The number of threads decides in which order long sums are added up.
        known = {**given, "threads": settings.threads, "micro_batches": self.micro_batches,
                 "schedule": self.schedule, "stages": self._wanted}  # fmt: skip
        check_same(self.communicator, "fit", [f"{name}={value}" for name, value in known.items()])

    def begin(self, model: Layer, optimizer: Optimizer) -> None:
        kept = optimizer.variables() if optimizer.state else []
        same_values(self.communicator, [*model.parameters(), *model.states(), *kept])
        self._model, self._optimizer = model, optimizer
        self._begins, self._stage_of = None, {}

    def take_apart(self) -> None:
        self._is_apart = True
        # Whose variables are which is known with the first plan.
        self._let_go()

    def _let_go(self) -> None:
        if self._is_apart:
            for variable, stage in self._owners().items():
                if stage != self.stage:
                    let_go(variable)

    def make_whole(self) -> None:
        self._is_apart = False
        for variable, stage in self._owners().items():
            made_whole(variable, stage, self.mesh.axis(AXIS))

    def _owners(self) -> dict[Variable, int]:
        """The stage of each variable that only one has, in the same order on all ranks."""
        found: dict[Variable, int] = {}
        for variable, stage in self._stage_of.items():
            found[variable] = stage
            if self._optimizer is not None:
                found |= dict.fromkeys(self._optimizer.kept_for(variable), stage)
        return found

    def end(self) -> None:
        self._model, self._optimizer = None, None
        self._stage_of, self._writing = {}, []

    # --- checkpoints

    def holders(self, variables: Mapping[str, Variable]) -> Mapping[str, Holder]:
        if not self._is_apart:
            return variables
        owners, axis = self._owners(), self.mesh.axis(AXIS)
        return {
            name: Owned(each, owners[each], axis) if each in owners else each
            for name, each in variables.items()
        }


def _axes(
    stages: int | Sequence[str] | None,
    data: int | None,
    mesh: Mesh | None,
    communicator: Communicator | None,
) -> tuple[dict[str, int], Communicator]:
    """The lengths of the axes, and the ranks."""
    wanted = stages if stages is None or isinstance(stages, int) else len(stages) + 1
    if mesh is None:
        given = world() if communicator is None else communicator
        pipelines = data or (1 if wanted is None else max(1, given.size // wanted))
        axes = {DATA: pipelines, AXIS: given.size // pipelines}
    else:
        given = mesh.communicator
        axes = {DATA: mesh.shape.get(DATA, 1), AXIS: mesh.shape.get(AXIS, 1)}
    if (
        axes[DATA] * axes[AXIS] != given.size
        or (mesh is not None and (data is not None or communicator is not None))
        or (wanted is not None and wanted != axes[AXIS])
    ):
        shape = f"a mesh {mesh}" if mesh is not None else f"data={data}"
        raise ConfigError.build(
            "PipelineParallel",
            expected=f"{given.size} ranks that are as many as stages times pipelines",
            got=f"stages={stages} and {shape}",
            hint='give stages= and data=, or a mesh with the axes "data" and "pipeline" alone',
        )  # fmt: skip
    if mesh is not None and list(mesh.shape) == [AXIS, DATA]:
        axes = {AXIS: axes[AXIS], DATA: axes[DATA]}
    return axes, given
