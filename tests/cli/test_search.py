"""`caldera search`: recipes with a space, and what a search writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caldera import search
from caldera.cli.recipe import read_recipe
from caldera.cli.search_recipe import read_search_recipe, usual_space
from caldera.errors import ConfigError
from tests.cli.conftest import Caldera

RECIPE = """
hidden = [6]
epochs = 2
method = "random"
trials = 3

[space]
learning_rate = { log = [1e-3, 1e-1] }
batch_size = [16, 32]
"""


def recipe(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two kinds of parts."""
    path = tmp_path_factory.mktemp("table") / "parts.csv"
    width, height = np.random.default_rng(0).normal(size=(2, 120))
    rows = zip(width, height, np.where(width + height > 0, "large", "small"), strict=True)
    path.write_text("width,height,kind\n" + "".join(f"{w:.3f},{h:.3f},{k}\n" for w, h, k in rows))
    return path


def test_a_search_without_code(caldera: Caldera, parts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    words = "search", recipe(tmp_path), "--data", parts, "--out", folder, "--quiet"
    done = caldera(*words)
    assert not done.status, done.err
    for line in (
        "space   learning_rate, batch_size",
        "trials  3 done",
        "best    trial ",
        "luck    ",
    ):
        assert line in done.out, done.out
    names = {each.name for each in folder.iterdir()}
    assert {"parts.caldera", "report.html", "study.svg", "best.toml", "journal.log"} <= names
    # The best is a recipe and a model like any other, and the page can be made again.
    best = search.load(folder).best
    assert read_recipe(folder / "best.toml")["learning_rate"] == best.point["learning_rate"]
    assert read_recipe(folder / "best.toml")["seed"] == best.seed
    assert "accuracy" in caldera("eval", folder / "parts.caldera", "--data", parts).out
    assert caldera("report", folder, "--out", tmp_path / "page.html").status == 0
    assert "All trials" in (tmp_path / "page.html").read_text()
    # The same folder goes on; other options do not.
    assert "trials  4 done" in caldera(*words, "--trials", 4).out
    refused = caldera(*words, "--epochs", 3)
    assert refused.status == 2
    assert "another epochs; name another folder" in refused.err


def test_flags_fix_what_a_recipe_searches(caldera: Caldera, parts: Path, tmp_path: Path) -> None:
    flags = {"--batch-size": 16, "--trials": 1, "--objective": "val_loss,seconds", "--data": parts}
    words = [word for pair in flags.items() for word in pair]
    done = caldera("search", recipe(tmp_path), "--out", tmp_path / "s", "--quiet", *words)
    assert not done.status, done.err
    assert "space   learning_rate\n" in done.out
    assert search.load(tmp_path / "s").objective.names() == ("val_loss", "seconds")


def test_a_search_that_finds_nothing_says_why(
    caldera: Caldera, parts: Path, tmp_path: Path
) -> None:
    flags = "--learning-rate", 1e30, "--optimizer", "sgd", "--trials", 2, "--quiet"
    words = "search", recipe(tmp_path), "--data", parts, "--out", tmp_path / "s", *flags
    done = caldera(*words)
    assert done.status == 1
    assert "trials  2 failed" in done.out
    assert "failed  trial 1: " in done.out
    # What was refused before it began leaves nothing behind.
    other = tmp_path / "other"
    wrong = caldera(*words[:5], other, "--method", "threshold", "--epochs", 1)
    assert wrong.status == 2
    assert not caldera(*words[:5], other, "--quiet", "--trials", 1).status


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trial = 5", "got unknown key 'trial'; did you mean 'trials'?"),
        ("trials = 0", "recipe.toml trials: expected an integer >= 1, got 0"),
        ('method = "tpee"', "recipe.toml method: expected a search method, got 'tpee'"),
        ("method = { seed = 1 }", "recipe.toml method: expected a name in it, got seed"),
        ('method = { name = "random", x = 1 }', "search method random: expected an argument"),
        ("objective = 5", "recipe.toml objective: expected a metric"),
        ("objective = { oh = 2 }", "accuracy: expected prices such as per_flops=, got oh"),
        (
            'objective = { metric = "loss", oh = 2 }',
            "recipe.toml objective: expected arguments of search",
        ),
        ("space = 5", "recipe.toml [space]: expected a table, got 5"),
        ("[space]\nlearning_rat = [1]", "unknown key 'learning_rat'; did you mean 'learning_rate'"),
        ("[space]\nseed = [1, 2]", "[space] seed: expected an option that may differ"),
        ('[space]\ndata = ["a"]', "[space] data: expected an option that may differ"),
        ("[space]\ndropout = 0.5", "[space] dropout: expected a list of values, or a table"),
        ("[space]\ndropout = []", "[space] dropout: expected a list of values, got []"),
        ("[space]\ndropout = {}", "expected one of choice, uniform, log, integer, layers in it"),
        ("[space]\ndropout = { layers = [1, 2] }", "dropout: expected layers only for hidden"),
        ("[space]\nhidden = { layers = [1, 2] }", "expected layers and units, and perhaps step"),
        (
            "[space]\nhidden = { layers = 2, units = [8, 16] }",
            "hidden layers: expected two numbers",
        ),
        ("[space]\nhidden = { layers = [1, 2], units = [0, 8] }", "hidden units integer: expected"),
        ("[space]\ndropout = { log = [0.1] }", "dropout log: expected two numbers"),
        ('[space]\ndropout = { log = ["a", 1] }', "dropout log: expected a number, got 'a'"),
        ("[space]\ndropout = { log = [0.0, 1] }", "log"),
        (
            "[space]\ndropout = { log = [0.1, 1], step = 1 }",
            "unknown key 'step'; log takes exactly two",
        ),
        ("[space]\ndropout = { uniform = [0.1, 1], steps = 1 }", "did you mean 'step'?"),
        ("[space]\ndropout = { integer = [1, 2] }", "dropout: expected uniform or log"),
        ("[space]\nbatch_size = [0]", "batch_size: expected an integer >= 1, got 0"),
        ("[space]\nhidden = { integer = [1, 2] }", "expected a list of values: integers >= 1"),
        ('[space]\noptimizer = ["adm"]', "expected an optimizer, got 'adm'; did you mean 'adam'?"),
        ('[space]\noptimizer = { choice = ["sgd"], adam = {} }', "unknown key 'adam'"),
        ("dropout = 0.1\n[space]\ndropout = [0.2]", "a key that is fixed or searched, not both"),
        ("trials = ", "recipe.toml: expected TOML, as in trials = 100"),
    ],
)
def test_wrong_recipes_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_search_recipe(recipe(tmp_path, text))
    assert said in str(caught.value)


def test_every_way_to_write_a_space(tmp_path: Path) -> None:
    text = """
    objective = { metric = "val_loss", seeds = 2 }
    workers = 2
    [space]
    learning_rate = { log = [1e-3, 1e-1] }
    dropout = { uniform = [0.0, 0.4], step = 0.2 }
    batch_size = { log = [16, 64] }
    accumulate = { integer = [2, 6], step = 2 }
    hidden = { layers = [1, 2], units = [8, 16], step = 8 }
    optimizer = { choice = ["adam", "sgd"], sgd = { momentum = { uniform = [0.5, 0.9] } } }
    """
    found = read_search_recipe(recipe(tmp_path, text))
    assert found.settings["objective"].seeds == 2
    assert found.settings["workers"] == "2"
    space = search.Space(found.space)
    random = np.random.default_rng(0)
    drawn = [space.decoded(space.draw(random)) for _ in range(40)]
    assert {each["dropout"] for each in drawn} == {0.0, 0.2, 0.4}
    assert {each["accumulate"] for each in drawn} == {2, 4, 6}
    assert all(isinstance(each["batch_size"], int) for each in drawn)
    assert {len(each["hidden"]) for each in drawn} == {1, 2}
    assert {units for each in drawn for units in each["hidden"]} == {8, 16}
    assert {"momentum" in each for each in drawn if each["optimizer"] == "sgd"} == {True}
    assert {"momentum" in each for each in drawn if each["optimizer"] == "adam"} == {False}


def test_a_search_needs_an_end_and_something_to_search(caldera: Caldera, tmp_path: Path) -> None:
    assert "--trials: expected a number of trials" in caldera("search").err
    fixed = ("learning-rate", "weight-decay", "batch-size", "hidden", "dropout")
    words = [word for name in fixed for word in (f"--{name}", 1)]
    assert "expected something to search" in caldera("search", "--trials", 1, *words).err
    assert set(usual_space({})) == {
        "learning_rate",
        "weight_decay",
        "batch_size",
        "hidden",
        "dropout",
    }
    for flags, said in {
        "--trials many": "--trials: expected an integer",
        "--trials 1 --method tpee": "--method: expected a search method, got 'tpee'",
        "--trials 1 --workers x": "expected workers as a number",
    }.items():
        done = caldera("search", "--out", tmp_path / "s", "--quiet", *flags.split())
        assert done.status == 2
        assert said in done.err
