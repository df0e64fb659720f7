"""Strategies for layers that ranks compute in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caldera import op
from caldera.base.formatting import bytes_text
from caldera.comm import Communicator, Mesh
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.distributions import Distribution
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.ops import place
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.compiler.sharding.volume import Move, moves_table, shortened, summary
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.nn.layer import Layer
from caldera.parallel.consistency import check_same_options
from caldera.parallel.data.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.data.sums import bucketed_sums, in_backward_order, sum_over_axis
from caldera.parallel.distributed_variables import AXIS, OwnedVariable
from caldera.parallel.tensor.candidates import LEAST
from caldera.parallel.tensor.layer_layouts import (
    Key,
    LayerLayouts,
    Wanted,
    check_layouts,
    described,
    layout_on,
)
from caldera.parallel.tensor.layer_sharding import ShardedLayers
from caldera.train.strategy import Gradients, RunSetup, StepProgram, VariableView

EVERYONE = "all"
"""Axis name of messages between all ranks of the mesh."""


class Hybrid(DataParallel):
    """Mesh of ranks: along "data" they share each batch, along "model" they share layers.

    `axes` contains the length of each axis; one may be -1. A split layer is computed in parts by
    the ranks along "model", each of which stores only its part of the parameters and of the
    optimizer state. A dense layer or a convolution is split by its output features ("outputs"). The
    next layer is split by its input features ("inputs"), unless an operation in between needs all
    features. The two layers need one exchange in the forward pass and one in the backward pass.
    Attention is split by "heads". `splits` selects layers and their layouts, in the words and
    layouts of `Layouts`. By default all layers are split whose weight has at least `least` elements
    ("auto").

    `samples` selects the ranks that share the samples of a batch. With "data", the ranks along
    "model" compute on the same samples. With "all", each rank has different samples, which are
    gathered along "model" before the first split layer: convolutions are then data parallel, and
    dense layers model parallel. Without `splits`, only large dense layers are split in this case.

    Results equal one process. Between epochs, and in checkpoints, values are as in one process.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     layers = [nn.Input((1,)), nn.Dense(8, activation="tanh", name="hidden"), nn.Dense(1)]
    ...     return cd.NeuralNetwork(layers, loss="mse", batch_size=5)
    >>> models = [model() for _ in range(4)]
    >>> def work(comm):
    ...     mesh = {"data": 2, "model": 2}
    ...     strategy = parallel.Hybrid(mesh, {"hidden": "columns"}, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(4, work)
    >>> np.allclose(losses, [model().fit((x, 2 * x), verbose=0)["loss"]] * 4)
    True
    """

    replicas_are_equal = False
    argument = "splits"
    """The name under which layouts of layers are given."""

    def __init__(
        self,
        axes: Mapping[str, int],
        splits: LayerLayouts | None = None,
        *,
        samples: str = "data",
        least: int = LEAST,
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str = "auto",
        overlap: bool = True,
        communicator: Communicator | None = None,
    ) -> None:
        where = type(self).__name__
        if not isinstance(axes, Mapping) or not axes or not set(axes) <= {"data", AXIS}:
            raise ConfigError.build(
                where,
                expected='lengths of the axes "data" and "model"',
                got=repr(axes),
                hint="stages of such ranks are made by parallel.PipelineParallel(model=...)",
            )
        if samples not in ("data", EVERYONE):
            raise ConfigError.build(where, expected='samples="data" or "all"', got=repr(samples))
        super().__init__(
            bucket_bytes=bucket_bytes,
            algorithm=algorithm,
            overlap=overlap,
            communicator=communicator,
        )
        lengths = {"data": 1, AXIS: 1} | dict(axes)
        check_same_options(
            self.communicator,
            self,
            axes=lengths,
            samples=samples,
            least=least,
            splits=described(splits),
        )
        self.mesh = Mesh(self.communicator, lengths)
        self.communicator.axes = self.mesh.axes
        self.plan_communicator.axes = Mesh(self.plan_communicator, lengths).axes
        self.samples = samples
        self._layers = ShardedLayers(
            self.argument, self.mesh.axis(AXIS), self.communicator, splits, least
        )
        self._rank, self._ranks = self._layers.rank, self._layers.ranks
        self._outputs: Mapping[Layer, Distribution] = {}
        self._states: list[Variable] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mesh.shape}, samples={self.samples!r})"

    @property
    def reader(self) -> tuple[int, int]:
        if self.samples == "data":
            return self.mesh.coordinates["data"], self.mesh.shape["data"]
        return super().reader

    # --- graphs

    def layer_output(self, layer: Layer, result: Any) -> Any:
        wanted = self._outputs.get(layer)
        if wanted is None:
            return result
        if isinstance(result, dict):
            return {key: self.layer_output(layer, each) for key, each in result.items()}
        if isinstance(result, tuple | list):
            return type(result)(self.layer_output(layer, each) for each in result)
        if not isinstance(result, Expr):
            return result
        where = f"{type(self).__name__}: output of {layer.path}"
        return Expr(place(result.node, layout_on(where, wanted, result.shape, self._ranks)))

    def parts(self, share: Share) -> list[Share]:
        return [share if self.samples == "data" else self._of_group(share)]

    def _of_group(self, share: Share) -> Share:
        """Return the share of samples that the ranks of one group along "model" read in common."""
        data, groups = self.mesh.coordinates["data"], self.mesh.shape["data"]
        everyone = self.communicator.size
        return Share.of(share.start, share.count, share.size, data, groups, parts=everyone)

    def of_part(self, value: Expr, share: Share, part: Share) -> Expr:
        if self.samples == "data":
            return super().of_part(value, share, part)
        first, everyone = self.mesh.coordinates["data"] * self._ranks, self.communicator.size
        sizes = [
            len(Share.of(share.start, share.count, share.size, first + rank, everyone))
            for rank in range(self._ranks)
        ]
        return op.all_gather(value, sizes, self._rank, axis=AXIS)

    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        if not self.is_distributed:
            return list(values)
        # Ranks along "model" have the same values.
        return sum_over_axis(values, EVERYONE, alike=self._ranks)

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        graph = self._layers.graph()
        # The loss of the job is the sum of the ranks' parts.
        own = Expr(graph.share(loss.node))
        variables = [self._layers.part(each) for each in parameters]
        # Of the graph of the whole network, which is the same on all ranks.
        order = in_backward_order(loss, parameters)
        found = op.grad(own, variables, unused="zero")
        graph.keep([own.node, *(each.node for each in found)])
        summed: dict[int, Expr] = dict(enumerate(found))
        parts = self._layers.shards.wholes
        for axis, wanted in (("data", True), (EVERYONE, False)):
            if self.plan_communicator.along(axis).size > 1:
                chosen = [index for index in order if (variables[index] in parts) == wanted]
                summed |= bucketed_sums(
                    found, chosen, self.bucket_bytes, axis, now=not self.overlap
                )
        for index in order:
            if variables[index] in parts:
                summed[index] = self._layers.over_copies(variables[index], summed[index])
        nodes = [summed[index].node for index in range(len(variables))]
        return _RewrittenGradients(
            [variables[index] for index in order],
            [summed[index] for index in order],
            self._layers.sharding(variables, nodes),
            graph=graph,
        )

    def moves_of(self, found: Gradients) -> Sequence[Move]:
        """Return the transfers between ranks for a loss with these gradients."""
        return found.graph.moves if isinstance(found, _RewrittenGradients) else ()

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        (part,) = parts
        found = part.gradients
        graph = found.graph if isinstance(found, _RewrittenGradients) else self._layers.graph()
        return [Expr(node) for node in graph.written([each.node for each in part.assignments()])]

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        layers = self._layers
        how = {"mesh": self.mesh.shape, "splits": described(layers.wanted), "samples": self.samples}
        super().agree({**given, **how, "least": layers.least})

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        layers = self._layers
        layers.clear()
        if layers.wanted is None and self._ranks == 1:
            return
        layers.direct = setup.device.kernels == "cpu" and layers.may_place
        traced = setup.trace(self._ranks if layers.wanted is None else setup.batch_size)
        self._outputs = layers.choose(
            setup.model, setup.optimizer, traced.calls, dense_only=self.samples == EVERYONE
        )
        self._states = setup.model.states() if layers.may_place else []

    def shard(self) -> None:
        self._layers.shards.shard()

    def unshard(self) -> None:
        self._layers.shards.unshard()
        # Replicated computations may round differently on ranks whose parts differ in size.
        for each in self._states:
            each.assign(OwnedVariable(each, self.communicator, 0, held_by_all=True).numpy())

    def end(self) -> None:
        self._layers.shards.end()
        self._outputs, self._states = {}, []

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        return self._layers.shards.views(variables)


@dataclass(frozen=True)
class _RewrittenGradients(Gradients):
    """Gradients of a rewritten loss; further values are rewritten by the same graph."""

    graph: RankGraph = field(kw_only=True)


class TensorParallel(Hybrid):
    """All ranks compute on the whole batch, and share its layers; see `Hybrid`.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     layers = [nn.Input((1,)), nn.Dense(8, activation="tanh", name="hidden"), nn.Dense(1)]
    ...     return cd.NeuralNetwork(layers, loss="mse", batch_size=5)
    >>> models = [model() for _ in range(3)]
    >>> def work(comm):
    ...     strategy = parallel.TensorParallel({"hidden": "auto"}, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(3, work)
    >>> np.allclose(losses, [model().fit((x, 2 * x), verbose=0)["loss"]] * 3)
    True
    """

    def __init__(self, splits: LayerLayouts | None = None, **options: Any) -> None:
        super().__init__({AXIS: -1}, splits, **options)


@dataclass(frozen=True)
class StepExplanation:
    """Explanation of a training step; printed, it is a table.

    - `parameters`: layouts by name.
    - `moves`: transfers of the forward pass; each has a counterpart in the backward pass.
    - `summed`: bytes of gradients that are summed over ranks.
    """

    parameters: Mapping[str, ShardLayout]
    moves: Sequence[Move]
    summed: int

    def __str__(self) -> str:
        lines = [
            f"{'parameter':30}  {'shape':18}  layout",
            *(
                f"{shortened(name, 30):30}  {layout.shape!s:18}  {summary(layout)}"
                for name, layout in self.parameters.items()
            ),
            "",
            *moves_table(self.moves),
            "",
            f"forwards in all: {bytes_text(sum(move.nbytes for move in self.moves))}",
            f"gradients summed over all ranks: {bytes_text(self.summed)}",
        ]
        return "\n".join(lines)

    __repr__ = __str__


class Layouts(Hybrid):
    """A layout for each layer: for its parameters and its output.

    `layouts` maps names of layers, their indices in the model, or classes of layers to layouts; an
    entry also holds for the layers inside. A layout is one of `caldera.dmath` (`Rows()`,
    `Columns()`, `Axis(1)`, `Grid(2, 2)`, `Replicated()`, `Blocks(...)`) or a word:

    - "rows": the output is split by samples, and every rank has all parameters;
    - "columns": the output is split by features (channels of images), with the matching parameters;
    - "inputs": the weight is split by input features;
    - "replicated": every rank has everything; "auto": chosen from the preceding layers.

    A layout describes the output of a layer; parameters follow it. Alternatively, a dictionary has
    layouts for parameters by name, and for the "output". All other values are placed such that
    transfers are minimal: samples are split over all ranks, and parameters are replicated. With
    "auto" for the whole model, layers with more parameters than features are split, as in hybrids
    of data-parallel convolutions and model-parallel dense layers.

    Results equal one process for any layouts. Between epochs, and in checkpoints, values are as in
    one process.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import dmath as dm, nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     layers = [nn.Input((1,)), nn.Dense(8, activation="tanh", name="hidden"), nn.Dense(1)]
    ...     return cd.NeuralNetwork(layers, loss="mse", batch_size=5)
    >>> models = [model() for _ in range(3)]
    >>> def work(comm):
    ...     strategy = parallel.Layouts({"hidden": dm.Columns(), -1: "rows"}, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(3, work)
    >>> np.allclose(losses, [model().fit((x, 2 * x), verbose=0)["loss"]] * 3)
    True
    """

    argument = "Layouts"

    def __init__(
        self,
        layouts: Mapping[Key, Wanted] | str = "auto",
        *,
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str = "auto",
        overlap: bool = True,
        communicator: Communicator | None = None,
    ) -> None:
        check_layouts("Layouts", layouts)
        super().__init__(
            {AXIS: -1},
            layouts,
            samples=EVERYONE,
            bucket_bytes=bucket_bytes,
            algorithm=algorithm,
            overlap=overlap,
            communicator=communicator,
        )
        self._layers.may_place = True
        self.layouts = layouts
        self._explained: StepExplanation | None = None

    def __repr__(self) -> str:
        return f"Layouts({self.layouts!r})"

    def explain(self) -> StepExplanation:
        """Return the layouts and transfers of a training step; training must have started.

        >>> from caldera import parallel
        >>> parallel.Layouts().explain()
        Traceback (most recent call last):
        caldera.errors.ConfigError: Layouts.explain: expected a strategy that has trained, got one
        that has not; give it to model.fit(parallel=...) first
        """
        if self._explained is None:
            raise ConfigError.build(
                "Layouts.explain",
                expected="a strategy that has trained",
                got="one that has not",
                hint="give it to model.fit(parallel=...) first",
            )
        return self._explained

    # --- graphs

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        found = super().gradients(loss, parameters, share)
        leaves = self._layers.shards.leaves()
        held = {each: leaves[each.node][1] for each in parameters if each.node in leaves}
        self._explained = StepExplanation(
            {each.name: layout for each, layout in held.items() if isinstance(layout, ShardLayout)},
            tuple(self.moves_of(found)),
            sum(each.node.spec.nbytes for each in parameters if each not in held),
        )
        return found
