"""Workers: what they answer, and what happens when they fail."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from caldera.bench import worker_process as handle_module
from caldera.bench.contestants import Contestant
from caldera.bench.worker import serve
from caldera.bench.worker_process import (
    WorkerError,
    WorkerProcess,
    from_line,
    hello,
    to_line,
    worker_environment,
)

SECONDS = 60.0
HELLO = hello("caldera", {"accuracy": "strict"}, 1)


def _script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def _answers(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    replies = io.BytesIO()
    serve(io.BytesIO(b"".join(to_line(each) for each in requests)), replies)
    return [from_line(line) for line in replies.getvalue().splitlines()]


@pytest.fixture
def _cores_as_before() -> Any:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    yield
    if before is not None:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("_cores_as_before")
def test_an_error_is_an_answer_and_the_worker_goes_on() -> None:
    wrong = {"do": "prepare", "work": "nothing", "case": ""}
    found = _answers({"do": "measure"}, wrong, HELLO, wrong)
    assert "expected prepare" in found[0]["error"]
    assert "expected hello" in found[1]["error"]
    assert "caldera" in found[2]["versions"]
    assert "expected a registered name, got 'nothing'" in found[3]["error"]
    assert "Traceback" in found[3]["traceback"]


@pytest.mark.usefixtures("_cores_as_before")
def test_losses_are_those_of_the_batch_and_the_precision_that_were_asked_for() -> None:
    few = {"do": "prepare", "work": "mlp", "case": "mlp", "batch": 4}
    losses = {"do": "losses", "steps": 2}
    half = hello("caldera", {"accuracy": "strict", "precision": "bfloat16"}, 1)
    usual = {"do": "prepare", "work": "mlp", "case": "mlp"}
    found = _answers(HELLO, losses, few, losses, usual, losses, half, few, losses)
    assert "expected a network" in found[1]["error"]
    of_few, of_usual, in_half = (found[i]["losses"] for i in (3, 5, 8))
    assert [len(each) for each in (of_few, of_usual, in_half)] == [2, 2, 2]
    assert of_few != of_usual
    # Weights are the same, products are rounded.
    assert of_few != in_half
    assert in_half == pytest.approx(of_few, rel=0.02)


def test_nothing_is_answered_after_the_end() -> None:
    assert _answers({"do": "end"}, HELLO) == []


def test_a_worker_measures_and_prints_of_libraries_do_not_disturb(tmp_path: Path) -> None:
    noisy = "import os; os.write(1, b''); print('hello', flush=True)"
    text = (
        "import sys, caldera.bench.worker as w\n"
        "real = w.BenchWorker.answer\n"
        f"def answer(self, request):\n    {noisy}\n    return real(self, request)\n"
        "w.BenchWorker.answer = answer\nw.main()\n"
    )
    environment = worker_environment(tmp_path, 1)
    with WorkerProcess("caldera strict", environment, _script(text)) as worker:
        worker.ask(HELLO, SECONDS)
        case = {"work": "gemm", "case": "100x10x528 NN"}
        first = worker.ask({"do": "prepare", **case}, SECONDS)
        assert first["first s"] > 0
        found = worker.ask({"do": "measure", "seconds": 0.0, "least": 4}, SECONDS)
    assert len(found["times"]) == 4
    assert all(0 < time < 10 for time in found["times"])
    assert found["peak"] > 0


def test_a_worker_that_dies_is_reported_with_its_last_line() -> None:
    script = "import sys; sys.stdin.readline(); raise RuntimeError('out of beads')"
    with (
        WorkerProcess("torch eager", os.environ, _script(script)) as worker,
        pytest.raises(WorkerError) as caught,
    ):
        worker.ask(HELLO, SECONDS)
    assert "torch eager: got a worker that died: RuntimeError: out of beads" in str(caught.value)


def test_a_worker_that_crashes_is_reported_with_its_signal() -> None:
    script = "import sys, os; sys.stdin.readline(); os.kill(os.getpid(), 11)"
    with (
        WorkerProcess("torch eager", os.environ, _script(script)) as worker,
        pytest.raises(WorkerError, match="SIGSEGV"),
    ):
        worker.ask(HELLO, SECONDS)


def test_a_worker_that_never_answers_is_ended() -> None:
    script = "import time; time.sleep(1000)"
    with WorkerProcess("jax jit", os.environ, _script(script)) as worker:
        with pytest.raises(WorkerError, match="expected an answer within 0 s"):
            worker.ask(HELLO, 0.2)
        with pytest.raises(WorkerError):
            worker.ask(HELLO, SECONDS)


def test_what_is_no_json_is_an_error() -> None:
    with (
        WorkerProcess("jax jit", os.environ, _script("input(); print('oops')")) as worker,
        pytest.raises(WorkerError, match="expected a JSON object in a line, got 'oops'"),
    ):
        worker.ask(HELLO, SECONDS)


def test_workers_keep_what_they_compile_apart(tmp_path: Path) -> None:
    found = worker_environment(tmp_path, 3)
    assert found["OMP_NUM_THREADS"] == found["CALDERA_THREADS"] == "3"
    for name in ("CALDERA_CACHE", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"):
        assert Path(found[name]).is_relative_to(tmp_path)


def test_a_worker_for_a_card_does_not_keep_jax_from_it(tmp_path: Path) -> None:
    assert worker_environment(tmp_path, 1)["JAX_PLATFORMS"] == "cpu"
    found = worker_environment(tmp_path, 1, "cuda")
    assert found["JAX_PLATFORMS"] == "cuda"
    for name in ("CUDA_CACHE_PATH", "CUPY_CACHE_DIR"):
        assert Path(found[name]).is_relative_to(tmp_path)


class _Clock:
    """Stands in for `time`: goes on when told to, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class _Process:
    """Takes its time to answer."""

    def __init__(self, clock: _Clock) -> None:
        self.allowed: list[float] = []
        self.clock = clock

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.allowed.append(seconds)
        self.clock.now += 0.1
        return {"import s": 0.5, "versions": {"jax": "1"}, "options": request.get("options")}

    def close(self) -> None:
        pass


def test_a_contestant_has_a_limit_for_all_its_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[_Process] = []
    clock = _Clock()

    def start(*given: Any) -> _Process:
        made.append(_Process(clock))
        return made[-1]

    monkeypatch.setattr(handle_module, "WorkerProcess", start)
    monkeypatch.setattr(handle_module, "time", clock)
    contestant = Contestant("jax", "jit", {"device": "cuda"}, "tf32")
    handle = handle_module.WorkerHandle(contestant, tmp_path, 1, limit=0.25, data=tmp_path)
    handle.ask("prepare")
    assert handle.versions == {"jax": "1"}
    handle.close()
    handle.ask("train")
    assert made[0].allowed[0] == pytest.approx(0.25)
    assert made[0].allowed[1] == pytest.approx(0.15)
    # Real data may take as long as they take.
    assert made[1].allowed[1] > 1000
    with pytest.raises(WorkerError, match=r"jax jit, tf32: expected everything within 0 s"):
        handle.ask("measure")


def test_the_code_of_before_is_imported_from_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "caldera"
    (package / "bench").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "bench" / "__init__.py").touch()
    (package / "bench" / "worker.py").write_text(
        """import json, sys\nfor line in sys.stdin:\n    print(json.dumps(
        {"import s": 0, "versions": {}, "file": __file__}), flush=True)"""
    )
    # As a user does in a clone: the present code lies in the folder where this is started.
    monkeypatch.chdir(Path(handle_module.__file__).parents[2])
    contestant = Contestant("caldera", "strict").before(str(tmp_path))
    handle = handle_module.WorkerHandle(contestant, tmp_path / "caches", 1)
    try:
        assert handle.ask("prepare")["file"] == str(package / "bench" / "worker.py")
    finally:
        handle.close()
