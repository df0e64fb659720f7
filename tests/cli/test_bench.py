"""`caldera bench`, from the command line to its files. Only Caldera itself is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caldera.bench import contestants, session
from caldera.bench.worker_process import WorkerError, WorkerHandle
from tests.cli.conftest import Caldera


@pytest.mark.usefixtures("compiled_before")
def test_caldera_alone_is_measured_from_end_to_end(caldera: Caldera, tmp_path: Path) -> None:
    files = tmp_path / "bench.json", tmp_path / "bench.html"
    done = caldera(
        "bench", "mlp", "--quick", "--peers", "", "--repeats", 2, "--threads", 1,
        "--accuracy", "strict", "--json", files[0], "--html", files[1],
    )  # fmt: skip
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
        "bench", "gemm", "--quick", "--peers", "", "--repeats", 1, "--threads", 1,
        "--accuracy", "strict",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "gemm: 100x528x784 NN" in done.out
    assert "GFLOP/s" in done.out


def test_a_missing_peer_is_named(caldera: Caldera, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "find_spec", lambda name: None)
    monkeypatch.setattr(session.Session, "_measure_work", lambda self, work, folder: None)
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
        ([], "expected what to measure, got nothing"),
        (["mlp", "--peers", "tourch"], "--peers: expected a peer, got 'tourch'; did you mean"),
        (["mlp", "--repeats", "0"], "--repeats: expected a whole number of at least 1, got '0'"),
        (["mlp", "--threads", "4096"], "--threads: expected at most"),
        (["mlp", "--device", "tpu"], "--device: expected a device, got 'tpu'; did you mean 'cpu'?"),
        (["mlp", "--accuracy", "fats"], "--accuracy: expected an accuracy, got 'fats'; did you"),
        (["mlp", "--json", "no/such/folder/x.json"], "--json: expected a file in a folder that"),
    ],
)
def test_mistakes_are_one_line_that_helps(caldera: Caldera, words: list[str], message: str) -> None:
    done = caldera("bench", *words)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
