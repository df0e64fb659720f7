"""Data parallelism in which each rank updates its part of the parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from caldera import op
from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.graph.body import topological
from caldera.graph.node import Node
from caldera.graph.ops.collective import (
    Message,
    all_gather_flat,
    next_number,
    reduce_scatter_flat,
    shard_size,
)
from caldera.lazy import Expr, Variable
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.optim.sharding import sharded_parameters
from caldera.parallel.data.buckets import bucket_indices, buckets, in_backward_order
from caldera.parallel.data.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.distributed_variable import (
    Elsewhere,
    Shared,
    part_of,
    variable_like,
    whole_of_parts,
)
from caldera.strategy import VariableView

_NO_LIMIT = sys.maxsize


def gather_buckets(
    nbytes: Sequence[int], dtypes: Sequence[str], bucket_bytes: int
) -> list[list[int]]:
    """Which parameters are gathered together, in the order in which a forward pass needs them.

    The other way round than gradients: who waits for the first has nothing to do either.

    >>> from caldera.parallel.data.sharded import gather_buckets
    >>> gather_buckets([40] * 5, ["float32"] * 5, bucket_bytes=80)
    [[0], [2, 1], [4, 3]]
    """
    last_first = range(len(nbytes))[::-1]
    return bucket_indices(nbytes, dtypes, last_first, bucket_bytes)[::-1]


class Sharded(DataParallel):
    """Each rank keeps and updates its part of every parameter.

    A step gathers the parameters while its forward pass begins, each before the layer that needs
    it, and sends each part of the gradients to the rank whose part it is. `stage` says what a rank
    has only a part of while steps run: of what the optimizer keeps (1), also of the gradients (2),
    also of the parameters (3), which are then gathered once more for the backward pass and take
    memory only around the layer that needs them. Stages 1 and 2 move as many bytes as
    `DataParallel`, stage 3 half as many again.

    The numbers are those of `DataParallel`. Between epochs, and for checkpoints, everything is as
    one process would have it.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", batch_size=5)
    >>> models = [model() for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.Sharded(stage=2, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(2, work)
    >>> np.allclose(losses[0], model().fit((x, 2 * x), verbose=0)["loss"])
    True
    """

    def __init__(
        self,
        stage: int = 1,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        communicator: Communicator | None = None,
    ) -> None:
        if stage not in (1, 2, 3):
            raise ConfigError.build("Sharded", expected="stage 1, 2 or 3", got=repr(stage))
        super().__init__(bucket_bytes=bucket_bytes, overlap=overlap, communicator=communicator)
        self.stage = stage
        self._optimizer: Optimizer | None = None
        self._part: dict[Variable, Variable] = {}
        self._whole: dict[Variable, Variable] = {}
        self._forward: set[Node] = set()
        self._is_apart = False

    # --- graphs

    def gradients(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        if not self.is_distributed:
            return super().gradients(loss, parameters)
        self._forward = set(topological([loss.node]))
        order = in_backward_order(loss, parameters)
        gradients = op.grad(loss, list(parameters), unused="zero")
        found: dict[int, Expr] = {}
        for bucket in buckets(gradients, order, self.bucket_bytes):
            message = self._message("scatter", ahead=_NO_LIMIT if self.stage == 1 else 1)
            parts = reduce_scatter_flat([gradients[index].node for index in bucket], message)
            found |= {index: Expr(part) for index, part in zip(bucket, parts, strict=True)}
        return [self._part[parameters[index]] for index in order], [found[i] for i in order]

    @contextmanager
    def updating(self) -> Iterator[None]:
        if not self.is_distributed:
            yield
            return
        with sharded_parameters(self._whole):
            yield

    def written(self, programs: Sequence[Sequence[Expr]]) -> list[Expr]:
        (program,) = programs
        roots = [each.node for each in program]
        # Evaluation reads the whole model: it happens between epochs.
        changes = {node.inputs[0] for node in roots if node.op.name == "assign"}
        if not any(part.node in changes for part in self._whole):
            return list(program)
        return [Expr(node) for node in self._with_gathered(roots)]

    def _with_gathered(self, roots: Sequence[Node]) -> list[Node]:
        """The program with parameters that are gathered from their parts."""
        order = topological(roots)
        ahead = _NO_LIMIT if self.stage < 3 else 1
        forward = self._gathered(ahead)
        backward = forward if self.stage < 3 else self._gathered(ahead)
        new: dict[Node, Node] = {}
        for node in order:
            there = forward if node in self._forward else backward
            inputs = tuple(there.get(given, new[given]) for given in node.inputs)
            new[node] = node.op.rebuild(node, inputs)
        self._forward = set()
        return [new[root] for root in roots]

    def _gathered(self, ahead: int) -> dict[Node, Node]:
        """The whole of each parameter, by the node that stands for it."""
        wholes = list(self._part)
        found: dict[Node, Node] = {}
        sizes = [each.node.spec.nbytes for each in wholes]
        dtypes = [each.dtype.name for each in wholes]
        for bucket in gather_buckets(sizes, dtypes, self.bucket_bytes):
            chosen = [wholes[index] for index in bucket]
            parts = [self._part[each].node for each in chosen]
            message = self._message("gather", ahead)
            values = all_gather_flat(parts, [each.shape for each in chosen], message)
            found |= dict(zip((each.node for each in chosen), values, strict=True))
        return found

    def _message(self, kind: str, ahead: int) -> Message:
        ranks = self.communicator.size
        return Message(kind, "data", next_number(), ranks, now=not self.overlap, ahead=ahead)

    # --- a run

    def begin(self, model: Layer, optimizer: Optimizer) -> None:
        super().begin(model, optimizer)
        if not self.is_distributed:
            return
        self._optimizer = optimizer
        for parameter in model.trainable():
            part = variable_like(parameter, (shard_size(parameter.size, self.communicator.size),))
            self._part[parameter], self._whole[part] = part, parameter
            optimizer.hand_over(parameter, part, self._part_like)

    def _part_like(self, variable: Variable) -> Variable:
        own = part_of(variable.numpy(), self.communicator)
        return variable_like(variable, own.shape, own)

    def shard(self) -> None:
        self._is_apart = True
        for whole, part in self._part.items():
            part.assign(part_of(whole.numpy(), self.communicator))
            if self.stage == 3:
                whole.symbol.move(Elsewhere(whole.name, part.tensor.device))

    def unshard(self) -> None:
        self._is_apart = False
        for whole, part in self._part.items():
            value = whole_of_parts(part.numpy(), whole.shape, self.communicator)
            if self.stage == 3:
                whole.symbol.move(variable_like(part, whole.shape, value).tensor)
            else:
                whole.assign(value)

    def end(self) -> None:
        if self._optimizer is not None:
            for whole, part in self._part.items():
                self._optimizer.hand_over(part, whole, self._whole_like(whole))
        self._part, self._whole, self._optimizer = {}, {}, None

    def _whole_like(self, parameter: Variable) -> Callable[[Variable], Variable]:
        def made(kept: Variable) -> Variable:
            value = whole_of_parts(kept.numpy(), parameter.shape, self.communicator)
            return variable_like(kept, parameter.shape, value)

        return made

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        if self._optimizer is None:
            return variables
        shared: dict[Variable, VariableView] = {}
        for whole, part in self._part.items():
            if self._is_apart:
                shared[whole] = Shared(part, whole.shape, self.communicator)
            for kept in self._optimizer.kept_for(part):
                shared[kept] = Shared(kept, whole.shape, self.communicator)
        return {name: shared.get(each, each) for name, each in variables.items()}
