"""`cd.CSVLogger`, `cd.MLflow` and `cd.WandB`: their own readers find what a run logged."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn

X = np.random.default_rng(0).normal(size=(40, 2)).astype("float32")
Y = (X[:, 0] > X[:, 1]).astype("int64")


def _model(epochs: int = 3) -> cd.NeuralNetwork:
    layers = [nn.Input((2,)), nn.Dense(2)]
    return cd.NeuralNetwork(layers, batch_size=10, learning_rate=0.05, epochs=epochs)


def _fit(callback: cd.Callback, epochs: int = 3, **settings: Any) -> cd.History:
    return _model(epochs).fit(
        X, Y, validation=(X[:20], Y[:20]), callbacks=[callback], verbose=0, **settings
    )


def _resumed(make: Callable[[], cd.Callback], folder: Path) -> cd.History:
    """A run of two epochs, and another process that goes on to the fourth."""
    _fit(make(), 2, checkpoint=folder)
    return _fit(make(), 4, checkpoint=folder, resume=True)


def test_a_csv_file_has_each_epoch_once(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log.csv"
    history = _resumed(lambda: cd.CSVLogger(log), tmp_path / "states")
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4]
    for name in ("loss", "accuracy", "val_loss"):
        assert [float(row[name]) for row in rows] == pytest.approx(history[name])


def test_mlflow_has_settings_and_epochs(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow")
    uri = f"sqlite:///{tmp_path}/runs.db"
    history = _resumed(lambda: cd.MLflow("houses", uri=uri), tmp_path / "states")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("houses").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer"] == "Adam"
    logged = client.get_metric_history(run.info.run_id, "val_loss")
    assert [each.step for each in logged] == [1, 2, 3, 4]
    assert [each.value for each in logged] == pytest.approx(history["val_loss"])
    mlflow.set_tracking_uri(uri)
    with mlflow.start_run() as around:
        _fit(cd.MLflow())
        assert mlflow.active_run() is not None
    found = client.get_run(around.info.run_id)
    assert found.data.metrics["learning_rate"] == pytest.approx(0.05)


def test_weights_and_biases_logs_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is missing: pip install wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged: list[tuple[int, dict[str, float]]] = []
    whole = wandb.sdk.wandb_run.Run.log

    def log(self: Any, values: dict[str, float], step: int | None = None, **more: Any) -> None:
        logged.append((step or 0, values))
        whole(self, values, step=step, **more)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", log)
    history = _fit(cd.WandB("houses", mode="offline", dir=str(tmp_path)))
    assert wandb.run is None
    assert [step for step, _ in logged] == [1, 2, 3]
    assert [values["val_loss"] for _, values in logged] == pytest.approx(history["val_loss"])
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    with wandb.init(mode="offline", dir=str(tmp_path)) as around:
        _fit(cd.WandB())
        assert wandb.run is around
        assert around.config["optimizer"] == "Adam"


@pytest.mark.parametrize(("name", "made"), [("mlflow", cd.MLflow), ("wandb", cd.WandB)])
def test_what_is_not_installed_is_named(
    name: str, made: Callable[[], cd.Callback], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(cd.ConfigError, match=f"pip install {name}"):
        _fit(made())


class _Server:
    """The part of `mlflow` that `cd.MLflow` calls, with MLflow's rule on parameters."""

    def __init__(self, *, around: bool = False) -> None:
        self.runs: list[SimpleNamespace] = []
        self._around = self.create_run("0") if around else None

    def MlflowClient(self, tracking_uri: str | None) -> _Server:
        return self

    def active_run(self) -> Any:
        return self._around

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return "1"

    def create_run(self, experiment: str, run_name: str | None = None) -> Any:
        info = SimpleNamespace(run_id=f"run {len(self.runs)}", status="RUNNING")
        data = SimpleNamespace(params={}, metrics={})
        self.runs.append(SimpleNamespace(info=info, data=data))
        return self.runs[-1]

    def get_run(self, run_id: str) -> Any:
        return next(run for run in self.runs if run.info.run_id == run_id)

    def update_run(self, run_id: str, status: str) -> None:
        self.get_run(run_id).info.status = status

    set_terminated = update_run

    def log_param(self, run_id: str, name: str, value: Any) -> None:
        known = self.get_run(run_id).data.params
        assert known.setdefault(name, value) == value, "changing parameters is not allowed"

    def log_metric(self, run_id: str, name: str, value: float, step: int) -> None:
        self.get_run(run_id).data.metrics.setdefault(name, []).append((step, value))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., _Server]:
    def made(**settings: Any) -> _Server:
        found = _Server(**settings)
        monkeypatch.setitem(sys.modules, "mlflow", found)
        return found

    return made


def test_mlflow_has_models_without_a_learning_rate(server: Callable[..., _Server]) -> None:
    class Custom(cd.CustomModel):
        def __init__(self) -> None:
            super().__init__({"dense": "sgd"}, batch_size=10)
            self.dense = nn.Dense(1)

        def losses(self, x: Any) -> dict[str, Any]:
            return {"dense": cd.op.mean(self.dense(x))}

    found = server()
    history = Custom().fit(X, callbacks=[cd.MLflow()], epochs=2, verbose=0)
    metrics = found.runs[0].data.metrics
    assert metrics["dense"] == list(enumerate(history["dense"], 1))
    assert "learning_rate" not in metrics


def test_mlflow_has_the_rate_of_each_epoch(server: Callable[..., _Server]) -> None:
    found = server()
    optimizer = cd.optim.SGD(cd.optim.ReduceOnPlateau(0.1, patience=0, larger_is_better=True))
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(2)], optimizer=optimizer, epochs=3)
    history = model.fit(X, Y, validation=0.2, callbacks=[cd.MLflow()], verbose=0)
    assert len(set(history.learning_rates)) > 1
    logged = found.runs[0].data.metrics["learning_rate"]
    assert logged == list(enumerate(history.learning_rates, 1))


def test_two_models_share_a_run_of_mlflow(server: Callable[..., _Server]) -> None:
    found = server(around=True)
    for epochs in (1, 2):
        _fit(cd.MLflow(), epochs)
    assert found.runs[0].data.params["epochs"] == 1
    assert found.runs[0].info.status == "RUNNING"


def test_a_run_in_an_except_block_finishes(server: Callable[..., _Server]) -> None:
    class Broken(cd.Callback):
        def epoch_ends(self, run: Any) -> None:
            raise ValueError("out of range")

    found = server()
    with pytest.raises(ValueError, match="out of range"):
        _model().fit(X, Y, callbacks=[cd.MLflow(), Broken()], verbose=0)
    try:
        raise MemoryError
    except MemoryError:
        _fit(cd.MLflow())
    assert [run.info.status for run in found.runs] == ["FAILED", "FINISHED"]


def test_two_models_share_a_run_of_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[int, dict[str, float]] = {}
    around = SimpleNamespace(step=0, config=SimpleNamespace(update=lambda *_, **settings: None))

    def log(values: dict[str, float], step: int) -> None:
        # As Weights & Biases does, ignore steps before the last one.
        if step >= around.step:
            around.step, logged[step] = step, values

    around.log = log
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=around))
    losses = [*_fit(cd.WandB())["loss"], *_fit(cd.WandB(), 2)["loss"]]
    assert [values["loss"] for values in logged.values()] == pytest.approx(losses)
    assert list(logged) == [1, 2, 3, 4, 5]
