"""What is computed on a card, on a device that the host plays; captures with a torch of straw."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caldera.bench.comparison import checked_on_card, written
from caldera.bench.frameworks import FRAMEWORKS, Framework
from caldera.bench.frameworks.base import BenchTask, Restartable
from caldera.bench.frameworks.caldera_tasks import FitTask
from caldera.bench.frameworks.torch_tasks import WARM_UP_STEPS, CapturedStep
from caldera.bench.timing import first_call, timed
from caldera.bench.workloads import Rule, TrainingCase
from caldera.bench.workloads.base import read_batches, write_batches
from caldera.bench.workloads.training import _mlp

CASE = TrainingCase(
    "small", layers=lambda: _mlp(2), batch=4, shape=(784,), rule=Rule("adam", 0.01), card_epoch=16
).on("loopback")


def _framework(**options: Any) -> Framework:
    return FRAMEWORKS["caldera"](
        {"accuracy": "strict", "device": "loopback", "precision": "float32", **options}, 1
    )


def _expected(steps: int) -> list[float]:
    """The losses on the CPU, step by step."""
    cpu = FRAMEWORKS["caldera"]({"accuracy": "strict"}, 1)
    return cpu.trainer(CASE, "float32").losses(steps)


def test_steps_on_data_that_lie_there_are_those_of_the_cpu_and_can_be_restarted() -> None:
    task = _framework().task(CASE)
    assert isinstance(task, Restartable)
    for _ in range(3):
        task.call()
    task.wait()
    task.restart()
    loss, gradients = task.gradients()
    expected = _expected(20)
    assert loss == pytest.approx(expected[0], rel=1e-6)
    assert all(gradient.any() for gradient in gradients)
    # More steps than an epoch has.
    assert task.losses(20) == pytest.approx(expected, rel=1e-5)


def test_fit_is_held_after_its_first_step_and_after_each_epoch() -> None:
    task = _framework(fit=True).task(CASE)
    assert isinstance(task, FitTask)
    assert task.steps_per_call == 16
    assert first_call(task) > 0
    done = [int(task._model.optimizer.step.numpy())]
    for _ in range(2):
        task.call()
        done.append(int(task._model.optimizer.step.numpy()))
    assert done == [1, 16, 32]
    assert len(timed(task, seconds=0.0, least=2).wall) == 2


def test_the_epochs_of_fit_have_the_mean_losses_of_their_steps() -> None:
    task = _framework(fit=True).task(CASE)
    assert isinstance(task, FitTask)
    expected = np.array(_expected(16)).reshape(2, 8).mean(1)
    assert task.epoch_losses(2) == pytest.approx(list(expected), rel=1e-5)


def test_an_error_inside_fit_is_raised_where_it_is_called() -> None:
    task = _framework(fit=True).task(CASE)
    assert isinstance(task, FitTask)
    task._data = None  # type: ignore[assignment]
    with pytest.raises(Exception, match="expected"):
        task.call()


def test_the_task_that_is_timed_is_the_one_that_is_checked(tmp_path: Path) -> None:
    framework = _framework()
    task = framework.task(CASE)
    task.call()
    found = checked_on_card(framework, task, CASE, tmp_path, quick=True, truth=True, float64=True)
    assert found["steps"] == len(found["curve"]) == 16
    assert found["first loss"] == pytest.approx(found["curve"][0], rel=1e-6)
    assert len(found["float64"]) == 5
    assert found["float64"][0] == pytest.approx(found["first loss"], rel=1e-6)
    assert [each.dtype.name for each in written(tmp_path)] == ["float32"] * 4
    assert [each.dtype.name for each in written(tmp_path / "float64")] == ["float64"] * 4
    fit = _framework(fit=True)
    means = checked_on_card(fit, fit.task(CASE), CASE, tmp_path, quick=True)
    assert means["epochs"] == pytest.approx(
        list(np.array(found["curve"]).reshape(2, 8).mean(1)), rel=1e-5
    )


def test_memory_of_the_device_is_counted_from_where_it_is_told() -> None:
    framework = _framework()
    task = framework.task(CASE)
    first_call(task)
    framework.reset_card_peak()
    task.call()
    task.wait()
    assert framework.card_peak() > 0


def test_batches_in_files_are_those_that_are_drawn(tmp_path: Path) -> None:
    write_batches(CASE, tmp_path)
    for dtype, batch in (("float32", None), ("float64", 2)):
        drawn = CASE.data(dtype, batch)
        found = _framework(data=str(tmp_path)).batches(CASE, dtype, batch)
        assert len(found) == len(drawn) == 8
        for (x, y), (expected_x, expected_y) in zip(found, drawn, strict=True):
            assert x.dtype == expected_x.dtype
            assert np.array_equal(x, expected_x)
            assert np.array_equal(y, expected_y)
            assert x.flags.writeable


def test_words_in_files_stay_whole_numbers(tmp_path: Path) -> None:
    case = TrainingCase("words", batch=2, shape=(3,), words=5, classes=5)
    write_batches(case, tmp_path)
    assert read_batches(case, tmp_path, "float64")[0][0].dtype == np.int64


class _Slow(BenchTask):
    """A call that is launched at once, and a wait that takes a while whatever was launched."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self._count = 0

    def call(self) -> None:
        self._count += 1

    def wait(self) -> None:
        self.launched.append(self._count)
        time.sleep(2e-3 + 1e-4 * self._count)
        self._count = 0

    def results(self) -> list[Any]:
        return []


def test_so_many_calls_are_waited_for_together_that_the_wait_does_not_matter() -> None:
    task = _Slow()
    assert len(timed(task, seconds=0.0, least=3, shortest=20e-3).wall) == 3
    # One call by itself seems to take 2.1 ms, of which ten would be enough; but many take 0.1 ms.
    assert task.launched[0] == 1
    assert task.launched[-1] >= 20


class _Straw:
    """What `CapturedStep` uses of torch, written down as it is used."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.cuda = SimpleNamespace(
            Stream=lambda: SimpleNamespace(wait_stream=lambda other: self.log.append("side waits")),
            current_stream=lambda: SimpleNamespace(
                wait_stream=lambda other: self.log.append("main waits")
            ),
            stream=lambda stream: self._inside("side"),
            CUDAGraph=lambda: SimpleNamespace(replay=lambda: self.log.append("replay")),
            graph=lambda graph, stream: self._inside("capture"),
            reset_peak_memory_stats=lambda: self.log.append("reset"),
            max_memory_allocated=lambda: 77,
        )

    @contextmanager
    def _inside(self, what: str) -> Any:
        self.log.append(f"{what} (")
        yield
        self.log.append(")")


class _Tensor:
    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name

    def clone(self) -> _Tensor:
        return _Tensor(self.log, f"static {self.name}")

    def copy_(self, other: _Tensor) -> None:
        self.log.append(f"{self.name} = {other.name}")


def test_a_step_is_captured_after_steps_that_are_taken_back() -> None:
    straw = _Straw()
    log = straw.log
    peaks: list[int] = []

    def step(x: _Tensor, y: _Tensor) -> str:
        log.append(f"step {x.name}, {y.name}")
        return "loss"

    x, y = _Tensor(log, "x"), _Tensor(log, "y")
    captured = CapturedStep(straw, step, (x, y), lambda: log.append("take back"), peaks.append)
    made = "step static x, static y"
    assert log == [
        "side waits",
        "side (",
        *[made] * WARM_UP_STEPS,
        ")",
        "main waits",
        "take back",
        "reset",
        "capture (",
        made,
        ")",
    ]
    assert peaks == [77]
    log.clear()
    other = _Tensor(log, "other")
    assert captured(other, y) == "loss"
    assert log == ["static x = other", "static y = y", "replay"]
