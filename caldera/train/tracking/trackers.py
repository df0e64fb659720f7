"""Results of each epoch in a CSV file, an MLflow server or Weights & Biases, during a run."""

from __future__ import annotations

from io import StringIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldera.base.arguments import guarded
from caldera.base.file_cache import write_file
from caldera.base.registry import optional_import
from caldera.io.csv_files import TableWriter
from caldera.train.callbacks import Callback
from caldera.train.tracking.summary import hyper_parameters

if TYPE_CHECKING:
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
    """Base class of callbacks that log to a service, where a resumed training has its old run."""

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
