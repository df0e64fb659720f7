"""The optimizer's step at a server: for its own parameters alone, from gradients that arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.core.graph.body import substitute
from caldera.errors import ConfigError
from caldera.optim import Optimizer
from caldera.parallel.asynchronous.server_shards import ServerShard
from caldera.parallel.distributed_variable import variable_like

_WEIGHT = "weight"


class ServerOptimizer:
    """What an optimizer does with the gradients of one shard.

    The server has copies of its parameters, since workers still compute with older ones. What the
    optimizer keeps for them it keeps where it always does, on the server's rank alone. It works on
    a thread of its own, and takes turns on the device with the worker of its rank.
    """

    def __init__(
        self, optimizer: Optimizer, shards: Sequence[ServerShard], own: ServerShard
    ) -> None:
        self._own = own
        self._held = {each: variable_like(each, each.shape) for each in own.parameters}
        assignments = optimizer_assignments(optimizer, shards)
        elsewhere: set[Any] = set()
        for shard in shards:
            for each in shard.parameters if shard is not own else ():
                elsewhere |= {each.node, *(kept.node for kept in optimizer.kept_for(each))}
        roots = [each.node for each in assignments if each.node.inputs[0] not in elsewhere]
        held = {whole.node: copy.node for whole, copy in self._held.items()}
        device = own.parameters[0].tensor.device
        self._turn = device.turn
        self._plan = compile(
            [Expr(node) for node in substitute(roots, held)], device=device, remember=False
        )
        known = {_WEIGHT, *(each.name for each in own.parameters)}
        if not known.issuperset(self._plan.inputs):
            raise ConfigError.build(
                "ParameterServer",
                expected="an optimizer that needs one parameter at a time",
                got=f"{type(optimizer).__name__} with {optimizer.clip} over {len(shards)} servers",
                hint="take servers=1, which has all gradients, or optim.ClipValue",
            )

    def take_over(self) -> None:
        """Go on from the parameters of the model."""
        for whole, copy in self._held.items():
            copy.assign(whole.numpy())

    def current(self) -> np.ndarray:
        """The parameters, as a message."""
        with self._turn:
            return self._own.packed(self._held)

    def update(self, gradient: np.ndarray, weight: float) -> None:
        """Take a step."""
        feeds: dict[str, Any] = {**self._own.parts(gradient), _WEIGHT: np.float64(weight)}
        with self._turn:
            self._plan.run({name: feeds[name] for name in self._plan.inputs})


def optimizer_assignments(optimizer: Optimizer, shards: Sequence[ServerShard]) -> list[Expr]:
    """The assignments of a step by gradients that are fed, under the names of the parameters.

    All ranks write them, which makes the variables of the optimizer.
    """
    parameters = [each for shard in shards for each in shard.parameters]
    gradients = [
        op.input(each.name, each.shape, shard.dtype)
        for shard in shards
        for each in shard.parameters
    ]
    return optimizer.apply(parameters, gradients, weight=op.input(_WEIGHT, (), "float64"))


def owners(optimizer: Optimizer, shards: Sequence[ServerShard]) -> Mapping[Variable, int]:
    """The rank that has the last word on each variable of an optimizer."""
    found = dict.fromkeys(optimizer.variables(), shards[0].rank)
    for shard in shards:
        for parameter in shard.parameters:
            found |= dict.fromkeys(optimizer.kept_for(parameter), shard.rank)
    return found
