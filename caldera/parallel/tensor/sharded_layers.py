"""The layers that ranks along "model" share: what each has of them, and how all become whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.collective_moves import CollectiveMoves
from caldera.compiler.sharding.layout import Layout
from caldera.compiler.sharding.ops import copies
from caldera.compiler.sharding.rank_graph import RankGraph
from caldera.compiler.sharding.rules.registry import Placement
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node
from caldera.errors import ConfigError
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.optim.sharding import Sharding
from caldera.parallel.distributed_variable import ParameterShards
from caldera.parallel.layout import AXIS
from caldera.parallel.tensor.layer_sharding import WAYS, chosen_layers, layouts_of


class ShardedLayers:
    """Which parameters are split over the ranks of `along`, and this rank's part of each.

    `wanted` are the splits of layers by their names; without it, all layers are split whose weight
    has at least `least` elements. Until `choose` has been called nothing is split.

    - `shards`: the parameters that are split.
    - `direct`: whether parts may go from rank to rank, which needs kernels of the host.
    """

    def __init__(
        self, where: str, along: Communicator, wanted: Mapping[str, str] | None, least: int
    ) -> None:
        if wanted is not None and not isinstance(wanted, Mapping):
            raise ConfigError.build(
                where,
                expected='splits by the names of layers, as in {"1-Dense": "outputs"}',
                got=repr(wanted),
                hint="model.summary() shows the names",
            )
        if unknown := sorted(set((wanted or {}).values()) - set(WAYS)):
            raise ConfigError.build(
                where, expected="splits by " + ", ".join(WAYS), got=", ".join(map(repr, unknown))
            )
        self.wanted = wanted
        self.least = least
        self.rank, self.ranks = along.rank, along.size
        self._along = along
        self.direct = False
        self.clear()

    def clear(self) -> None:
        """Nothing is split."""
        self.shards = ParameterShards(self._along)

    def choose(
        self, model: Layer, optimizer: Optimizer, outputs: Sequence[Expr], *, dense_only: bool
    ) -> None:
        """Decide, for a model that computes these outputs, and take what the optimizer keeps."""
        if self.ranks == 1:
            return
        chosen = chosen_layers(
            model, self.ranks, self.wanted, least=self.least, dense_only=dense_only
        )
        self.use(layouts_of(chosen, outputs, self.rank, self.ranks), optimizer)

    def use(self, layouts: Mapping[Variable, Layout], optimizer: Optimizer) -> None:
        """Have parameters in these layouts, and what the optimizer keeps for them."""
        for whole, layout in layouts.items():
            self.shards.add(whole, layout, optimizer)

    def part(self, variable: Variable) -> Variable:
        """What this rank has of a parameter while steps run."""
        return self.shards.part(variable)

    def graph(self) -> RankGraph:
        """Rewrites graphs over parameters into graphs over this rank's parts of them."""
        parts = {
            whole: (part, layout)
            for whole, (part, layout) in self.shards.leaves().items()
            if isinstance(layout, Layout)
        }
        return RankGraph(self.rank, self.ranks, parts, AXIS, direct=self.direct)

    def sharding(self, variables: Sequence[Variable], gradients: Sequence[Node]) -> Sharding:
        """Which variables are parts, and of which of them the gradients are."""
        wholes = self.shards.wholes
        pairs = zip(variables, gradients, strict=True)
        parts = {each: variable if variable in wholes else None for variable, each in pairs}
        return Sharding(wholes, AXIS, parts, {part: n for part, n in self._copies() if n > 1})

    def over_copies(self, part: Variable, gradient: Expr) -> Expr:
        """The sum of the terms that ranks have which have the same part of a parameter."""
        layout = self._layout(part)
        alike = copies(layout)
        if alike == 1:
            return gradient
        moves = CollectiveMoves(self.rank, self.ranks, AXIS, Links(), direct=True)
        return Expr(moves.written(gradient.node, Placement(layout, alike), layout))

    def _copies(self) -> Iterator[tuple[Variable, int]]:
        return ((part, copies(self._layout(part))) for part in self.shards.wholes)

    def _layout(self, part: Variable) -> Layout:
        _, layout = self.shards.leaves()[self.shards.wholes[part].node]
        assert isinstance(layout, Layout)
        return layout
