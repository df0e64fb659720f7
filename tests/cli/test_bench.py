"""`caldera bench`, from the command line to its files. Only Caldera itself is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caldera.bench import contestants, session
from caldera.bench.worker_process import WorkerError, WorkerHandle
from caldera.cli.commands import bench as command
from tests.cli.conftest import Caldera


@pytest.mark.usefixtures("compiled_before")
def test_caldera_alone_is_measured_from_end_to_end(caldera: Caldera, tmp_path: Path) -> None:
    files = tmp_path / "bench.json", tmp_path / "bench.html"
    done = caldera(
        "bench",
        "mlp",
        "--quick",
        "--peers",
        "",
        "--repeats",
        2,
        "--threads",
        1,
        "--accuracy",
        "strict",
        "--json",
        files[0],
        "--html",
        files[1],
    )
    assert done.status == 0, done.err
    found = json.loads(files[0].read_text())
    (only,) = found["entries"]
    assert (only["case"], only["setting"]) == ("mlp", "strict")
    assert len(only["rounds"]) == 2
    assert only["first_cold_s"] > 0
    assert len(only["first_warm_s"]) == 1
    assert only["growth_bytes"] > 0
    assert 0 < only["loss"] < 10
    assert only["equality"]["holds"] is None
    assert found["options"]["threads"] == 1
    assert "caldera strict" in done.out
    assert "not checked" in done.out
    assert "caldera strict" in files[1].read_text()


@pytest.mark.usefixtures("compiled_before")
def test_single_computations_run_in_one_process(caldera: Caldera) -> None:
    done = caldera(
        "bench",
        "gemm",
        "--quick",
        "--peers",
        "",
        "--repeats",
        1,
        "--threads",
        1,
        "--accuracy",
        "strict",
    )
    assert done.status == 0, done.err
    assert "gemm: 100x528x784 NN" in done.out
    assert "GFLOP/s" in done.out


def test_a_missing_peer_is_named(caldera: Caldera, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "find_spec", lambda name: None)
    monkeypatch.setattr(session.BenchSession, "_measure_work", lambda self, work, folder: None)
    done = caldera("bench", "mlp", "--peers", "torch,jax")
    assert done.status == 0
    assert "torch is not installed, so it is missing here: pip install torch" in done.out
    assert "jax is not installed" in done.out


def test_a_contestant_that_fails_is_reported(
    caldera: Caldera, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(self: WorkerHandle, do: str, **more: object) -> dict[str, object]:
        raise WorkerError.build(self.contestant.label, got="a worker that died: no beads")

    monkeypatch.setattr(WorkerHandle, "ask", ask)
    done = caldera("bench", "mlp", "--peers", "", "--quick", "--accuracy", "fast")
    assert done.status == 1
    assert "no beads" in " ".join(done.out.split())


def test_ctrl_c_ends_the_run_and_not_the_report(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def ask(self: WorkerHandle, do: str, **more: object) -> dict[str, object]:
        if do == "measure":
            if len(measured) == 3:
                raise KeyboardInterrupt
            measured.append(do)
        return {"first s": 0.1, "loss": 1.0, "steps": 5, "times": [0.002], "peak": 1, "growth": 1}

    monkeypatch.setattr(WorkerHandle, "ask", ask)
    done = caldera(
        "bench",
        "gemm",
        "mlp",
        "training",
        "--peers",
        "",
        "--quick",
        "--repeats",
        2,
        "--accuracy",
        "strict",
        "--json",
        tmp_path / "b.json",
        "--mllog",
        tmp_path / "b.log",
    )
    assert done.status == 130
    assert "stopped by Ctrl-C: these are the measurements until then; not begun: mlp, " in done.out
    assert "gemm: 100x528x784 NN" in done.out
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["stopped"]
    first, second = found["entries"]
    assert (len(first["rounds"]), len(second["rounds"])) == (2, 1)
    assert not (tmp_path / "b.log").exists()


def test_the_list_names_work_and_peers(caldera: Caldera, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "find_spec", lambda name: None)
    out = caldera("bench", "--list").out
    for name in ("mlp-depth", "resnet50", "optimizers", "input"):
        assert any(line.split()[:1] == [name] for line in out.splitlines())
    assert "missing: pip install jax" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lenet"], "caldera bench: expected a work, got 'lenet'; did you mean 'lenet5'?"),
        ([], "expected a workload to measure, got nothing"),
        (["mlp", "--peers", "tourch"], "--peers: expected a peer, got 'tourch'; did you mean"),
        (["mlp", "--repeats", "0"], "--repeats: expected an integer >= 1, got '0'"),
        (["mlp", "--threads", "4096"], "--threads: expected at most"),
        (["mlp", "--device", "tpu"], "--device: expected a device, got 'tpu'; did you mean 'cpu'?"),
        (["mlp", "--accuracy", "fats"], "--accuracy: expected an accuracy, got 'fats'; did you"),
        (["mlp", "--mllog", "x.log"], "--mllog: expected a training to an accuracy, got mlp"),
        (["mlp", "--json", "no/such/folder/x.json"], "--json: expected a file in a folder that"),
    ],
)
def test_mistakes_are_one_line_that_helps(caldera: Caldera, words: list[str], message: str) -> None:
    done = caldera("bench", *words)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_training_is_measured_and_again(
    caldera: Caldera, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the command line to a worker, its files, and the same run once more."""
    epoch = {"unit": "s, accuracy", "value": [0.1, 0.96]}
    nothing = {"unit": "B", "value": None}
    reply = {
        "seconds": 0.1,
        "accuracy": 0.96,
        "steps": 30,
        "epochs": 1,
        "overhead": 0.001,
        "load s": 0.1,
        "began": 1.8e9,
        "samples": 1438,
        "test samples": 359,
        "metrics": {
            "curve": epoch,
            "peak memory": {"unit": "B", "value": 1e8},
            "bytes sent": nothing,
        },
    }
    asked = []

    def ask(self: WorkerHandle, do: str, **more: object) -> dict[str, object]:
        asked.append((do, more["seed"], more["epochs"]))
        return dict(reply)

    monkeypatch.setattr(WorkerHandle, "ask", ask)
    files = [tmp_path / name for name in ("t.json", "t.html", "t.log")]
    done = caldera(
        "bench",
        "training",
        "--quick",
        "--peers",
        "",
        "--accuracy",
        "strict",
        "--threads",
        1,
        "--json",
        files[0],
        "--html",
        files[1],
        "--mllog",
        files[2],
    )
    assert done.status == 0, done.err
    assert asked == [("learn", 0, 1), *(("learn", seed, None) for seed in range(3))]
    assert "96.00% ± 0.00%" in done.out
    assert ":::MLLOG" in files[2].read_text()
    found = json.loads(files[0].read_text())
    assert found["format"] == "caldera bench 2"
    assert {"version", "sources"} <= found["code"].keys()
    assert found["entries"][0]["seeds"] == [0, 1, 2]
    (checked,) = json.loads(caldera("check", "--json", files[0]).out)
    broken = [each["rule"] for each in checked["verdicts"] if each["status"] != "fine"]
    assert broken == ["peers"], "no peer took part"
    monkeypatch.setattr(command, "previous_sources", lambda code, folder: None)
    again = caldera("bench", "--again", files[0])
    assert again.status == 0, again.err
    assert "compared by their files" in again.err
    assert "1 of 1 within noise" in again.out
    reply["seconds"] = 0.12
    slower = caldera("bench", "--again", files[0])
    assert slower.status == 1
    assert "training digits mlp, caldera strict: slower (+20.0%" in slower.out
    # The code of before is as slow on this machine today.
    monkeypatch.setattr(command, "previous_sources", lambda code, folder: folder)
    beside = caldera("bench", "--again", files[0])
    assert beside.status == 0, beside.err
    assert "in turns with the code of before; +20.0% to the file" in beside.out
    assert "1 of 1 within noise" in beside.out
    assert "expected no further workload" in caldera("bench", "mlp", "--again", files[0]).err
