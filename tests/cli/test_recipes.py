"""Recipes: every option as a key of a TOML file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldera.cli.build import make_optimizer, make_schedule, total_steps
from caldera.cli.option_types import (
    CountOption,
    CountsOption,
    Flag,
    NameOption,
    Names,
    Number,
    OptionType,
    Texts,
)
from caldera.cli.options import CONSTANT, OPTIONS
from caldera.cli.recipe import complete, read_recipe, write_recipe
from caldera.cli.zoo import ZOO, make_layers
from caldera.errors import ConfigError
from caldera.nn import models
from caldera.optim import epoch_rules, optimizers, schedules


def _values(kind: OptionType) -> st.SearchStrategy[Any]:
    """Values that an option of this kind can have."""
    if isinstance(kind, CountOption):
        return st.integers(kind.least, 10**9)
    if isinstance(kind, Number):
        return st.floats(allow_nan=False, allow_infinity=False)
    if isinstance(kind, Flag):
        return st.booleans()
    if isinstance(kind, CountsOption):
        return st.lists(st.integers(1, 10**6), min_size=1, max_size=4)
    if isinstance(kind, Names):
        return st.lists(st.sampled_from(sorted(kind.names())), min_size=1, max_size=3)
    if isinstance(kind, NameOption):
        return st.sampled_from(sorted(kind.names()))
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
    return st.lists(texts, min_size=1, max_size=3) if isinstance(kind, Texts) else texts


@given(st.fixed_dictionaries({}, optional={k: _values(o.kind) for k, o in OPTIONS.items()}))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    write_recipe(path, options)
    assert read_recipe(path) == options


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch = 5", "recipe.toml: got unknown key 'epoch'; did you mean 'epochs'?"),
        ("learning-rate = 0.1", "unknown key 'learning-rate'; did you mean 'learning_rate'?"),
        ("epochs = true", "recipe.toml epochs: expected an integer >= 0, got True"),
        ("epochs = 2.5", "recipe.toml epochs: expected an integer"),
        ('epochs = "5"', "recipe.toml epochs: expected an integer"),
        ("mirror = 1", "recipe.toml mirror: expected true or false, got 1"),
        ("hidden = [8, 0]", "recipe.toml hidden: expected integers >= 1"),
        ("learning_rate = inf", "recipe.toml learning_rate: expected a number"),
        ('optimizer = "adm"', "expected an optimizer, got 'adm'; did you mean 'adam'?"),
        ("[training]\nepochs = 5", "got a table [training]"),
        ("epochs = ", "recipe.toml: expected TOML"),
        ("epochs = 1\nepochs = 2", "recipe.toml: expected TOML"),
    ],
)
def test_wrong_recipes_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_recipe(path)
    assert said in str(caught.value)


def test_whole_numbers_are_numbers_and_one_number_is_a_list(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("learning_rate = 1\nhidden = 64\n")
    assert read_recipe(path) == {"learning_rate": 1.0, "hidden": [64]}


def test_a_named_model_or_optimizer_has_its_own_defaults() -> None:
    usual = complete({})
    assert (usual["model"], usual["optimizer"]) == ("mlp", "adamw")
    assert "hidden" not in complete({"model": "lenet5"})
    assert "learning_rate" not in complete({"optimizer": "sgd"})
    # What a run writes down says it all: nothing is added when it is read again.
    assert complete(usual) == usual


# --- every option of a model, an optimizer and a schedule can be said


def test_the_whole_zoo_can_be_named() -> None:
    functions = {
        name
        for name in models.__all__
        if inspect.isfunction(getattr(models, name))
        and not name.startswith("load_")
        and name != "torchvision_names"
    }
    assert set(ZOO) == functions


@pytest.mark.parametrize("name", ZOO)
def test_every_option_of_a_model_is_an_option(name: str) -> None:
    assert set(ZOO[name].options) <= set(OPTIONS)


@pytest.mark.parametrize("name", optimizers)
def test_every_argument_of_an_optimizer_is_an_option(name: str) -> None:
    arguments = set(optimizers.make(name).arguments())
    # Pairs of numbers, and the step at which averaging starts, are for programs.
    assert arguments - {"clip", "groups", "coefficients", "factors", "sizes", "start"} <= set(
        OPTIONS
    )


@pytest.mark.parametrize("name", [*schedules, "reduce_on_plateau"])
def test_every_argument_of_a_schedule_is_an_option(name: str) -> None:
    family: Any = schedules if name in schedules else epoch_rules
    arguments = list(inspect.signature(family[name].__init__).parameters)[1:]
    known = {option.removeprefix("schedule_") for option in OPTIONS}
    assert set(arguments) - {"initial", "peak", "then"} <= known


# --- what the options make


def test_optimizer_options_reach_the_optimizer() -> None:
    options = complete(
        {
            "optimizer": "nesterov",
            "learning_rate": 0.5,
            "weight_decay": 0.25,
            "decay": "l1",
            "clip_norm": 2.0,
            "accumulate": 4,
        }
    )
    made = make_optimizer(options, 100)
    assert (
        made.config()
        == optimizers.make(
            "nesterov", learning_rate=0.5, decay=made.decay, clip=made.clip, accumulate=4
        ).config()
    )
    assert made.decay.config() == {
        "kind": "decay",
        "name": "l1",
        "arguments": {"strength": 0.25},
    }
    assert made.clip is not None
    assert made.clip.limit == 2.0


def test_a_schedule_takes_the_whole_run_and_the_optimizers_rate() -> None:
    options = {"optimizer": "adam", "schedule": "cosine", "schedule_warm_up": 5, "accumulate": 2}
    rate = make_optimizer(options, 100).arguments()["learning_rate"]
    assert rate.arguments() == {"peak": 1e-3, "steps": 50, "warm_up": 5, "final": 0.0}


def test_constant_is_no_schedule() -> None:
    options = complete({"schedule": CONSTANT, "learning_rate": 0.25})
    assert make_optimizer(options, 100).arguments()["learning_rate"] == 0.25


def test_reduce_on_plateau_is_a_schedule() -> None:
    options = {"schedule": "reduce_on_plateau", "schedule_patience": 2, "schedule_factor": 0.5}
    made = make_schedule(options, 0.1, 100)
    assert (made.value, made.patience, made.factor) == (0.1, 2, 0.5)  # type: ignore[union-attr]


def test_growing_batches_make_fewer_steps() -> None:
    options = {"batch_size": 10, "epochs": 3, "batch_growth": 2.0, "batch_growth_limit": 20}
    assert total_steps(options, 100) == 10 + 5 + 5


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="got both"):
        make_optimizer(complete({"clip_norm": 1.0, "clip_value": 1.0}), 1)
    with pytest.raises(ConfigError, match="weight_decay"):
        make_optimizer({"optimizer": "adam", "decay": "l1"}, 1)
    with pytest.raises(ConfigError, match="batch_growth"):
        total_steps({"batch_size": 1, "epochs": 1, "batch_growth_every": 2}, 1)


def test_networks_that_read_words_need_to_know_how_many() -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        make_layers("gpt", {}, (16,))
    layers = make_layers("gpt", {"vocabulary": 20, "width": 8, "depth": 1, "heads": 1}, (16,))
    assert len(layers) == 2
