"""`caldera train`: trains a network of the zoo on a data set, and writes the results."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.formatting import table_lines
from caldera.cli.build import (
    check_interval,
    check_interval_rows,
    held_out,
    make_callbacks,
    make_class_weights,
    make_model,
    resolved,
    set_threshold,
    with_ends,
)
from caldera.cli.command import Command, UsageError, flag, flags
from caldera.cli.datasets import augmented, load_data, show_findings, split_seed
from caldera.cli.options import GROUPS, given_options, option_flags
from caldera.cli.prediction_inputs import results_line
from caldera.cli.recipe import complete, read_recipe, write_recipe
from caldera.cli.table_blend import (
    BLEND,
    blend_lines,
    blend_options,
    fold_line,
    parameters_text,
    train_blend,
    trains_blend,
)
from caldera.data import Dataset, Schema
from caldera.train.model import Model
from caldera.train.neural_network import NeuralNetwork
from caldera.train.saving.checkpoint import CheckpointFolder
from caldera.train.tracking.history import History
from caldera.train.tracking.leaderboard import leader_rows, rows_of
from caldera.train.tracking.run_folder import CURVES, GRAPH, HISTORY, RUN, RunFolder
from caldera.train.tracking.run_record import RunRecord

RECIPE = "recipe.toml"
_MOST_COLUMNS = 40
"""Columns of a table that are shown."""


add_flags = flags(
    flag(
        "source",
        nargs="?",
        metavar="DATA|recipe.toml",
        help="data, as for --data; or a file of options named like the flags, with underscores, "
        "which flags override",
    ),
    flag(
        "--out",
        default="out",
        metavar="FOLDER",
        help="folder for model, curves, graph, history, recipe (default: out)",
    ),
    flag("--checkpoint", metavar="FOLDER", help="save the state of the run here"),
    flag("--resume", action="store_true", help="continue from the state in --checkpoint"),
    flag("--quiet", action="store_true", help="show no progress"),
    flag("--strict", action="store_true", help="do not train on a table with faults"),
    option_flags(*GROUPS),
)
"""The flags of `train`: its own, and every option of a recipe."""


def run(arguments: argparse.Namespace) -> int:
    """Train, test and write the results."""
    if arguments.resume and not arguments.checkpoint:
        raise UsageError.build("--resume", expected="--checkpoint FOLDER with it", got="none")
    there = CheckpointFolder(arguments.checkpoint).steps() if arguments.checkpoint else []
    if there and not arguments.resume:
        raise UsageError.build(
            "--checkpoint",
            expected="a folder without checkpoints",
            got=f"a checkpoint of step {there[0]} in {arguments.checkpoint}",
            hint="continue it with --resume, or use another folder",
        )
    recipe = _given(arguments)
    options = complete(recipe)
    found = load_data(options)
    check_interval(options, found)
    show_findings(found, strict=arguments.strict)
    kept = RunFolder(arguments.out)
    is_blend = not arguments.checkpoint and trains_blend(recipe, found)
    options = blend_options(options) if is_blend else resolved(options, found)
    if is_blend:
        lines = [_data_lines(found), BLEND]
    else:
        found = augmented(held_out(found, options), options)
        model = make_model(options, found)
        lines = [_described(options, found, model)]
    check_interval_rows(options, found)
    print("\n".join([*_columns(found), *lines]), flush=True)
    kept.path.mkdir(parents=True, exist_ok=True)
    write_recipe(kept.path / RECIPE, options)
    started = time.perf_counter()
    table = None
    if "folds" in options and (line := fold_line(options, found, is_blend)):
        print(line, flush=True)
    if is_blend:
        table = train_blend(options, found, verbose=0 if arguments.quiet else None)
        model, history = table.model, table.history
        print("\n".join(blend_lines(table)))
    else:
        history = _fitted(model, options, found, arguments)
    set_threshold(options, model, found, history, table)
    model = with_ends(options, model, found, table)
    seconds = time.perf_counter() - started
    if history.stopped and arguments.quiet:
        print(f"stopped: {history.stopped}")
    status = _status(history.stopped)
    # Who ends a run does not want to wait.
    settings = options | split_seed(options)
    record = kept.write(model, history, found, settings=settings, measured=not status)
    is_untrained = options.get("epochs") == 0
    trained = "not trained: 0 epochs" if is_untrained else f"trained for {seconds:.1f} s"
    _print_results(record, model, found, trained)
    names = [kept.model_file(found.name).name, CURVES, GRAPH, HISTORY, RUN, RECIPE]
    for path in [kept.path / name for name in names]:
        if path.is_file():
            print(f"wrote   {path}")
    print(f"report  caldera report {kept.path}")
    return status


def _print_results(record: RunRecord, model: Model, found: Dataset, trained: str) -> None:
    """Print results on held-out and test samples, and the leaderboard of a table."""
    if record.held_out:
        held = f"{len(found.validation or ()):,} held-out samples of the training data"
        print(f"holdout {results_line(record.held_out)}  ({held})")
    if record.results:
        print(f"test    {results_line(record.results)}  ({trained})")
    if found.validation is not None:
        print(f"model   {record.selection}")
    if model.schema is not None and model.schema.threshold is not None and record.confusion:
        print(f"model   {_threshold_line(model.schema, record.confusion)}")
    if model.schema is not None and model.schema.interval is not None and len(found.test):
        print(f"model   {_interval_line(model, found)}")
    if record.leaderboard:
        head, *rows = leader_rows(record.leaderboard, found.classes)
        print(*(f"        {line}" for line in table_lines([head, *rows], left=(0,))), sep="\n")


def _fitted(
    model: NeuralNetwork, options: dict[str, Any], found: Dataset, arguments: argparse.Namespace
) -> History:
    """Train a single network."""
    # Without held-out samples no selection is made, so the test data may serve as validation.
    shown = found.test if len(found.test) else None
    return model.fit(
        found.train,
        validation=shown if found.validation is None else found.validation,
        verbose=0 if arguments.quiet else None,
        callbacks=make_callbacks(options),
        checkpoint=arguments.checkpoint,
        class_weights=make_class_weights(options),
        resume=arguments.resume,
    )


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options given as flags and in a recipe, or with the data as the argument."""
    source, given = arguments.source, given_options(arguments)
    if source is None:
        return given
    if Path(source).suffix.lower() in (".toml", ".caldera"):
        return read_recipe(source) | given
    if "data" in given:
        raise UsageError.build(
            "--data", expected="data once", got=f"{source} and {given['data']}", hint="drop one"
        )
    return {"data": source} | given


def _threshold_line(schema: Schema, confusion: list[list[int]]) -> str:
    """Return a line about the threshold, with the F1 of its class on the test data."""
    assert schema.threshold is not None
    name, probability = schema.threshold.name, schema.threshold.probability
    place = schema.classes.index(name)
    right, other = confusion[place][place], confusion[1 - place]
    f1 = 2 * right / max(sum(confusion[place]) + right + other[place], 1)
    return (
        f"{name!r} is predicted from a probability of {probability:.3g}: F1 {f1:.3f} on test data"
    )


def _interval_line(model: Model, found: Dataset) -> str:
    """Return a line about the intervals: their widths, and their coverage of the test data."""
    x, y = rows_of(found.test, 0)
    _, low, high = model.predict(x).T
    assert model.schema is not None
    assert model.schema.interval is not None
    inside = float(((y >= low) & (y <= high)).mean())
    least, usual, most = np.quantile(high - low, [0.05, 0.5, 0.95])
    return (
        f"intervals of {model.schema.interval:.0%}: width {least:.4g} to {most:.4g}, median "
        f"{usual:.4g}; {inside:.1%} of {len(y):,} test values are inside"
    )


def _status(stopped: str) -> int:
    """Return the exit status, which is a signal's if a signal ended the run."""
    names = {"interrupted": "SIGINT"} | {f"signal {name}": name for name in ("SIGTERM", "SIGUSR1")}
    return 128 + signal.Signals[names[stopped]] if stopped in names else 0


def _columns(found: Dataset) -> list[str]:
    """Return lines that describe the treatment of each table column."""
    said = [f"note    {each}" for each in found.notes]
    if found.schema is None or not found.schema.columns:
        return said
    lines = found.schema.describe().splitlines()
    if len(lines) > _MOST_COLUMNS:
        lines = [*lines[:_MOST_COLUMNS], f"... and {len(lines) - _MOST_COLUMNS} more"]
    return [*said, *(f"{'' if row else 'columns':7} {line}" for row, line in enumerate(lines))]


def _data_lines(found: Dataset) -> str:
    classes = f", {found.classes} classes" if found.classes else ""
    held = "" if found.validation is None else f"{len(found.validation)} to choose by, "
    dropped = f" ({found.dropped} rows without all values dropped)" if found.dropped else ""
    return (
        f"data    {found.name}: {len(found.train)} samples to train, {held}"
        f"{len(found.test)} to test, shape {found.shape}{classes}{dropped}"
    )


def _described(options: dict[str, Any], found: Dataset, model: NeuralNetwork) -> str:
    rate = options.get("learning_rate")
    optimizer = options["optimizer"] + (f", learning rate {rate:g}" if rate else "")
    if "schedule" in options:
        optimizer += f" ({options['schedule']})"
    return (
        f"{_data_lines(found)}\n"
        f"model   {options['model']}: {parameters_text(model)}\n"
        f"recipe  {optimizer}, epochs {options['epochs']}, batches of {options['batch_size']}, "
        f"seed {options['seed']}, on {model.device.name}"
    )


COMMAND = Command(
    name="train",
    takes="[DATA|recipe.toml]",
    summary="Train a network on a data set; write the model, learning curves and the graph.",
    examples="""
        caldera train
        caldera train mnist --model lenet5 --epochs 5
        caldera train flowers.csv --target-column name --hidden 64,64 --dropout 0.2
        caldera train recipe.toml --seed 1 --out second
        caldera train --optimizer sgd --learning-rate 0.05 --momentum 0.9 --schedule cosine
        caldera train --epochs 100 --checkpoint run --resume
    """,
    add_flags=add_flags,
    run=run,
    order=10,
)
