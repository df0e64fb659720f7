"""What a person sees of a study: table, importances, pictures, page, live table, TensorBoard."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import caldera as cd
from caldera import nn, search
from caldera.errors import ConfigError
from caldera.search.analysis import Overview, importances
from caldera.search.callbacks import LiveTable
from caldera.search.charts import (
    TrialTable,
    coordinates_picture,
    curves_chart,
    front_charts,
    history_chart,
)
from caldera.search.page import study_page
from tests.unit.search import made_up


@pytest.fixture(scope="module")
def study() -> search.Study:
    return made_up.study()


@pytest.fixture(scope="module")
def several() -> search.Study:
    return made_up.study(objective=search.pareto("val_accuracy", "seconds"), stop=None)


# --- the table


def test_the_table_has_every_trial_also_those_that_came_to_nothing(study: search.Study) -> None:
    assert all(study.counts()[state] for state in ("done", "stopped", "failed"))
    table = TrialTable(study.rows())
    assert table["number"] == list(range(40))
    assert set(table["state"]) == {"done", "stopped", "failed"}
    # What a choice has not opened is not there, and what failed has no value.
    assert any(value is None for value in table["momentum"])
    assert math.isnan(table["val_accuracy"][table["state"].index("failed")])
    lines = str(table).splitlines()
    assert len(lines) == 41
    assert lines[0].split()[:3] == ["number", "state", "val_accuracy"]
    assert len(study.table()) == 40
    with pytest.raises(KeyError, match="no column 'rate'; the columns are number"):
        table["rate"]


def test_the_table_is_one_of_pandas_where_that_is_installed(
    study: search.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = SimpleNamespace(DataFrame=lambda rows, columns: (len(rows), columns))
    monkeypatch.setitem(sys.modules, "pandas", frame)
    monkeypatch.setattr("caldera.search.charts.find_spec", lambda name: name)
    assert study.table() == (
        40,
        [
            "number",
            "state",
            "val_accuracy",
            "learning_rate",
            "layers",
            "activation",
            "optimizer",
            "momentum",
            "seconds",
            "steps",
            "reason",
        ],
    )


# --- importances


def test_importances_find_what_matters(study: search.Study) -> None:
    found = {each.name: each for each in study.importances()}
    assert next(iter(found)) == "learning_rate"
    assert found["learning_rate"].low > max(found["momentum"].high, found["layers"].high)


def test_of_few_trials_nothing_is_known() -> None:
    assert importances([{"x": 1}] * 9, list(range(9))) == []
    assert importances([{"x": 1}] * 20, [math.nan] * 20) == []
    assert importances([{}] * 20, list(range(20))) == []


# --- pictures


def _texts(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter() if each.text]


def test_a_plot_is_one_picture(study: search.Study, several: search.Study, tmp_path: Path) -> None:
    words = _texts(study.plot(tmp_path / "study.svg").read_text())
    assert "val_accuracy, larger is better" in words
    assert "val_accuracy of all trials" in words
    assert "val_accuracy over learning_rate" in words
    assert "seconds over val_accuracy" in _texts(several.plot(tmp_path / "two.svg").read_text())
    with pytest.raises(ConfigError, match=r"ends in \.svg"):
        study.plot(tmp_path / "study.png")
    with pytest.raises(ConfigError, match="plot"):
        study.plot(7)  # type: ignore[arg-type]


def test_the_history_goes_through_all_trials_and_never_down(study: search.Study) -> None:
    chart = history_chart(Overview(study))
    dots = [point for line in chart.lines if line.dots_only for point in line.points]
    assert sorted(x for x, _ in dots) == list(range(40))
    (best,) = [line for line in chart.lines if line.label == "best so far"]
    heights = [y for _, y in best.points]
    assert heights == sorted(heights)
    assert heights[-1] == study.best.value


def test_every_trial_that_learned_has_its_curve(study: search.Study) -> None:
    chart = curves_chart(Overview(study))
    assert chart is not None
    assert len(chart.lines) == sum(bool(trial.curve) for trial in study.trials)
    assert {len(line.points) for line in chart.lines} == {2, made_up.STEPS}
    assert chart.lines[-1].label == f"best, trial {study.best.number}"


def test_a_model_that_is_trained_further_has_one_curve() -> None:
    def steps(x: float) -> Iterator[dict[str, float]]:
        yield {"val_loss": x}
        yield {"val_loss": x / 2}

    class Further(search.Method):
        def ask(self, number: int) -> search.Proposal:
            return search.Proposal({"x": 1.0 / (number + 1)}, parent=number - 1 if number else None)

    study = search.run(
        steps,
        {"x": search.uniform(0, 1)},
        method=Further(),
        trials=3,
        objective="val_loss",
        verbose=0,
    )
    overview = Overview(study)
    assert [x for x, _ in overview.curve(study.trials[1])] == [2, 3, 4]
    whole = overview.whole_curve(study.best)
    assert [x for x, _ in whole] == [1, 2, 3, 4, 5, 6]
    assert [y for _, y in whole] == pytest.approx([1, 1 / 2, 1 / 2, 1 / 4, 1 / 3, 1 / 6])


def test_the_front_is_what_no_trial_beats(several: search.Study) -> None:
    (chart,) = front_charts(Overview(several))
    (front,) = [line for line in chart.lines if line.label.startswith("front")]
    assert list(front.points) == sorted((t.values[0], t.values[1]) for t in several.front)
    seconds = [y for _, y in front.points]
    assert seconds == sorted(seconds), "more accuracy costs more seconds"


def test_a_line_of_each_trial_goes_through_all_axes(study: search.Study) -> None:
    picture = coordinates_picture(Overview(study))
    assert picture is not None
    root = ElementTree.fromstring(picture)
    lines = [each for each in root.iter("path") if each.get("fill") == "none"]
    valued = [trial for trial in study.trials if trial.values is not None]
    assert len(lines) == len(valued)
    assert {each.get("d", "").count("L") for each in lines} == {5}
    # The best is drawn last, above all others; momentum is not there for all of them.
    assert f"trial {study.best.number}, done" in "".join(root.findall("g")[-1].itertext())
    assert "none" in [each.text for each in root.iter("text")]


# --- the page


def test_the_page_says_all_and_trusts_nothing(study: search.Study, tmp_path: Path) -> None:
    page = study.page(tmp_path / "study.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    rows = re.findall(r"<tr><td class=.number.>(\d+)</td><td>(?:<b>)?(?:done|stop|fail)", page)
    assert rows == [str(trial.number) for trial in study.trials]
    for words in (
        "Effect of luck",
        "Parallel coordinates",
        "Importance",
        "tanh &amp; co",
        "0.0001 to 0.1, by its logarithm",
        "sgd (momentum: 0 to 0.9)",
        "stopped by StopsBad()",
    ):
        assert words in page, words
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        study.page(tmp_path / "study.txt")
    with pytest.raises(ConfigError, match="a folder that exists"):
        study.page(tmp_path / "none/study.html")


def test_a_study_that_is_read_has_the_same_page(tmp_path: Path) -> None:
    study = made_up.study(trials=9, folder=tmp_path / "study")
    read = search.load(tmp_path / "study")
    # Optuna looks at the clock a moment later.
    one, other = (
        re.sub(r"<b>[^<]*</b><span>from first", "", study_page(Overview(each)))
        for each in (study, read)
    )
    assert one == other


def test_pages_of_nothing_and_of_little_are_pages(several: search.Study) -> None:
    def failing(x: float) -> float:
        raise RuntimeError("no")

    for small in (
        search.run(failing, {"x": search.uniform(0, 1)}, trials=2, verbose=0),
        search.run(lambda x: x, {"x": search.uniform(0, 1)}, trials=1, verbose=0),
        several,
    ):
        page = study_page(Overview(small))
        assert "All trials" in page
        assert ">nan<" not in page
    assert small.luck() is None
    assert "Pareto front" in page


# --- while it goes on


def _seen(verbose: int | None, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=150)
    ticks = iter(range(10_000))
    table = LiveTable(verbose, trials=6, console=console, clock=lambda: float(next(ticks)))
    made_up.study(trials=6, callbacks=[table])
    return out.getvalue()


def test_the_live_table_shows_the_best_what_runs_and_how_long() -> None:
    seen = _seen(None, terminal=True)
    assert re.search(r"3/6 trials \(1 running", seen)
    assert re.search(r"best val_accuracy 0\.\d+ in trial \d", seen)
    assert re.search(r"\d+ s left|\d:\d\d left", seen)
    assert re.search(r"trial 2  running  step 1: val_accuracy 0\.\d+  learning_rate", seen)
    assert "6/6 trials" in seen.splitlines()[-1]


def test_nothing_is_shown_where_nobody_looks_unless_asked() -> None:
    assert _seen(None, terminal=False) == "" == _seen(0, terminal=True)
    lines = _seen(2, terminal=False).splitlines()
    assert [line.split("  ")[0] for line in lines[:6]] == [f"trial {n}" for n in range(6)]
    assert "best so far" in lines[0]
    with pytest.raises(ConfigError, match="verbose: expected 0, 1 or 2"):
        search.run(lambda x: x, {"x": search.uniform(0, 1)}, trials=1, verbose=3)


def test_tensorboard_compares_the_trials(tmp_path: Path) -> None:
    backend = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    study = made_up.study(trials=12, callbacks=[search.TensorBoard(tmp_path)])
    assert len(list(tmp_path.iterdir())) == 12
    best = study.best
    events: Any = backend.EventAccumulator(str(tmp_path / f"trial-{best.number}")).Reload()
    assert [each.value for each in events.Scalars("val_accuracy")] == pytest.approx(
        [row["val_accuracy"] for row in best.curve]
    )
    assert events.Scalars("objective/val_accuracy")[0].value == pytest.approx(best.value)
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    started = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    given = plugin.HParamsPluginData.FromString(started).session_start_info.hparams
    assert given["learning_rate"].number_value == best.point["learning_rate"]
    assert given["activation"].string_value == best.point["activation"]


# --- networks


def test_the_network_of_the_best_is_drawn_without_the_code_that_built_it(tmp_path: Path) -> None:
    built = []

    def build(hidden: int) -> cd.Model:
        built.append(hidden)
        return cd.NeuralNetwork([nn.Input((3,)), nn.Dense(hidden, name="inner"), nn.Dense(2)])

    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    data = x, (x[:, 0] > 0).astype("int64")
    space = {"hidden": search.choice([5])}
    given: dict[str, Any] = {"trials": 1, "epochs": 1, "objective": "val_accuracy"}
    study = search.run(build, space, data, folder=tmp_path, verbose=0, **given)
    page = study_page(Overview(search.load(tmp_path)))
    assert "inner" in page
    assert "Its architecture" in page
    # The size of the validation data tells how exactly an accuracy was measured.
    assert study.facts["samples"] == 8
    kept = search.run(build, space, data, verbose=0, **given)
    assert len(built) == 3
    assert "Its architecture" in study_page(Overview(kept))


def test_a_trial_is_one_line(study: search.Study) -> None:
    for trial in study.trials:
        assert len(repr(trial)) < 210
        assert "\n" not in repr(trial)
    assert repr(study.best).startswith(f"<Trial {study.best.number}: done: 0.9")
