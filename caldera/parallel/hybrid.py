"""Layers that are computed in parts, beside ranks that share the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from caldera import op
from caldera.comm import Communicator, Mesh
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.graph.node import Node
from caldera.graph.ops.collective import Message, next_number, summed
from caldera.lazy import Expr, Variable
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.optim.spread import spread
from caldera.parallel.buckets import buckets, in_backward_order
from caldera.parallel.data_parallel import BUCKET_BYTES, DataParallel
from caldera.parallel.parts import Elsewhere, SplitAlong, variable_like, whole_along
from caldera.parallel.placement import AXIS, Split
from caldera.parallel.splits import LEAST, WAYS, chosen_layers, splits_of
from caldera.parallel.spreading import Spreading
from caldera.strategy import Holder

EVERYONE = "all"
"""As the axis of a message: all ranks of the mesh."""


class Hybrid(DataParallel):
    """Ranks are a mesh: along "data" they share each batch, along "model" they share layers.

    `axes` has the length of each, one of which may be -1. A layer that is split is computed in
    parts by the ranks along "model", each of which keeps only its part of the parameters and of
    what the optimizer keeps for them. A dense layer or a convolution is split by the features it
    gives ("outputs"), and the next, if nothing between them needs all features, by those it takes
    ("inputs"): the two need one exchange in the forward pass and one in the backward pass.
    Attention is split by "heads". `splits` says which layers are split, by their names, and how
    ("auto": whatever fits); without it, all whose weight has at least `least` elements.

    `samples` says which ranks share the samples of a batch. With "data", those along "model" all
    compute on the same ones. With "all", each rank has its own, and those of the ranks along
    "model" are gathered where the first split layer begins: convolutions are data parallel then,
    and dense layers (of which alone large ones are split without `splits`) model parallel.

    The numbers are those of one process. Between epochs, and for checkpoints, everything is as one
    process would have it.

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
    ...     strategy = parallel.Hybrid(mesh, {"hidden": "outputs"}, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(4, work)
    >>> np.allclose(losses, [model().fit((x, 2 * x), verbose=0)["loss"]] * 4)
    True
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        splits: Mapping[str, str] | None = None,
        *,
        samples: str = "data",
        least: int = LEAST,
        bucket_bytes: int = BUCKET_BYTES,
        algorithm: str = "auto",
        overlap: bool = True,
        communicator: Communicator | None = None,
    ) -> None:
        where = type(self).__name__
        if not axes or not set(axes) <= {"data", AXIS}:
            raise ConfigError.build(
                where, expected='lengths of the axes "data" and "model"', got=repr(dict(axes))
            )
        if samples not in ("data", EVERYONE):
            raise ConfigError.build(where, expected='samples="data" or "all"', got=repr(samples))
        if unknown := sorted(set((splits or {}).values()) - set(WAYS)):
            raise ConfigError.build(
                where, expected="splits by " + ", ".join(WAYS), got=", ".join(map(repr, unknown))
            )
        super().__init__(
            bucket_bytes=bucket_bytes, algorithm=algorithm, overlap=overlap,
            communicator=communicator,
        )  # fmt: skip
        lengths = {"data": 1, AXIS: 1} | dict(axes)
        self.mesh = Mesh(self.communicator, lengths)
        self.communicator.axes = self.mesh.axes
        self.in_plans.axes = Mesh(self.in_plans, lengths).axes
        self.splits = splits
        self.samples = samples
        self.least = least
        self._rank, self._ranks = self.mesh.coordinates[AXIS], self.mesh.shape[AXIS]
        self._model: Layer | None = None
        self._optimizer: Optimizer | None = None
        self._split: dict[Variable, Split] = {}
        self._part: dict[Variable, Variable] = {}
        self._whole: dict[Variable, Variable] = {}
        self._slopes: dict[Node, bool] = {}
        self._graph = self._new_graph()
        self._is_apart = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mesh.shape}, samples={self.samples!r})"

    @property
    def reader(self) -> tuple[int, int]:
        if self.samples == "data":
            return self.mesh.coordinates["data"], self.mesh.shape["data"]
        return super().reader

    # --- graphs

    def _new_graph(self) -> Spreading:
        parts = {whole.node: (part.node, self._split[whole]) for whole, part in self._part.items()}
        return Spreading(self._rank, self._ranks, parts)

    def parts(self, share: Share) -> list[Share]:
        # A program is about to be written.
        self._graph = self._new_graph()
        return [share if self.samples == "data" else self._of_group(share)]

    def _of_group(self, share: Share) -> Share:
        """The samples of all ranks along "model"."""
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

    def over_all(self, values: Sequence[Expr]) -> list[Expr]:
        if not self.several:
            return list(values)
        # Ranks along "model" have the same values: the sums are so many times too large.
        wide = [op.cast(value, "float64").node for value in values]
        sums = summed(wide, Message("sum", EVERYONE, next_number(), now=True))
        means = [Expr(each) / float(self._ranks) for each in sums]
        return [op.cast(mean, value.dtype) for mean, value in zip(means, values, strict=True)]

    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        (node,) = self._graph.written([loss.node])
        # Each rank has a part of the loss of the whole job: that of its samples, divided by the
        # ranks that compute the same.
        own = Expr(node) * (1.0 / self._ranks)
        variables = [self._part.get(each, each) for each in parameters]
        order = in_backward_order(own, variables)
        found = op.grad(own, variables, unused="zero")
        self._graph.keep([own.node, *(each.node for each in found)])
        exchanged: dict[int, Expr] = dict(enumerate(found))
        for axis, wanted in (("data", True), (EVERYONE, False)):
            if self.in_plans.along(axis).size == 1:
                continue
            chosen = [index for index in order if (variables[index] in self._whole) == wanted]
            for bucket in buckets(found, chosen, self.bucket_bytes):
                message = Message("sum", axis, next_number(), now=not self.overlap)
                sums = summed([found[index].node for index in bucket], message)
                exchanged |= {i: Expr(each) for i, each in zip(bucket, sums, strict=True)}
        self._slopes = {
            exchanged[index].node: variable in self._whole
            for index, variable in enumerate(variables)
        }
        return [variables[index] for index in order], [exchanged[index] for index in order]

    @contextmanager
    def updating(self) -> Iterator[None]:
        with spread(self._whole, AXIS, self._slopes):
            yield

    def written(self, programs: Sequence[Sequence[Expr]]) -> list[Expr]:
        (program,) = programs
        return [Expr(node) for node in self._graph.written([each.node for each in program])]

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        how = {"mesh": self.mesh.shape, "splits": self.splits, "samples": self.samples}
        super().agree({**given, **how, "least": self.least})

    def begin(self, model: Layer, optimizer: Optimizer) -> None:
        super().begin(model, optimizer)
        self._model, self._optimizer = model, optimizer
        self._split, self._part, self._whole = {}, {}, {}

    def prepare(self, network: Callable[[int], Sequence[Expr]]) -> None:
        if self._model is None or self._optimizer is None or self._part or self._ranks == 1:
            return
        chosen = chosen_layers(
            self._model, self._ranks, self.splits, least=self.least,
            dense_only=self.samples == EVERYONE,
        )  # fmt: skip
        self._split = splits_of(chosen, network(self._ranks), self._rank, self._ranks)
        for whole, split in self._split.items():
            part = variable_like(whole, split.shape(whole.shape, self._rank))
            self._part[whole], self._whole[part] = part, whole
            self._optimizer.hand_over(whole, part, self._part_like(split))

    def _part_like(self, split: Split) -> Callable[[Variable], Variable]:
        def made(kept: Variable) -> Variable:
            own = split.part_of(kept.numpy(), self._rank)
            return variable_like(kept, own.shape, own)

        return made

    def take_apart(self) -> None:
        self._is_apart = True
        for whole, part in self._part.items():
            part.assign(self._split[whole].part_of(whole.numpy(), self._rank))
            whole.symbol.move(Elsewhere(whole.name, part.tensor.device))

    def make_whole(self) -> None:
        self._is_apart = False
        for whole, part in self._part.items():
            value = whole_along(part.numpy(), self._split[whole], self.mesh.axis(AXIS))
            whole.symbol.move(variable_like(part, whole.shape, value).tensor)

    def end(self) -> None:
        if self._optimizer is not None:
            for whole, part in self._part.items():
                self._optimizer.hand_over(part, whole, self._whole_like(self._split[whole]))
        self._split, self._part, self._whole = {}, {}, {}
        self._model = self._optimizer = None

    def _whole_like(self, split: Split) -> Callable[[Variable], Variable]:
        def made(kept: Variable) -> Variable:
            value = whole_along(kept.numpy(), split, self.mesh.axis(AXIS))
            return variable_like(kept, value.shape, value)

        return made

    # --- checkpoints

    def holders(self, variables: Mapping[str, Variable]) -> Mapping[str, Holder]:
        if self._optimizer is None:
            return variables
        shared: dict[Variable, Holder] = {}
        for whole, part in self._part.items():
            how = (whole.shape, self._split[whole], self.mesh.axis(AXIS))
            if self._is_apart:
                shared[whole] = SplitAlong(part, *how)
            for kept in self._optimizer.kept_for(part):
                shared[kept] = SplitAlong(kept, *how)
        return {name: shared.get(each, each) for name, each in variables.items()}
