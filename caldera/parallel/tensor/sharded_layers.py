"""The layers that ranks along "model" share: what each has of them, and how all become whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.graph.node import Node
from caldera.lazy import Expr, Variable
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.parallel.distributed_variable import Elsewhere, SplitAlong, variable_like, whole_along
from caldera.parallel.layout import Split
from caldera.parallel.tensor.layer_sharding import WAYS, chosen_layers, splits_of
from caldera.parallel.tensor.sharding_propagation import ShardingPropagation
from caldera.strategy import VariableView


class ShardedLayers:
    """Which parameters are split over the ranks of `along`, and this rank's part of each.

    `wanted` are the splits of layers by their names; without it, all layers are split whose weight
    has at least `least` elements. Until `choose` has been called nothing is split.

    - `wholes`: the parameters that are split, by this rank's part of each.
    """

    def __init__(
        self, where: str, along: Communicator, wanted: Mapping[str, str] | None, least: int
    ) -> None:
        if wanted is not None and not isinstance(wanted, Mapping):
            raise ConfigError.build(
                where, expected='splits by the names of layers, as in {"1-Dense": "outputs"}',
                got=repr(wanted), hint="model.summary() shows the names",
            )  # fmt: skip
        if unknown := sorted(set((wanted or {}).values()) - set(WAYS)):
            raise ConfigError.build(
                where, expected="splits by " + ", ".join(WAYS), got=", ".join(map(repr, unknown))
            )
        self.wanted = wanted
        self.least = least
        self.rank, self.ranks = along.rank, along.size
        self._along = along
        self._optimizer: Optimizer | None = None
        self.clear()

    def clear(self) -> None:
        """Nothing is split."""
        self._split: dict[Variable, Split] = {}
        self._part: dict[Variable, Variable] = {}
        self.wholes: dict[Variable, Variable] = {}

    def choose(
        self, model: Layer, optimizer: Optimizer, outputs: Sequence[Expr], *, dense_only: bool
    ) -> None:
        """Decide, for a model that computes these outputs, and take what the optimizer keeps."""
        if self._part or self.ranks == 1:
            return
        chosen = chosen_layers(
            model, self.ranks, self.wanted, least=self.least, dense_only=dense_only
        )
        self._optimizer = optimizer
        self._split = splits_of(chosen, outputs, self.rank, self.ranks)
        for whole, split in self._split.items():
            part = variable_like(whole, split.shape(whole.shape, self.rank))
            self._part[whole], self.wholes[part] = part, whole
            optimizer.hand_over(whole, part, self._part_like(split))

    def part(self, variable: Variable) -> Variable:
        """What this rank has of a parameter while steps run."""
        return self._part.get(variable, variable)

    # --- graphs

    def graph(self) -> ShardingPropagation:
        """Rewrites graphs over parameters into graphs over this rank's parts of them."""
        parts = {whole.node: (part.node, self._split[whole]) for whole, part in self._part.items()}
        return ShardingPropagation(self.rank, self.ranks, parts)

    def are_parts(
        self, variables: Sequence[Variable], gradients: Sequence[Node]
    ) -> dict[Node, bool]:
        """Whether gradients are those of parts."""
        pairs = zip(variables, gradients, strict=True)
        return {slope: variable in self.wholes for variable, slope in pairs}

    # --- a run

    def shard(self) -> None:
        """From now on ranks have parts."""
        for whole, part in self._part.items():
            part.assign(self._split[whole].part_of(whole.numpy(), self.rank))
            whole.symbol.move(Elsewhere(whole.name, part.tensor.device))

    def unshard(self) -> None:
        """From now on each has all; they have to call this together."""
        for whole, part in self._part.items():
            value = whole_along(part.numpy(), self._split[whole], self._along)
            whole.symbol.move(variable_like(part, whole.shape, value).tensor)

    def end(self) -> None:
        """What an optimizer keeps is that of whole parameters again."""
        for whole, part in self._part.items():
            assert self._optimizer is not None
            self._optimizer.hand_over(part, whole, self._whole_like(self._split[whole]))
        self.clear()

    def _part_like(self, split: Split) -> Callable[[Variable], Variable]:
        def made(kept: Variable) -> Variable:
            own = split.part_of(kept.numpy(), self.rank)
            return variable_like(kept, own.shape, own)

        return made

    def _whole_like(self, split: Split) -> Callable[[Variable], Variable]:
        def made(kept: Variable) -> Variable:
            value: np.ndarray = whole_along(kept.numpy(), split, self._along)
            return variable_like(kept, value.shape, value)

        return made

    # --- checkpoints

    def checkpoint_views(
        self,
        variables: Mapping[str, Variable],
        held: Mapping[Variable, VariableView],
        *,
        is_apart: bool,
    ) -> dict[str, VariableView]:
        """What stands for variables in a checkpoint, where `held` is what stands for some of those
        that this rank has; `is_apart`: parameters are in parts now, and not only what is kept."""
        found = dict(held)
        for whole, part in self._part.items():
            assert self._optimizer is not None
            how = (whole.shape, self._split[whole], self._along)
            if is_apart:
                found[whole] = SplitAlong(held.get(part, part), *how)
            for kept in self._optimizer.kept_for(part):
                found[kept] = SplitAlong(held.get(kept, kept), *how)
        return {name: found.get(each, each) for name, each in variables.items()}
