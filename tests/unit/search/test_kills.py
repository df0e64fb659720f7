"""A study that is killed or interrupted, at whatever moment, has all that was over and goes on."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from caldera import search
from caldera.search.record import import_optuna

TRIALS = 30


class Diary(search.StudyCallback):
    """Writes what happens into a file, a line at once, as it is written down in the study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def trial_begins(self, study: search.Study, trial: search.Trial) -> None:
        note(self.folder, f"begins {trial.number}")

    def trial_ends(self, study: search.Study, trial: search.Trial) -> None:
        note(self.folder, f"ends {trial.number}")


def note(folder: Path, line: str) -> None:
    file = os.open(folder / "diary", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def diary(folder: Path) -> list[str]:
    path = folder / "diary"
    return path.read_text().splitlines() if path.exists() else []


def search_in(folder: Path, trials: int = TRIALS) -> search.Study:
    def build(x: int) -> float:
        note(folder, f"process {os.getpid()}")
        time.sleep(0.01)
        return (x - 7.0) ** 2

    # Whoever kills at random may kill one trial several times.
    return search.run(
        build,
        {"x": search.integer(0, trials - 1)},
        method="grid",
        workers=2,
        retries=1000,
        folder=folder / "study",
        verbose=0,
        callbacks=[Diary(folder)],
    )


def in_child(work: Callable[[], object]) -> int:
    """Run something in a copy of this process, which has all imports; its process id."""
    with warnings.catch_warnings():
        # Of threads that the copy does not have.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def status_within(child: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


def kill_again_and_again(folder: Path, kills: int, trials: int = TRIALS, seed: int = 1) -> int:
    """Kill the master or a worker at random moments, at most so often, until the study is over; how
    often that was."""
    generator = random.Random(seed)
    killed = child = 0
    while True:
        child = child or in_child(lambda: search_in(folder, trials))
        status = status_within(child, generator.uniform(0, 0.15) if killed < kills else 60)
        if status == 0:
            return killed
        assert status is None, f"the master ended with status {status}"
        if generator.random() < 0.5:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child, killed = 0, killed + 1
        else:
            killed += _kill_a_worker(folder, child)


def _kill_a_worker(folder: Path, master: int) -> bool:
    """The one that began a trial last, if it is one of this master."""
    lines = [line for line in diary(folder) if line.startswith("process")]
    if not lines:
        return False
    process = int(lines[-1].split()[1])
    try:
        parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        if parent == master:
            os.kill(process, signal.SIGKILL)
        return parent == master
    except OSError:
        # It has ended meanwhile.
        return False


def check(folder: Path, trials: int = TRIALS) -> None:
    """Every trial is there once, and none was begun again after it was over."""
    study = search.load(folder / "study")
    assert sorted(trial.parameters["x"] for trial in study.trials) == list(range(trials))
    assert [trial.value for trial in study.trials] == [
        (trial.parameters["x"] - 7.0) ** 2 for trial in study.trials
    ]
    over: set[str] = set()
    for line in diary(folder):
        what, _, number = line.partition(" ")
        if what == "begins":
            assert number not in over, f"trial {number} was over, and began again"
        elif what == "ends":
            assert number not in over, f"trial {number} ended twice"
            over.add(number)


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    # Copies begin sooner if it is there.
    import_optuna()
    assert kill_again_and_again(tmp_path, kills=12) > 0
    check(tmp_path)


def test_ctrl_c_leaves_a_study_that_goes_on(tmp_path: Path) -> None:
    def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        study = search_in(tmp_path)
        assert 0 < len(study.trials) < TRIALS

    child = in_child(interrupted)
    until = time.monotonic() + 60
    while not any(line.startswith("ends") for line in diary(tmp_path)):
        assert time.monotonic() < until
        time.sleep(0.001)
    os.kill(child, signal.SIGINT)
    assert status_within(child, 60) == 0
    search_in(tmp_path)
    check(tmp_path)
