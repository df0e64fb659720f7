"""`cd.CSVLogger`, `cd.MLflow` and `cd.WandB`: their own readers find what a run logged."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
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
