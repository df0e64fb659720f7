"""Recipes of `caldera search`: recipes of `caldera train` with a space and a method.

    model = "mlp"
    epochs = 20
    method = "tpe"
    stop = "asha"
    trials = 100

    [space]
    learning_rate = { log = [1e-4, 1e-1] }
    dropout = { uniform = [0.0, 0.5] }
    batch_size = [32, 64, 128]
    hidden = { layers = [1, 3], units = [64, 256], step = 64 }
    optimizer = { choice = ["sgd", "adam"], sgd = { momentum = { uniform = [0.5, 0.99] } } }

A list is a choice. A choice can open parameters that only one of its values has. Every value is
checked against its option; unknown keys are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from caldera import search
from caldera.base.registry import nearest
from caldera.cli.option_types import (
    CountOption,
    CountsOption,
    NameOption,
    Number,
    OptionType,
    TextOption,
)
from caldera.cli.options import OPTIONS, RecipeOption, names_of
from caldera.cli.recipe import checked_options, read_toml
from caldera.errors import ConfigError
from caldera.search.method import methods

OWN = (
    RecipeOption(
        "method",
        NameOption("search method", lambda: methods),
        "method that proposes trials: " + ", ".join(methods),
        "random",
    ),
    RecipeOption(
        "stop",
        NameOption("search method", lambda: methods),
        "method that stops unpromising trials, such as asha or median",
    ),
    RecipeOption("trials", CountOption(1), "number of trials (default: chosen by the method)"),
    RecipeOption("seconds", Number(), "time limit for starting new trials"),
    RecipeOption(
        "workers",
        TextOption("N"),
        "number of parallel trials, each in a separate process, or in threads as in threads:4 "
        "(default: 1; ranks under caldera run)",
    ),
    RecipeOption(
        "storage",
        TextOption("ADDRESS"),
        "database of the study, such as postgresql://user@host/db; programs with the same address "
        "search together",
    ),
    RecipeOption("name", TextOption("TEXT"), "name of the study in the database"),
)
SEARCH_OPTIONS: Mapping[str, RecipeOption] = {option.name: option for option in OWN}
_TABLES = ("space", "method", "stop", "objective")
"""Keys of a recipe that may be tables."""
_NOT_SEARCHED = (
    "model",
    "vocabulary",
    "normalise",
    "epochs",
    "metrics",
    "seed",
    "dtype",
    "device",
    "loss",
    "validation_part",
    "patience",
    "keep_best",
    "target_accuracy",
    "time_limit",
)
"""Options that must be equal for all trials, to make them comparable and buildable."""
_OBJECTIVES: Mapping[str, Callable[..., Any]] = {
    "metric": search.metric,
    "time_to": search.time_to,
}


@dataclass(frozen=True)
class SearchRecipe:
    """Contents of a recipe: options shared by all trials, the space, and search settings."""

    options: dict[str, Any]
    space: dict[str, Any]
    settings: dict[str, Any]
    """Arguments of `search.run`: method, stop, trials, seconds, workers, objective."""


def searched_options() -> list[str]:
    """Return the options that may be in a space."""
    groups = names_of(["model", "training", "optimizer", "schedule"])
    return [name for name in groups if name not in _NOT_SEARCHED]


def read_search_recipe(path: str | PathLike[str]) -> SearchRecipe:
    """Return contents of a recipe file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "recipe.toml"
    >>> _ = path.write_text('epochs = 5\\ntrials = 20\\n[space]\\nbatch_size = [32, 64]')
    >>> recipe = read_search_recipe(path)
    >>> recipe.options, recipe.settings, recipe.space
    ({'epochs': 5}, {'trials': 20}, {'batch_size': choice([32, 64])})
    >>> _ = path.write_text("[space]\\nlearning_rat = [0.1, 0.2]")
    >>> read_search_recipe(path)
    Traceback (most recent call last):
    caldera.errors.ConfigError: recipe.toml [space]: got unknown key 'learning_rat'; did you mean 'learning_rate'?
    """  # noqa: E501
    name = Path(path).name
    found = read_toml(path, "trials = 100")
    given = {key: found.pop(key) for key in [*_TABLES, *SEARCH_OPTIONS] if key in found}
    for key in found:
        if key not in OPTIONS:
            known = [*OPTIONS, *_TABLES, *SEARCH_OPTIONS]
            raise ConfigError.build(name, got=f"unknown key {key!r}", hint=nearest(key, known))
    options = checked_options(found, name)
    space = _space(given.pop("space", {}), f"{name} [space]")
    for key in space:
        if key in options:
            raise ConfigError.build(
                f"{name} [space] {key}",
                expected="a key that is fixed or searched, not both",
                got=f"{key} = {options[key]!r} as well",
                hint="delete one",
            )
    return SearchRecipe(options, space, _settings(given, name))


# --- how to search


def _settings(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        where = f"{name} {key}"
        if key == "objective":
            found[key] = objective_of(value, where)
        elif key in ("method", "stop") and isinstance(value, Mapping):
            found[key] = _method(value, where)
        else:
            plain = key == "workers" and isinstance(value, int)
            found[key] = SEARCH_OPTIONS[key].kind.checked(str(value) if plain else value, where)
    return found


def _method(given: Mapping[str, Any], where: str) -> Any:
    """Return a method with its settings: method = { name = "tpe", seed = 3 }."""
    settings = dict(given)
    if "name" not in settings:
        raise ConfigError.build(
            where,
            expected="a name in it",
            got=", ".join(settings) or "an empty table",
            hint='for example { name = "tpe" }; further keys are arguments of the method',
        )
    name = SEARCH_OPTIONS["method"].kind.checked(settings.pop("name"), f"{where} name")
    return methods.make(name, **settings)


def objective_of(value: Any, where: str) -> Any:
    """Return an objective from a metric, a list of metrics, or a table of arguments.

    >>> objective_of("val_loss", "objective").modes
    ('min',)
    >>> objective_of(["val_accuracy", "seconds"], "objective").names()
    ('val_accuracy', 'seconds')
    >>> objective_of({"per_second": 0.001}, "objective").names()
    ('val_accuracy - 0.001 seconds',)
    """
    if isinstance(value, str) and value:
        return search.metric(value)
    if isinstance(value, list) and len(value) > 1 and all(isinstance(v, str) for v in value):
        return search.pareto(*value)
    if isinstance(value, Mapping) and value:
        settings = dict(value)
        kind = next((key for key in _OBJECTIVES if key in settings), None)
        try:
            if kind is not None:
                return _OBJECTIVES[kind](settings.pop(kind), **settings)
            return search.accuracy(**settings)
        except TypeError as error:
            raise ConfigError.build(
                where, expected="arguments of search.metric, time_to or accuracy", got=str(error)
            ) from None
    raise ConfigError.build(
        where,
        expected='a metric such as "val_accuracy", a list of metrics, or a table',
        got=repr(value),
        hint='for example { metric = "val_loss", seeds = 3 }, { per_second = 0.001 } or '
        '{ time_to = "val_accuracy", target = 0.97 }',
    )


# --- the space


def _space(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError.build(
            where,
            expected="a table",
            got=repr(given),
            hint="write [space], and a line for each parameter below it",
        )
    found = {}
    for key, value in given.items():
        if key in _NOT_SEARCHED or (key in OPTIONS and key not in searched_options()):
            raise ConfigError.build(
                f"{where} {key}",
                expected="an option that may differ between trials",
                got="a value that all of these share",
                hint="give it at the top of the recipe",
            )
        if key not in OPTIONS:
            raise ConfigError.build(
                where, got=f"unknown key {key!r}", hint=nearest(key, searched_options())
            )
        found[key] = _dimension(value, OPTIONS[key].kind, f"{where} {key}")
    return found


_WAYS = ("choice", "uniform", "log", "integer", "layers")


def _dimension(value: Any, kind: OptionType, where: str) -> Any:
    """Return the dimension of a parameter."""
    if isinstance(value, list):
        return _choice({"choice": value}, kind, where)
    if not isinstance(value, Mapping):
        raise ConfigError.build(
            where,
            expected="a list of values, or a table such as { log = [1e-4, 1e-1] }",
            got=repr(value),
            hint="put a fixed key at the top of the recipe",
        )
    ways = [way for way in _WAYS if way in value]
    if len(ways) != 1:
        raise ConfigError.build(
            where,
            expected=f"one of {', '.join(_WAYS)} in it",
            got=", ".join(value) or "nothing",
            hint="for example { log = [1e-4, 1e-1] } or { choice = [32, 64] }",
        )
    (way,) = ways
    if way == "choice":
        return _choice(value, kind, where)
    if way == "layers":
        return _layers(value, kind, where)
    return _range(way, value, kind, where)


def _choice(value: Mapping[str, Any], kind: OptionType, where: str) -> Any:
    labels = value["choice"]
    if not isinstance(labels, list) or not labels:
        raise ConfigError.build(where, expected="a list of values", got=repr(labels))
    checked = [kind.checked(each, where) for each in labels]
    opened = {key: part for key, part in value.items() if key != "choice"}
    if not opened:
        return search.choice(checked)
    for key in opened:
        if key not in map(str, checked):
            raise ConfigError.build(
                where, got=f"unknown key {key!r}", hint=nearest(key, map(str, checked))
            )
    return search.choice(
        {each: _space(opened.get(str(each), {}), f"{where} {each}") for each in checked}
    )


def _layers(value: Mapping[str, Any], kind: OptionType, where: str) -> Any:
    """Return a list of layers: { layers = [1, 3], units = [64, 256], step = 64 }."""
    if not isinstance(kind, CountsOption):
        raise ConfigError.build(where, expected="layers only for hidden", got="layers")
    unknown = [key for key in value if key not in ("layers", "units", "step")]
    if unknown or "units" not in value:
        raise ConfigError.build(
            where,
            expected="layers and units, and perhaps step",
            got=", ".join(value),
            hint="for example { layers = [1, 3], units = [64, 256], step = 64 }",
        )
    units = {"integer": value["units"], **({"step": value["step"]} if "step" in value else {})}
    counts = _ends(value["layers"], CountOption(1), f"{where} layers")
    return search.repeat(_range("integer", units, CountOption(1), f"{where} units"), *counts)


def _ends(given: Any, kind: OptionType, where: str) -> list[Any]:
    """Return the two ends of a range."""
    if not isinstance(given, list) or len(given) != 2:
        raise ConfigError.build(where, expected="two numbers, as in [0.1, 0.9]", got=repr(given))
    return [kind.checked(each, where) for each in given]


def _range(way: str, value: Mapping[str, Any], kind: OptionType, where: str) -> Any:
    more = {key: part for key, part in value.items() if key != way}
    if not isinstance(kind, Number | CountOption):
        raise ConfigError.build(
            where, expected=f"a list of values: {kind.expected}", got=f"a range, {way}"
        )
    whole = isinstance(kind, CountOption)
    ends = _ends(value[way], kind, f"{where} {way}")
    allowed = {"uniform": ["step"], "integer": ["step"], "log": []}[way]
    for key in more:
        if key not in allowed:
            raise ConfigError.build(
                where,
                got=f"unknown key {key!r}",
                hint=nearest(key, allowed) if allowed else f"{way} takes exactly two numbers",
            )
    if way == "integer" and not whole:
        raise ConfigError.build(where, expected="uniform or log", got="integer, for a number")
    # Whole numbers stay whole whichever way they are drawn.
    if whole:
        return search.integer(*ends, **{**more, "log": way == "log"})
    return search.log(*ends) if way == "log" else search.uniform(*ends, **more)


# --- where a recipe says nothing


def usual_space(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default space: the most important options, except options already given.

    >>> sorted(usual_space({"model": "lenet5", "batch_size": 32}))
    ['learning_rate', 'weight_decay']
    """
    found: dict[str, Any] = {
        "learning_rate": search.log(3e-4, 3e-2),
        "weight_decay": search.log(1e-3, 0.3),
        "batch_size": search.choice([32, 64, 128]),
    }
    if options.get("model", "mlp") == "mlp":
        found["hidden"] = search.choice([[64], [256], [128, 128], [256, 256]])
        found["dropout"] = search.uniform(0.0, 0.5)
    return {name: dimension for name, dimension in found.items() if name not in options}
