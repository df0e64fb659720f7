"""Studies: what is kept of trials, going on, failures, and models made again."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, search
from caldera.errors import CalderaError, ConfigError
from caldera.kernels.table import Kernel
from caldera.kernels.tuning.choice_store import KernelChoice
from caldera.kernels.tuning.choose import Choices
from caldera.search.analysis import Overview
from caldera.search.job import digest_of
from caldera.search.page import study_page
from caldera.search.record import TrialRecord
from caldera.search.storage import Journal
from tests.unit.search import made_up
from tests.unit.search.test_journal import without_checks

LINE = {"x": search.uniform(-4.0, 4.0)}


def _square(x: float) -> float:
    return (x - 1) ** 2


def _points(study: search.Study) -> list[Any]:
    return [trial.point for trial in study.trials]


def test_the_same_seed_gives_the_same_trials() -> None:
    first, again, other = (search.run(_square, LINE, trials=8, seed=s) for s in (1, 1, 2))
    assert _points(first) == _points(again) != _points(other)
    assert [each.seed for each in first.trials] == [each.seed for each in again.trials]
    assert len({each.seed for each in first.trials}) == 8


def test_a_study_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    calls: list[float] = []

    def counted(x: float) -> float:
        calls.append(x)
        return _square(x)

    whole = search.run(_square, LINE, trials=9)
    search.run(counted, LINE, trials=5, folder=tmp_path)
    study = search.run(counted, LINE, trials=9, folder=tmp_path)
    assert len(calls) == 9
    assert _points(study) == _points(whole)
    read = search.load(tmp_path)
    assert _points(read) == _points(whole)
    assert read.best.value == whole.best.value
    assert read.objective.names() == ("value",)
    # All that is wanted is there.
    search.run(counted, LINE, trials=9, folder=tmp_path)
    assert len(calls) == 9


def test_what_was_running_when_the_process_died_is_run_again(tmp_path: Path) -> None:
    class Killed(BaseException): ...

    def fragile(x: int) -> float:
        if x == 2 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise Killed
        return x

    space = {"x": search.integer(0, 4)}
    with pytest.raises(Killed):
        search.run(fragile, space, method="grid", folder=tmp_path / "study")
    # The line that the process was writing.
    with open(tmp_path / "study/journal.log", "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    study = search.run(fragile, space, method="grid", folder=tmp_path / "study")
    assert [trial.parameters["x"] for trial in study.trials] == [0, 1, 2, 3, 4]
    assert {trial.state for trial in study.trials} == {"done"}


def test_a_study_whose_first_process_died_at_once_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*given: object) -> None:
        raise Killed

    space = {"x": search.integer(0, 2)}
    with monkeypatch.context() as patch:
        # It has a name in the journal by then, and neither a space nor an objective.
        patch.setattr(TrialRecord, "note", killed)
        with pytest.raises(Killed):
            search.run(lambda x: float(x), space, method="grid", folder=tmp_path, verbose=0)
    with pytest.raises(ConfigError, match="none, or an empty one"):
        search.load(tmp_path)
    study = search.run(lambda x: float(x), space, method="grid", folder=tmp_path, verbose=0)
    assert [trial.value for trial in study.trials] == [0.0, 1.0, 2.0]
    assert len(search.load(tmp_path).trials) == 3


def test_optuna_reads_the_journal(tmp_path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    search.run(_square, LINE, trials=4, folder=tmp_path)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    study = optuna.load_study(study_name="caldera", storage=storage)
    assert len(study.trials) == 4
    assert study.best_value == search.load(tmp_path).best.value


def test_another_space_or_objective_does_not_go_on(tmp_path: Path) -> None:
    search.run(_square, LINE, trials=1, folder=tmp_path)
    with pytest.raises(ConfigError, match="the space that it was begun with"):
        search.run(_square, {"x": search.uniform(0, 1)}, trials=2, folder=tmp_path)
    with pytest.raises(ConfigError, match="the objective that it was begun with"):
        search.run(
            _square, LINE, trials=2, objective=search.metric("value", "max"), folder=tmp_path
        )
    with pytest.raises(ConfigError, match="expected a study in"):
        search.load(tmp_path / "none")


def test_a_trial_that_raises_or_gives_nan_has_failed_and_says_why() -> None:
    def moody(x: int) -> float:
        if x == 1:
            raise RuntimeError("no luck")
        return math.nan if x == 2 else x

    study = search.run(moody, {"x": search.integer(1, 4)}, method="grid")
    assert [trial.state for trial in study.trials] == ["failed", "failed", "done", "done"]
    assert study.trials[0].reason == "RuntimeError: no luck"
    assert "moody" in study.trials[0].details
    assert study.trials[1].reason == "value is NaN"
    assert study.best.parameters == {"x": 3}
    assert study.counts() == {"done": 2, "stopped": 0, "failed": 2, "running": 0, "waiting": 0}


def test_errors_that_no_trial_can_mend() -> None:
    with pytest.raises(ConfigError, match=r"trials that report 'val_acuracy', got value"):
        search.run(_square, LINE, trials=3, objective="val_acuracy")
    with pytest.raises(ConfigError, match=r"trials= or seconds="):
        search.run(_square, LINE)
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        search.run(_square, LINE, method="randm", trials=1)
    with pytest.raises(ConfigError, match="a function that builds"):
        search.run(3, LINE, trials=1)  # type: ignore[arg-type]

    def always(x: float) -> float:
        raise ValueError("never")

    with pytest.raises(ConfigError, match="only failed ones, the last by ValueError: never"):
        search.run(always, LINE, trials=100)
    few = search.run(always, LINE, trials=3)
    with pytest.raises(ConfigError, match="the last one failed: ValueError: never"):
        _ = few.best


def test_a_function_may_yield_and_tell_metrics() -> None:
    def steps(x: float) -> Iterator[dict[str, float]]:
        for step in range(3):
            yield {"error": x * x / (step + 1), "seconds": float(step)}

    study = search.run(steps, LINE, trials=3, objective="error")
    assert [len(trial.curve) for trial in study.trials] == [3, 3, 3]
    assert study.best.value == pytest.approx(study.best.parameters["x"] ** 2 / 3)


def test_two_processes_do_not_run_one_study(tmp_path: Path) -> None:
    def inner(x: float) -> float:
        search.run(_square, LINE, trials=2, folder=tmp_path)
        return x

    study = search.run(inner, LINE, trials=1, folder=tmp_path)
    assert "a study that no other process works on" in study.trials[0].reason


# --- models


def _blobs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 120)
    return (random.normal(size=(120, 3)) + y[:, None]).astype("float32"), y


def _build(rate: float, hidden: int) -> cd.Model:
    layers = [nn.Input((3,)), nn.Dense(hidden, activation="tanh"), nn.Dense(2)]
    return cd.NeuralNetwork(layers, learning_rate=rate, batch_size=24)


MODELS = {"rate": search.log(1e-3, 1e-1), "hidden": search.choice([3])}


def _weights(model: cd.Model) -> list[Any]:
    return [each.numpy().tolist() for each in model.parameters()]


def test_the_best_model_can_be_made_again_bit_for_bit(tmp_path: Path) -> None:
    data = cd.data.arrays(*_blobs(), test=0.25)
    study = search.run(
        _build, MODELS, data, trials=3, epochs=2, objective="val_loss", folder=tmp_path
    )
    assert {trial.state for trial in study.trials} == {"done"}
    assert set(study.best.results) >= {
        "val_loss",
        "val_accuracy",
        "seconds",
        "parameters",
        "epochs",
    }
    saved = study.best.model
    assert study.best.saved
    assert _weights(study.remake(study.best)) == _weights(saved)
    assert study.test == saved.evaluate(data.test)
    # In a study that is opened again, for a trial whose model was not kept.
    for file in (tmp_path / "models").iterdir():
        file.unlink()
    again = search.run(
        _build, MODELS, data, trials=3, epochs=2, objective="val_loss", folder=tmp_path
    )
    assert _weights(again.best.model) == _weights(saved)
    with pytest.raises(ConfigError, match="a study that stores build and data"):
        _ = search.load(tmp_path).best.model


def _wide(rate: float, batch_size: int) -> cd.Model:
    """Products that several kernels compute, each with an order of its own."""
    layers = [nn.Input((90,)), nn.Dense(70, activation="tanh"), nn.Dense(2)]
    return cd.NeuralNetwork(layers, learning_rate=rate, batch_size=batch_size)


def _wide_samples() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    return random.normal(size=(150, 90)).astype("float32"), random.integers(0, 2, 150)


def _any_kernel(
    self: Choices, node: Any, tuning_key: Any, eligible: Sequence[Kernel]
) -> KernelChoice | None:
    """What a race may come to on a machine where each takes as long as the others."""
    rivals = [kernel for kernel in eligible if kernel.name != "reference"]
    return KernelChoice(random.SystemRandom().choice(rivals), None, "measured")


@pytest.mark.parametrize("workers", [1, 2, "threads:2"])
def test_a_trial_is_made_again_by_the_kernels_that_it_had(
    workers: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is chosen since: by another process, after a prediction, for more threads."""
    monkeypatch.setattr(Choices, "_lookup", lambda *given: None)
    monkeypatch.setattr(Choices, "_tune", _any_kernel)
    space = {"rate": search.log(1e-3, 1e-1), "batch_size": search.choice([48, 64])}
    how = {"trials": 3, "epochs": 2, "verbose": 0, "folder": tmp_path}
    with cd.settings.override(threads=2):
        search.run(_wide, space, _wide_samples(), workers=workers, **how)  # type: ignore[arg-type]
        # As whoever opens the study later.
        study = search.run(_wide, space, _wide_samples(), **how)  # type: ignore[arg-type]
        assert cd.settings.threads == 2
        for trial in study.trials:
            assert digest_of(study.remake(trial)) == trial.digest
            conditions = study.record.conditions_of(trial)
            assert conditions.threads == (1 if workers == 2 else 2)
            assert conditions.choices.kernels
        assert cd.settings.threads == 2


def test_conditions_are_kept_once_for_all_trials_that_have_them(tmp_path: Path) -> None:
    space = {"rate": search.log(1e-3, 1e-1), "batch_size": search.choice([64])}
    how = {"epochs": 2, "verbose": 0, "folder": tmp_path}
    search.run(_wide, space, _wide_samples(), trials=2, **how)  # type: ignore[arg-type]
    # Nor again by the program that goes on with it.
    study = search.run(_wide, space, _wide_samples(), trials=6, **how)  # type: ignore[arg-type]
    text = study.record.conditions_of(study.trials[0]).to_text()
    assert len(study.record.conditions()) < 6
    written = (tmp_path / "journal.log").read_text()
    assert written.count(json.dumps(text)[1:-1]) == 1


@pytest.mark.parametrize("kept", [None, {"threads": 3}])
def test_a_study_that_kept_conditions_otherwise_can_be_read(kept: Any, tmp_path: Path) -> None:
    """Those of trials before there were any, and before they were kept once."""
    search.run(lambda x: x, {"x": search.uniform(0, 1)}, trials=2, folder=tmp_path, verbose=0)
    journal = tmp_path / "journal.log"
    lines = [json.loads(line) for line in without_checks(journal.read_bytes()).splitlines()]
    for line in lines:
        if "outcome" in line.get("user_attr", {}):
            line["user_attr"]["outcome"].pop("conditions")
            if kept is not None:
                line["user_attr"]["outcome"]["conditions"] = kept
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    study = search.load(tmp_path)
    assert study.counts()["done"] == 2
    assert study.record.conditions_of(study.trials[0]).threads == cd.settings.threads


def test_a_trial_of_several_seeds_is_made_again() -> None:
    objective = search.metric("val_loss", seeds=3)
    study = search.run(_build, MODELS, _blobs(), trials=1, epochs=4, objective=objective, verbose=0)
    assert digest_of(study.remake(study.best)) == study.best.digest


def test_a_build_that_takes_the_seed_is_given_it() -> None:
    seeds = []

    def build(hidden: int, seed: int) -> cd.Model:
        seeds.append(seed)
        return cd.NeuralNetwork([nn.Input((3,)), nn.Dense(hidden), nn.Dense(2)], seed=seed)

    study = search.run(build, {"hidden": search.choice([3])}, _blobs(), trials=2, epochs=1)
    assert seeds == [trial.seed for trial in study.trials]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of what JSON can hold."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in parts:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from _places(part, (*path, key))


def test_a_damaged_study_is_refused_or_shown(tmp_path: Path) -> None:
    made_up.study(trials=4, folder=tmp_path / "whole")
    lines = without_checks((tmp_path / "whole/journal.log").read_bytes()).decode().splitlines()
    draw = random.Random(0)
    refused = 0
    for number in range(60):
        damaged = list(lines)
        at = draw.randrange(len(lines))
        entry = json.loads(lines[at])
        *way, last = draw.choice(list(_places(entry)))
        part = entry
        for key in way:
            part = part[key]
        part[last] = draw.choice(["x", None, -1, [], {}, [[1]], {"a": 1}, {"float": "inf"}])
        damaged[at] = json.dumps(entry)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "journal.log").write_text("\n".join(damaged) + "\n")
        try:
            study_page(Overview(search.load(folder)))
        except CalderaError:
            refused += 1
    assert 10 < refused < 55


@pytest.mark.parametrize("seed", range(4))
def test_a_journal_reads_what_everybody_wrote(seed: int, tmp_path: Path) -> None:
    """Its own lines, which it does not read from the file, among those of others."""
    chance = random.Random(seed)
    path = tmp_path / "journal.log"
    journals = [Journal(path), Journal(path)]
    written: list[dict[str, Any]] = []
    for number in range(120):
        journal = chance.choice(journals)
        if chance.random() < 0.5:
            lines = [{"n": number, "i": i, "text": "x\n" * i} for i in range(chance.randint(0, 3))]
            journal.append_logs(lines)
            written += lines
        begin = chance.choice([0, len(written) - 1, len(written), chance.randint(0, len(written))])
        begin = max(begin, 0)
        assert list(journal.read_logs(begin)) == written[begin:]
