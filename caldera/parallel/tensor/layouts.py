"""Layers in layouts of their own: what each rank has of their parameters and of what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caldera.base.formatting import bytes_text
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.sharding.explanation import moves_table, shortened, summary
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.propagation import Move
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.parallel.distributed_variables import AXIS
from caldera.parallel.tensor.layer_layouts import (
    Key,
    Wanted,
    check_layouts,
)
from caldera.parallel.tensor.tensor_parallel import EVERYONE, Hybrid
from caldera.train.strategy import Gradients


@dataclass(frozen=True)
class StepExplanation:
    """What a training step is made of: the layouts of `parameters` by name, the `moves` of the
    forward pass, each of which has its like on the way back, and the bytes of gradients that are
    `summed` over ranks. Printed, it is a table."""

    parameters: Mapping[str, ShardLayout]
    moves: Sequence[Move]
    summed: int

    def __str__(self) -> str:
        lines = [f"{'parameter':30}  {'shape':18}  layout"]
        for name, layout in self.parameters.items():
            lines.append(f"{shortened(name, 30):30}  {layout.shape!s:18}  {summary(layout)}")
        lines += ["", *moves_table(self.moves), ""]
        moved = sum(move.nbytes for move in self.moves)
        lines.append(f"forwards in all: {bytes_text(moved)}")
        return "\n".join([*lines, f"gradients summed over all ranks: {bytes_text(self.summed)}"])

    __repr__ = __str__


class Layouts(Hybrid):
    """Each layer in a layout of its own: the parameters it has, and what it gives.

    `layouts` has them by the names of layers, by their numbers in the model, or by classes of
    layers; what is said of a layer holds for those inside it. A layout is one of `caldera.dmath`
    (`Rows()`, `Columns()`, `Axis(1)`, `Grid(2, 2)`, `Replicated()`, `Blocks(...)`) or a word:

    - "rows": what the layer gives is shared out by samples, and every rank has its parameters;
    - "columns": by features (channels of images), and so are the parameters that belong to these;
    - "inputs": the weight is shared out by the features that the layer takes;
    - "replicated": every rank has everything; "auto": as the layers before it suggest.

    A layout is that of what the layer gives; parameters follow it. For more, a dictionary has
    layouts for parameters by name, and for the "output". What nobody says anything about is where
    it has to be moved least: samples are shared out by all ranks, and parameters are everywhere.
    With "auto" in place of all, layers with more parameters than features are in parts, as in the
    hybrids of data-parallel convolutions and model-parallel dense layers.

    The numbers are those of one process, whatever the layouts. Between epochs, and for
    checkpoints, everything is as one process would have it.

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
        """What moves where in a training step, after training has begun.

        >>> from caldera import parallel
        >>> parallel.Layouts().explain()
        Traceback (most recent call last):
        caldera.errors.ConfigError: Layouts.explain: expected a strategy that has trained, got \
one that has not; give it to model.fit(parallel=...) first
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
