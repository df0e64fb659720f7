"""`cd.TensorBoard`: a run as event files that TensorBoard shows, also during training."""

from __future__ import annotations

import re
from collections import Counter, deque
from os import PathLike
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

from caldera.base.arguments import guarded, require
from caldera.core.graph import Node, topological
from caldera.io.events import EventFile, GraphNode
from caldera.train.callbacks import Callback
from caldera.train.metric_totals import TotalsReading
from caldera.train.tracking.summary import hyper_parameters, layer_nodes

if TYPE_CHECKING:
    from caldera.train.model import Model
    from caldera.train.run import Run

_VALIDATION = "val_"
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\-/]")
"""Characters that TensorBoard allows in no name."""


@guarded
class TensorBoard(Callback):
    """Writes a run to a folder of event files; `tensorboard --logdir FOLDER` shows them.

    After each epoch it writes the loss and the metrics, with training and validation as two lines
    of the same chart. The learning rate, the seconds and histograms of each parameter follow (every
    `histograms` epochs; 0 for never). With `every`, the mean loss of the epoch so far is written at
    intervals of `every` steps. The settings, the summary and the graph of the network are written
    once. A resumed run continues in the same charts.

    Event files need neither TensorBoard nor TensorFlow to be written.

    >>> import tempfile
    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse")
    >>> x = np.zeros((8, 1), "float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model.fit((x, x), callbacks=[cd.TensorBoard(folder)], verbose=0)
    ...     [each.name for each in Path(folder).iterdir()]
    ['train']
    """

    def __init__(
        self, folder: str | PathLike[str], *, every: int | None = None, histograms: int = 1
    ) -> None:
        require(every is None or every >= 1, "TensorBoard", "every >= 1 or None", every)
        require(histograms >= 0, "TensorBoard", "histograms >= 0", histograms)
        self.folder = Path(folder)
        self.every = every
        self.histograms = histograms
        self._files: dict[str, EventFile] = {}
        self._pending: deque[tuple[int, TotalsReading]] = deque()
        self._resumed_after = 0

    # --- moments

    def run_begins(self, run: Run) -> None:
        self._files = {}
        self._pending.clear()
        self._resumed_after = run.step
        if run.steps.strategy.communicator.rank != 0:
            return
        training = self._file("train")
        if self._resumed_after:
            return
        training.hyper_parameters(hyper_parameters(run.model))
        training.texts(0, {"summary": indent(str(run.model.summary(show=False)), "    ")})
        training.graph(network_graph(run.model))
        training.flush()

    def batch_ends(self, run: Run) -> None:
        if self.every is None or not self._files:
            return
        if run.step % self.every == 0:
            reading = run.steps.training_totals.begin_read("loss", "weight")
            self._pending.append((run.step, reading))
        # Values that have not arrived yet are written later, without waiting for the device.
        while self._pending and self._pending[0][1].done():
            self._write_pending()

    def epoch_ends(self, run: Run) -> None:
        if not self._files:
            return
        while self._pending:
            self._write_pending()
        numbers = run.history.last_numbers()
        validated = {k: v for k, v in numbers.items() if k.startswith(_VALIDATION)}
        trained = {k: v for k, v in numbers.items() if k not in validated}
        self._file("train").scalars(run.step, trained)
        if validated:
            values = {name.removeprefix(_VALIDATION): v for name, v in validated.items()}
            self._file("validation").scalars(run.step, values)
        if self.histograms and run.epoch % self.histograms == 0:
            arrays = {each.name: each.numpy() for each in run.model.parameters()}
            self._file("train").histograms(run.step, arrays)
        for file in self._files.values():
            file.flush()

    def run_ends(self, run: Run) -> None:
        if "train" in self._files:
            self._files["train"].ended(well=not run.failed)
        for file in self._files.values():
            file.close()
        self._files = {}

    # --- files

    def _file(self, part: str) -> EventFile:
        """The file of training or validation, opened when it is first needed."""
        if part not in self._files:
            self._files[part] = EventFile(self.folder / part)
            if self._resumed_after:
                # The steps after the checkpoint are done, and written, once more.
                self._files[part].restart(self._resumed_after + 1)
        return self._files[part]

    def _write_pending(self) -> None:
        step, reading = self._pending.popleft()
        self._file("train").scalars(step, {"loss_within_epoch": reading.loss()})


# --- the graph of a network, with each node inside of the box of its layer


def network_graph(model: Model) -> list[GraphNode]:
    """Return the graph of the network for a batch, in evaluation.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    >>> [(node.name, node.inputs) for node in network_graph(model)][-1]
    ('output', ('1-Dense/add',))
    """
    _, outputs, traced = model.expressions(model.samples_traced)
    scopes: dict[Node, str] = {}
    for call in traced.calls:
        for node in layer_nodes(call.inputs, call.outputs):
            # The innermost layer has the longest path.
            scopes[node] = max(scopes.get(node, ""), call.layer.path, key=len)
    return _drawn(scopes, {name: each.node for name, each in outputs.items()})


def _drawn(scopes: dict[Node, str], outputs: dict[str, Node]) -> list[GraphNode]:
    names: dict[Node, str] = {}
    used: Counter[str] = Counter()
    drawn = []
    for node in topological(list(outputs.values())):
        names[node] = _unused(_name(node, scopes.get(node, "")), used)
        drawn.append(
            GraphNode(
                names[node],
                node.op.name,
                tuple(names[given] for given in node.inputs),
                tuple(spec.shape for spec in node.outputs),
            )
        )
    for name, node in outputs.items():
        drawn.append(GraphNode(_unused(name, used), "output", (names[node],)))
    return drawn


def _name(node: Node, scope: str) -> str:
    symbol = node.attrs.get("symbol")
    if symbol is not None and symbol.name:
        name = symbol.name
    else:
        name = f"{scope}/{node.op.name}" if scope else node.op.name
    return _FORBIDDEN.sub("_", name)


def _unused(name: str, used: Counter[str]) -> str:
    used[name] += 1
    return name if used[name] == 1 else f"{name}_{used[name] - 1}"
