"""Results of each epoch for CSV files, TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import re
from collections import Counter, deque
from io import StringIO
from os import PathLike
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from caldera.base.arguments import guarded, require
from caldera.base.file_cache import write_file
from caldera.base.registry import optional_import
from caldera.core.graph import Node, topological
from caldera.io.csv_files import TableWriter
from caldera.io.events import EventFile, GraphNode
from caldera.train.callbacks import Callback
from caldera.train.metric_totals import TotalsReading
from caldera.train.tracking.summary import hyper_parameters, layer_nodes

if TYPE_CHECKING:
    from caldera.train.model import Model
    from caldera.train.run import Run


@guarded
class CSVLogger(Callback):
    """Writes the results of each epoch to a CSV file, which is complete after every epoch.

    A resumed run writes the epochs before it too. Rank 0 writes.

    >>> import tempfile
    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse")
    >>> x = np.zeros((8, 1), "float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = cd.CSVLogger(f"{folder}/log.csv")
    ...     _ = model.fit(x, x, callbacks=[log], epochs=2, verbose=0)
    ...     print(log.path.read_text().splitlines()[0])
    epoch,loss,mae,seconds
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)

    def epoch_ends(self, run: Run) -> None:
        if run.communicator.rank:
            return
        epochs, columns = run.history.curves()
        file = StringIO(newline="")
        writer = TableWriter(file)
        writer.writerow(["epoch", *columns])
        writer.writerows(zip(epochs, *columns.values(), strict=True))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, file.getvalue())


class _Tracker(Callback):
    """Base class of callbacks that log to a service; a resumed training continues its old run."""

    run_id = ""

    def state(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def take_back(self, state: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.run_id = str(state["run_id"])


@guarded
class MLflow(_Tracker):
    """Logs settings and the results of each epoch to MLflow (`pip install mlflow`).

    `uri` is a server or a database (`sqlite:///runs.db`), else the value of `MLFLOW_TRACKING_URI`.
    In `with mlflow.start_run()` that run is used; else a run of `experiment` is made, and a resumed
    training continues it. Rank 0 logs.

    >>> import caldera as cd
    >>> cd.MLflow("houses", name="wide").experiment
    'houses'
    """

    def __init__(self, experiment: str = "Default", *, name: str = "", uri: str = "") -> None:
        self.experiment, self.name, self.uri = experiment, name, uri
        self._client: Any = None
        self._is_own = False

    def run_begins(self, run: Run) -> None:
        if run.communicator.rank:
            return
        mlflow = optional_import("mlflow", "mlflow", "cd.MLflow")
        self._client = mlflow.MlflowClient(tracking_uri=self.uri or None)
        around = None if self.uri else mlflow.active_run()
        self._is_own = around is None
        if around is not None:
            self.run_id = around.info.run_id
        elif self.run_id and run.step:
            self._client.update_run(self.run_id, "RUNNING")
        else:
            known = self._client.get_experiment_by_name(self.experiment)
            number = (
                known.experiment_id if known else self._client.create_experiment(self.experiment)
            )
            made = self._client.create_run(number, run_name=self.name or None)
            self.run_id = made.info.run_id
        # MLflow refuses another value of a parameter that a run has.
        logged = self._client.get_run(self.run_id).data.params
        for name, value in hyper_parameters(run.model).items():
            if name not in logged:
                self._client.log_param(self.run_id, name, value)

    def epoch_ends(self, run: Run) -> None:
        for name, value in run.history.last_numbers().items() if self._client is not None else ():
            self._client.log_metric(self.run_id, name, value, step=run.epoch)

    def run_ends(self, run: Run) -> None:
        if self._client is not None and self._is_own:
            self._client.set_terminated(self.run_id, "FAILED" if run.failed else "FINISHED")
        self._client = None


@guarded
class WandB(_Tracker):
    """Logs settings and the results of each epoch to Weights & Biases (`pip install wandb`).

    A run that `wandb.init` has made is used and left open; else one is made with `settings`, which
    are arguments of `wandb.init` such as `mode="offline"`, `dir=` or `tags=`. A resumed training
    continues its run. Rank 0 logs.

    >>> import caldera as cd
    >>> cd.WandB("houses", mode="offline").project
    'houses'
    """

    def __init__(self, project: str = "", *, name: str = "", **settings: Any) -> None:
        self.project, self.name, self.settings = project, name, settings
        self._run: Any = None
        self._is_own = False
        self._steps_before = 0

    def run_begins(self, run: Run) -> None:
        if run.communicator.rank:
            return
        wandb = optional_import("wandb", "wandb", "cd.WandB")
        self._is_own = wandb.run is None
        self._run = wandb.run
        # Weights & Biases ignores values of steps before its last one.
        self._steps_before = 0 if self._is_own or run.step else self._run.step
        config = hyper_parameters(run.model)
        if self._run is not None:
            self._run.config.update(config, allow_val_change=True)
            return
        known = {"project": self.project, "name": self.name}
        if self.run_id and run.step:
            known |= {"id": self.run_id, "resume": "allow"}
        given = {name: value for name, value in known.items() if value}
        self._run = wandb.init(**{**given, "config": config, **self.settings})
        self.run_id = str(self._run.id)

    def epoch_ends(self, run: Run) -> None:
        if self._run is not None:
            self._run.log(run.history.last_numbers(), step=self._steps_before + run.epoch)

    def run_ends(self, run: Run) -> None:
        if self._run is not None and self._is_own:
            self._run.finish(exit_code=int(run.failed))
        self._run = None


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
        """Return the file of training or validation, opened when it is first needed."""
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
