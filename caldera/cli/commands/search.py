"""`caldera search`: finds good hyper-parameters for a network on a data set, without any code."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from caldera import search
from caldera.base.arguments import require
from caldera.cli.build import (
    VALIDATION_PART,
    make_callbacks,
    make_class_weights,
    make_model,
    resolved,
)
from caldera.cli.command import Command, UsageError, flag, flags, group
from caldera.cli.datasets import augmented, load_data
from caldera.cli.job_scripts import SLURM_FLAGS, hand_out, requested, without_flags
from caldera.cli.option_types import CountOption
from caldera.cli.options import GROUPS, OPTIONS, given_options, names_of, option_flag, option_flags
from caldera.cli.prediction_inputs import results_line
from caldera.cli.recipe import complete, read_recipe, write_recipe
from caldera.cli.search_recipe import OWN, SearchRecipe, read_search_recipe, usual_space
from caldera.data import Dataset
from caldera.errors import ConfigError
from caldera.search.charts import cell_text
from caldera.search.method import methods
from caldera.search.workers import is_master

OPTIONS_FILE = "options.toml"
BEST_RECIPE = "best.toml"
PAGE = "report.html"
PLOT = "study.svg"


_OF_ONE_TRAINING = ("time", "fast", "threshold", "folds", "interval")
"""Options that a search does not have; `--time` is of job scripts."""

add_flags = flags(
    flag(
        "recipe",
        nargs="?",
        metavar="recipe.toml",
        help="file with options and a table [space], the search space; flags override it",
    ),
    flag(
        "--out",
        default="study",
        metavar="FOLDER",
        help="folder of the study; an existing study continues (default: study)",
    ),
    flag(
        "--objective",
        metavar="METRIC,...",
        help="quantity to optimise, such as val_accuracy; several for a Pareto front",
    ),
    flag("--quiet", action="store_true", help="show no progress"),
    group(
        "job scripts",
        flag("--slurm", metavar="N", help="print a batch script of N tasks that search together"),
        SLURM_FLAGS,
    ),
    group("search options", *map(option_flag, OWN)),
    # Trials are single networks, and --time is the limit of a job.
    option_flags(*GROUPS, without=_OF_ONE_TRAINING),
)
"""The flags of `search`: its own, and the options of a recipe."""


def run(arguments: argparse.Namespace) -> int:
    """Search, and write the study, its page and the best model."""
    recipe = _recipe(arguments)
    if arguments.slurm is not None:
        return _array(arguments, recipe)
    found = load_data(complete(recipe.options))
    options = resolved(complete(recipe.options), found)
    objective = recipe.settings.pop("objective", None)
    objective = objective or search.metric("val_accuracy" if found.classes else "val_loss")
    data = _prepared(found, options, objective.folds)
    folder = Path(arguments.out)
    if is_master():
        print(_described(recipe, options, found), flush=True)
        _keep_options(folder, recipe.options)

    def build(seed: int, **parameters: Any) -> Any:
        return make_model(complete(recipe.options | parameters | {"seed": seed}), data)

    study = search.run(
        build,
        recipe.space,
        data,
        objective=objective,
        folder=folder,
        seed=options["seed"],
        epochs=options["epochs"],
        fit={
            "callbacks": lambda: make_callbacks(options),
            "class_weights": make_class_weights(options),
        },
        verbose=0 if arguments.quiet else None,
        **recipe.settings,
    )
    # Under `caldera run` only the master writes; the remaining ranks were its workers.
    return _written(study, folder, recipe, found) if is_master() else 0


def _array(arguments: argparse.Namespace, recipe: SearchRecipe) -> int:
    """Print or submit a job array, whose tasks run the same command."""
    tasks = CountOption(1).from_text(arguments.slurm, "--slurm")
    require(
        recipe.settings.get("storage"),
        "search --slurm",
        "--storage ADDRESS, a database that all tasks reach",
        hint="a search without one: caldera run --slurm -n 9 caldera search ...",
    )
    words = [sys.executable, "-m", "caldera", *without_flags(arguments.words, "--slurm")]
    return hand_out(requested(arguments, words, ranks=0, array=tasks, name="search"), arguments)


def _recipe(arguments: argparse.Namespace) -> SearchRecipe:
    """Return the recipe overridden by the flags."""
    given = arguments.recipe
    recipe = read_search_recipe(given) if given else SearchRecipe({}, {}, {})
    own = {option: getattr(arguments, option.name, None) for option in OWN}
    settings = recipe.settings | {
        option.name: option.read(value) for option, value in own.items() if value is not None
    }
    if arguments.objective:
        names = arguments.objective.split(",")
        settings["objective"] = search.pareto(*names) if len(names) > 1 else search.metric(names[0])
    options = recipe.options | given_options(arguments, set(OPTIONS).difference(_OF_ONE_TRAINING))
    # A flag fixes a value that the recipe would search.
    space = {name: each for name, each in recipe.space.items() if name not in options}
    space = space if recipe.space else usual_space(options)
    if not space:
        raise UsageError.build(
            "caldera search",
            expected="something to search",
            got="a value for every parameter",
            hint="leave one out, or name it in the [space] of a recipe",
        )
    if "trials" not in settings and _is_endless(settings):
        raise UsageError.build(
            "--trials",
            expected="a number of trials",
            got="none",
            hint="give --trials 100, or --seconds 3600",
        )
    return replace(recipe, options=options, space=space, settings=settings)


def _is_endless(settings: dict[str, Any]) -> bool:
    """Return True if neither a time limit nor the method ends the search early."""
    method = settings.get("method", "random")
    kind = methods[method] if isinstance(method, str) else type(method)
    return "seconds" not in settings and not getattr(kind, "ends", False)


def _prepared(found: Dataset, options: dict[str, Any], folds: int) -> Dataset:
    """Return the data with a part held out to choose by; folds take their parts themselves."""
    if folds == 1:
        part = options.get("validation_part", VALIDATION_PART)
        return augmented(found.hold_out(part, options["seed"]), options)
    changes = [name for name in names_of(["augmentation"]) if options.get(name)]
    if changes:
        raise ConfigError.build(
            changes[0],
            expected="no augmentation with folds",
            got=f"{options[changes[0]]}",
            hint="choose by a held-out part, or by several seeds",
        )
    return found


def _keep_options(folder: Path, options: dict[str, Any]) -> None:
    """Write the options that all trials share, unless a study with others is there."""
    path = folder / OPTIONS_FILE
    before = read_recipe(path) if path.is_file() and search.is_study(folder) else options
    changed = [k for k in {**before, **options} if before.get(k) != options.get(k)]
    if changed:
        raise UsageError.build(
            "--out",
            expected=f"the options of the study in {folder}",
            got=f"another {changed[0]}",
            hint="name another folder, or delete this one",
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_recipe(path, options)


def _written(study: search.Study, folder: Path, recipe: SearchRecipe, found: Dataset) -> int:
    counts = {state: n for state, n in study.counts().items() if n}
    print("trials  " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    best = study.best_or_none()
    failed = study.of_state("failed")
    if best is None and failed:
        print(f"failed  trial {failed[-1].number}: {failed[-1].reason}")
    written = [study.page(folder / PAGE), study.plot(folder / PLOT)]
    if best is not None:
        named = zip(study.objective.names(), best.values or (), strict=True)
        print(f"best    trial {best.number}: " + "  ".join(f"{n} {v:.6g}" for n, v in named))
        chosen = ", ".join(f"{n} {cell_text(v)}" for n, v in best.parameters.items())
        print(f"with    {chosen}")
        if study.test:
            print(f"test    {results_line(study.test)}")
        if (luck := study.luck()) is not None:
            print(f"luck    {luck}")
        options = complete(recipe.options | best.parameters | {"seed": best.seed})
        write_recipe(folder / BEST_RECIPE, options)
        model = best.model.save(folder / f"{Path(found.name).stem}.caldera")
        written = [model, *written, folder / BEST_RECIPE]
    for path in written:
        print(f"wrote   {path}")
    over = sum(counts.get(state, 0) for state in ("done", "stopped", "failed"))
    wanted = recipe.settings.get("trials")
    if over < len(study.trials) or (wanted and over < wanted and _is_endless(recipe.settings)):
        print("stopped early: the same command continues it")
        return 130
    return 0 if best is not None else 1


def _described(recipe: SearchRecipe, options: dict[str, Any], found: Dataset) -> str:
    classes = f", {found.classes} classes" if found.classes else ""
    settings = recipe.settings
    method = settings.get("method", "random")
    stop = f", stopped by {settings['stop']}" if "stop" in settings else ""
    trials = f", {settings['trials']} trials" if "trials" in settings else ""
    return (
        f"data    {found.name}: {len(found.train)} samples, {len(found.test)} to test once, "
        f"shape {found.shape}{classes}\n"
        f"space   {', '.join(recipe.space)}\n"
        f"search  {method}{stop}{trials}, epochs {options['epochs']} of {options['model']}"
    )


COMMAND = Command(
    name="search",
    takes="[recipe.toml]",
    summary="Search for good hyper-parameters of a network; write every trial and the best model.",
    examples="""
        caldera search --data table.csv --trials 50
        caldera search recipe.toml --data table.csv --trials 100
        caldera search --data digits --trials 100 --method tpe --stop asha --epochs 30
        caldera search recipe.toml --objective val_accuracy,seconds --method nsga2 --trials 200
        caldera search --trials 500 --storage postgresql://me@host/studies --slurm 8 --time 2h
        caldera report study
    """,
    add_flags=add_flags,
    run=run,
    order=15,
)
