"""Ranks of a pipeline as a mesh, and the program of a stage.

Every rank traces the whole network for each part of the batch, and extracts its stage. Values of
the previous stage are received, and values for later stages are sent to the next one. Gradients
travel in the opposite direction. A stage posts its next receive before it computes, and waits for
its previous send before it sends again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caldera import op
from caldera.comm import Communicator, Mesh, world
from caldera.compiler.sharding.ops import redistribute
from caldera.core.graph import Node, Nodes, Spec, rebuilt
from caldera.core.graph.differentiate import accumulate
from caldera.core.graph.ops import add, full
from caldera.core.graph.ops.collective import (
    GATHERING,
    Message,
    all_sum,
    cut,
    finish_collective,
    next_number,
    start_collective,
    turn,
)
from caldera.core.graph.ops.normalisation import SYNCHRONISED
from caldera.core.tensor.dtype import is_float
from caldera.errors import ConfigError
from caldera.parallel.consistency import check_same_options
from caldera.parallel.distributed_variables import AXIS as MODEL
from caldera.parallel.pipeline.schedule import Action
from caldera.parallel.pipeline.stage_partition import (
    Stages,
    boundary_values,
    readers,
    stages_of,
    with_gradients,
)
from caldera.parallel.tensor.layer_sharding import TracedNetwork

AXIS = "pipeline"
NEXT, BEFORE = 1, -1
_NUMBERED = SYNCHRONISED | GATHERING | {all_sum.name, redistribute.name}


@dataclass
class MicroBatch:
    """Values that a step computes for one part of a batch.

    - `network`: the traced network; `loss`: the part's term of the batch loss.
    - `sums`: values summed over the batch, by the leaves that replace the sums; one mapping per
      message. `totals` are the sums that depend on samples.
    - `states`: the new values of variables that layers change, by variable node.
    """

    network: TracedNetwork
    loss: Node
    sums: Sequence[Mapping[Node, Node]]
    totals: Sequence[Node]
    states: Mapping[Node, Node]
    stages: Stages = field(default_factory=dict)
    alone: dict[Node, Node] = field(default_factory=dict)
    """Nodes of the stage's own graph, in which leaves replace received values."""
    new: dict[Node, Node] = field(default_factory=dict)
    """Nodes of the program, by the nodes of the stage's graph."""

    def final(self, nodes: Sequence[Node]) -> list[Node]:
        """Nodes of the network as they are in the program."""
        return rewritten(rebuilt(nodes, self.alone), self.new)


class StageProgram:
    """Writes the program of stage number `stage` of `starts` and one.

    `parameters` are the nodes of all that are trained. After `run`:

    - `gradients`: of this stage's parameters, summed over the parts.
    - `totals`: for each value that is summed, the sum over the parts, or None if another stage
      computes it.
    - `states`: what variables of this stage hold after the last part.
    - `token`: keeps the sends alive, since no other value depends on them.
    """

    def __init__(
        self,
        parts: Sequence[MicroBatch],
        starts: Sequence[int],
        stage: int,
        parameters: Sequence[Node],
    ) -> None:
        self.parts = parts
        self.stage = stage
        self.stages = len(starts) + 1
        self._trained = frozenset(parameters)
        for part in parts:
            part.stages = stages_of(part.network, starts)
        self._check()
        own = self.used_by()
        self.own = [node for node in parameters if stage in own.get(node, ())]
        self.gradients: dict[Node, Node] = {}
        self.totals: list[Node | None] = [None] * len(parts[0].totals)
        self.states: dict[Node, Node] = {}
        self.token: Node | None = None
        self._sending: dict[int, list[tuple[Nodes, Message]]] = {BEFORE: [], NEXT: []}

    # --- facts

    def used_by(self) -> dict[Node, set[int]]:
        """Return the stages that read each variable."""
        return readers(self.parts[0].network, self.parts[0].stages)

    def stage_of_state(self, variable: Node) -> int:
        """Return the stage that changes a variable."""
        first = self.parts[0]
        return first.stages.get(first.states[variable], 0)

    def stage_of_total(self, place: int) -> int:
        """Return the stage that adds a value to a sum; the first if any stage could."""
        return self.parts[0].stages.get(self.parts[0].totals[place], 0)

    def boundary_values(self, part: MicroBatch, cut: int) -> list[Node]:
        """Return the values of a part that stage `cut - 1` sends to stage `cut`."""
        return self._boundary_values[id(part)][cut - 1]

    @cached_property
    def _boundary_values(self) -> dict[int, list[list[Node]]]:
        return {
            id(part): boundary_values(part.network, part.stages, self.stages - 1)
            for part in self.parts
        }

    def _with_gradients(self, part: MicroBatch, cut: int) -> list[Node]:
        """Return the boundary values whose gradients are sent back."""
        active = with_gradients(part.network.roots, self._trained)
        return [v for v in self.boundary_values(part, cut) if v in active and is_float(v.dtype)]

    def _check(self) -> None:
        first = self.parts[0]
        if first.stages.get(first.loss) != self.stages - 1:
            raise ConfigError.build(
                "PipelineParallel",
                expected="a loss that depends on the last stage",
                got="one that does not",
                hint="cut the model elsewhere, or into fewer stages",
            )
        users = self.used_by()
        for variable in first.states:
            stages = users.get(variable, set()) | {self.stage_of_state(variable)}
            if len(stages) > 1:
                raise ConfigError.build(
                    "PipelineParallel",
                    expected="each variable that layers change in a single stage",
                    got=f"{variable.attrs['symbol'].name} in stages {sorted(stages)}",
                    hint="cut the model elsewhere: this layer is used on both sides of a cut",
                )

    # --- writing

    def run(self, order: Sequence[Action]) -> None:
        """Add the actions of this stage to the graph, in this order."""
        asked = self._asked(order)
        coming = next(asked, None)
        for action in order:
            part = self.parts[action.part]
            source = BEFORE if action.kind == "forward" else NEXT
            arrived: list[Node] = []
            if 0 <= self.stage + source < self.stages:
                assert coming is not None
                arrived = self._received(coming)
                coming = next(asked, None)
            if action.kind == "forward":
                ready = self._forward(part, arrived)
            else:
                ready = self._backward(part, arrived)
            self._turn(action, ready)
        for peer in self._sending:
            self._wait_for_sent(peer)

    def _forward(self, part: MicroBatch, arrived: list[Node]) -> list[Node]:
        if self.stage > 0:
            given = self.boundary_values(part, self.stage)
            part.alone |= {value: _leaf(value) for value in given}
            part.new |= zip([part.alone[value] for value in given], arrived, strict=True)
        # Layer states continue from the previous part.
        part.new |= self.states
        if self.stage + 1 < self.stages:
            self._send(part.final(self.boundary_values(part, self.stage + 1)), NEXT)
        for variable, value in part.states.items():
            if self.stage_of_state(variable) == self.stage:
                (self.states[variable],) = part.final([value])
        for place, value in enumerate(part.totals):
            if self.stage_of_total(place) == self.stage:
                (here,) = part.final([value])
                self.totals[place] = _added(self.totals[place], here)
        return [*self.states.values(), *(each for each in self.totals if each is not None)]

    def _backward(self, part: MicroBatch, arrived: list[Node]) -> list[Node]:
        if self.stage + 1 < self.stages:
            outputs = rebuilt(self._with_gradients(part, self.stage + 1), part.alone)
            seeds = [_leaf(output) for output in outputs]
            part.new |= zip(seeds, arrived, strict=True)
        else:
            outputs = rebuilt([part.loss], part.alone)
            seeds = [full((), 1, part.loss.dtype)]
        given = self._with_gradients(part, self.stage) if self.stage else []
        wanted = [*(part.alone[value] for value in given), *self.own]
        gradients = [
            full(node.shape, 0, node.dtype) if slope is None else slope
            for node, slope in zip(wanted, accumulate(outputs, seeds, wanted), strict=True)
        ]
        if given:
            self._send(rewritten(gradients[: len(given)], part.new), BEFORE)
        here = rewritten(gradients[len(given) :], part.new)
        for node, slope in zip(self.own, here, strict=True):
            self.gradients[node] = _added(self.gradients.get(node), slope)
        return list(self.gradients.values())

    def _turn(self, action: Action, ready: Sequence[Node]) -> None:
        tokens = [] if self.token is None else [self.token]
        self.token = turn.node(*ready, *tokens, action=str(action), number=next_number())

    # --- messages

    def _send(self, values: Sequence[Node], to: int) -> None:
        self._wait_for_sent(to)
        for chosen in _by_dtype([value.spec for value in values]):
            message = Message("send", AXIS, next_number(), peer=self.stage + to)
            places, self.token = start_collective([values[i] for i in chosen], message, self.token)
            self._sending[to].append((places, message))

    def _wait_for_sent(self, to: int) -> None:
        for places, message in self._sending[to]:
            assert self.token is not None
            _, self.token = finish_collective(places, message, self.token)
        self._sending[to] = []

    def _asked(self, order: Sequence[Action]) -> Iterator[_Coming]:
        """Post the receive of each action in order."""
        for action in order:
            part, forward = self.parts[action.part], action.kind == "forward"
            source = BEFORE if forward else NEXT
            if not 0 <= self.stage + source < self.stages:
                continue
            if forward:
                values = self.boundary_values(part, self.stage)
            else:
                values = self._with_gradients(part, self.stage + 1)
            coming = _Coming([value.spec for value in values])
            for chosen in _by_dtype(coming.specs):
                brings = tuple(coming.specs[i] for i in chosen)
                peer = self.stage + source
                message = Message("receive", AXIS, next_number(), peer=peer, brings=brings)
                places, self.token = start_collective((), message, self.token)
                coming.messages.append((chosen, places, message))
            yield coming

    def _received(self, coming: _Coming) -> list[Node]:
        found: dict[int, Node] = {}
        for chosen, places, message in coming.messages:
            assert self.token is not None
            flat, self.token = finish_collective(places, message, self.token)
            found |= zip(chosen, cut(flat, [coming.specs[i].shape for i in chosen]), strict=True)
        return [found[place] for place in range(len(coming.specs))]


@dataclass
class _Coming:
    """Values that are on their way to this stage, a message for each dtype."""

    specs: list[Spec]
    messages: list[tuple[list[int], Nodes, Message]] = field(default_factory=list)


def _by_dtype(specs: Sequence[Spec]) -> list[list[int]]:
    """Return groups of indices of values that can share a message."""
    found: dict[str, list[int]] = {}
    for place, spec in enumerate(specs):
        found.setdefault(spec.dtype.name, []).append(place)
    return list(found.values())


def _leaf(like: Node) -> Node:
    """Return a placeholder for a value that is computed later."""
    return op.input("from another stage", like.shape, like.dtype).node


def _added(before: Node | None, here: Node) -> Node:
    return here if before is None else add(before, here)


def rewritten(roots: Sequence[Node], new: dict[Node, Node]) -> list[Node]:
    """Return the graph of these roots with nodes replaced by `new`, which is extended.

    Collectives are renumbered in their original order: ranks that share layers have different
    graphs with the same collectives.
    """
    stack, written = list(reversed(roots)), next_number()
    while stack:
        node = stack[-1]
        missing = [] if node in new else [given for given in node.inputs if given not in new]
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if node not in new:
            inputs = tuple(new[given] for given in node.inputs)
            if node.op.name in _NUMBERED:
                attrs = {**node.attrs, "number": (*written, *node.attrs["number"])}
                new[node] = node.op.node(*inputs, **attrs)
            else:
                new[node] = node.op.rebuild(node, inputs)
    return [new[root] for root in roots]


DATA = "data"
STAGE = "stage"
"""Axis name of messages between all ranks of a stage, over all pipelines."""
EVERYONE = "all"


class PipelineMesh(Mesh):
    """Mesh with communicators for host messages and for plans.

    Ranks along "model" are neighbours, since they communicate most, unless another order is given.

    - `plan_communicator`: all ranks, for plans; `mates`: all ranks of this rank's stage.
    """

    def __init__(
        self,
        stages: int | Sequence[str] | None,
        data: int | None,
        model: int,
        mesh: Mesh | None,
        communicator: Communicator | None,
    ) -> None:
        axes, given = _axes(stages, data, model, mesh, communicator)
        check_same_options(given, self, axes=axes)
        # Duplicated: messages of the caller's communicator never arrive here.
        super().__init__(given.Dup(), axes)
        self.communicator.axes = self.axes
        self.mates = self.together(DATA, MODEL)
        self.mates.axes = self.axes
        planned = Mesh(given.Dup(), axes)
        self.plan_communicator = planned.communicator
        self.plan_communicator.axes = {**planned.axes, STAGE: planned.together(DATA, MODEL)}


def _axes(
    stages: int | Sequence[str] | None,
    data: int | None,
    model: int,
    mesh: Mesh | None,
    communicator: Communicator | None,
) -> tuple[dict[str, int], Communicator]:
    """Return the lengths of the axes, and the ranks."""
    wanted = stages if stages is None or isinstance(stages, int) else len(stages) + 1
    if mesh is None:
        given = world() if communicator is None else communicator
        pipelines = data or (1 if wanted is None else max(1, given.size // (wanted * model)))
        axes = {DATA: pipelines, AXIS: given.size // (pipelines * model), MODEL: model}
    else:
        given = mesh.communicator
        others = [name for name in (DATA, AXIS, MODEL) if name not in mesh.shape]
        axes = {**mesh.shape, **dict.fromkeys(others, 1)}
    if (
        len(axes) > 3
        or math.prod(axes.values()) != given.size
        or (mesh is not None and (data is not None or model != 1 or communicator is not None))
        or (wanted is not None and wanted != axes[AXIS])
    ):
        shape = f"a mesh {mesh}" if mesh is not None else f"data={data}, model={model}"
        raise ConfigError.build(
            "PipelineParallel",
            expected=f"{given.size} ranks that are as many as stages times pipelines times model",
            got=f"stages={stages} and {shape}",
            hint='pass stages=, data= and model=, or a mesh with exactly the axes "data", '
            '"pipeline" and "model"',
        )
    return axes, given
