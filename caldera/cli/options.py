"""Every option of training, once: its key in a recipe, its flag, what it holds and what it means.

`learning_rate` in a recipe is `--learning-rate` on the command line. What an option is good for
(which models take it, which optimizers) is decided where the thing is made; see `build`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caldera.cli.option_types import (
    Choice,
    Count,
    Counts,
    Flag,
    Names,
    Number,
    OptionType,
    Text,
    Texts,
)
from caldera.cli.zoo import ZOO
from caldera.data.datasets.tables import MISSING
from caldera.data.text.tokenizer import KINDS as TOKENIZERS
from caldera.nn.basic import activations
from caldera.nn.losses import losses
from caldera.nn.metrics import metrics
from caldera.optim import decays, epoch_rules, optimizers, schedules


@dataclass(frozen=True)
class Option:
    """A key of recipes and a flag of the command line.

    >>> Option("batch_size", Count(1), "samples in a step").flag
    '--batch-size'
    """

    name: str
    kind: OptionType
    help: str
    default: Any = None

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return "--" + self.name.replace("_", "-")


CONSTANT = "constant"
"""The schedule that is none."""


def _rate_schedules() -> list[str]:
    rules = [name for name in epoch_rules if _controls_rate(name)]
    return [CONSTANT, *schedules, *rules]


def _controls_rate(name: str) -> bool:
    return getattr(epoch_rules[name], "controls", "") == "learning_rate"


DATA = (
    Option(
        "data",
        Text("NAME"),
        "digits, mnist, cifar10, cifar100, a table (.csv, .tsv, .parquet, "
        ".xlsx, .jsonl, .sqlite, .csv.gz ...), an .npz file, or a folder with a folder of "
        "images or texts for each class",
        "digits",
    ),
    Option("data_folder", Text("FOLDER"), "where the files of mnist or cifar are"),
    Option("test_part", Number(), "part of the samples to test with (where the data do not say)"),
    Option("split_seed", Count(), "which samples these are"),
    Option("target_column", Text("COLUMN"), "name or number of the column to predict (the last)"),
    Option(
        "columns", Texts("COLUMN,..."), "names or numbers of the columns to learn from (all others)"
    ),
    Option("ignore_columns", Texts("COLUMN,..."), "names or numbers of columns to leave out"),
    Option(
        "kinds",
        Texts("COLUMN=KIND,..."),
        "what columns hold, where the guess is wrong: "
        "number, category, date, date:%d/%m/%Y, text, ignored",
    ),
    Option(
        "missing",
        Choice("way with missing values", lambda: MISSING),
        "fill in what rows lack, or drop or refuse such rows (default: fill)",
    ),
    Option(
        "missing_values",
        Texts("TEXT,..."),
        "texts that stand for a missing value, beside the usual ones",
    ),
    Option(
        "decimal",
        Choice("decimal mark", lambda: [".", ","]),
        "what divides the fraction of numbers (default: as they look)",
    ),
    Option(
        "header", Flag(), "the first line of a text file holds names (default: if it has no number)"
    ),
    Option(
        "delimiter",
        Text("CHARACTER"),
        "what divides the columns of a text file (default: as it looks)",
    ),
    Option("encoding", Text("NAME"), "the encoding of a text file (default: UTF-8, or Windows)"),
    Option("sheet", Text("SHEET"), "name or number of the sheet of a workbook (the first)"),
    Option("query", Text("SQL"), "what to ask a database, such as SELECT * FROM name"),
    Option(
        "targets",
        Choice("kind of target", lambda: ["classes", "values"]),
        "whether numbers to predict are classes or values",
    ),
    Option("image_size", Counts("HEIGHT,WIDTH"), "bring the images of a folder to this size"),
    Option("channels", Count(1), "3 for colours, 1 for shades of grey (folders of images)"),
    Option("skip_broken", Flag(), "leave out images that cannot be read, and list them"),
    Option("past", Count(1), "steps to forecast from, where the rows of a table are a series"),
    Option("future", Count(1), "steps to forecast (1)"),
    Option("text_column", Text("COLUMN"), "name of the CSV column that has texts to classify"),
    Option(
        "tokenizer",
        Choice("tokenizer", lambda: TOKENIZERS),
        "what texts are divided into: " + ", ".join(TOKENIZERS) + " (words)",
    ),
    Option("tokens", Count(1), "most words, letters or byte pairs to know (20000)"),
    Option(
        "text_length",
        Count(1),
        "how many of them to keep of a text (what 95% have, at most 256 words)",
    ),
)

AUGMENTATIONS: Mapping[str, Mapping[str, Any]] = {
    "flip": {"mirror": True},
    "crop": {"crop": None},
    "cutout": {"cutout": None},
    "rotate": {"rotate": 15.0},
    "colour": {"colour": 0.2},
}
"""The options that the names of --augment stand for; None is a size that follows from the data."""

AUGMENTATION = (
    Option(
        "augment",
        Names("augmentation", lambda: AUGMENTATIONS),
        "change training images at random, by usual amounts: " + ", ".join(AUGMENTATIONS),
    ),
    Option("crop", Count(1), "shift training images by up to N pixels, at random"),
    Option("mirror", Flag(), "mirror training images left to right, at random"),
    Option("cutout", Count(1), "blank a square of N pixels in each training image"),
    Option("rotate", Number(), "turn training images by up to X degrees, at random"),
    Option("colour", Number(), "change brightness, contrast and saturation by up to this part"),
)

MODEL = (
    Option(
        "model",
        Choice("model", lambda: ZOO),
        "a network of the zoo: "
        + ", ".join(ZOO)
        + " (default: an mlp with --hidden 256,256 --dropout 0.3)",
    ),
    Option("hidden", Counts(), "units of the hidden layers (mlp)"),
    Option(
        "activation", Choice("activation", lambda: activations), "activation function (mlp, lenet5)"
    ),
    Option(
        "normalise",
        Flag(),
        "bring inputs to one scale first, with batch normalisation (default: for tables)",
    ),
    Option(
        "embedding",
        Count(1),
        "give each category and word of a table a vector of N numbers "
        "(default: a feature of its own)",
    ),
    Option("dropout", Number(), "part of the units to leave out in each step"),
    Option("pooling", Choice("kind of pooling", lambda: ["max", "average"]), "(lenet5)"),
    Option("auxiliary", Flag(), "with auxiliary heads (googlenet, inception3)"),
    Option("batch_norm", Flag(), "with batch normalisation (googlenet)"),
    Option("rescale_input", Flag(), "for torchvision's weights (googlenet, inception3)"),
    Option(
        "vocabulary", Count(1), "number of different words (gpt, lstm_classifier, text_classifier)"
    ),
    Option("width", Count(1), "size of a word's vector (gpt, lstm_classifier, text_classifier)"),
    Option("units", Count(1), "units of an LSTM layer (lstm_classifier)"),
    Option("depth", Count(1), "number of layers (gpt, lstm_classifier)"),
    Option("heads", Count(1), "heads of attention (gpt)"),
    Option("bidirectional", Flag(), "read both ways (lstm_classifier)"),
)

TRAINING = (
    Option("epochs", Count(), "passes over the training data", 30),
    Option("batch_size", Count(1), "samples in a step", 64),
    Option("batch_growth", Number(), "multiply the batch size by this from time to time"),
    Option("batch_growth_every", Count(1), "epochs between two times (1)"),
    Option("batch_growth_limit", Count(1), "largest that a batch may grow"),
    Option(
        "loss",
        Choice("loss", lambda: losses),
        "what to make small (cross_entropy for classes, mean_squared for values)",
    ),
    Option("metrics", Names("metric", lambda: metrics), "what else to measure"),
    Option("label_smoothing", Number(), "part of a target that all classes share (cross_entropy)"),
    Option(
        "class_weights",
        Texts("CLASS=X,..."),
        "how much samples of classes count; or balanced, which lets all classes count the same",
    ),
    Option("seed", Count(), "of the initial weights, the order of the samples and dropout", 0),
    Option(
        "dtype", Choice("dtype", lambda: ["float32", "float64"]), "of the parameters", "float32"
    ),
    Option(
        "precision", Choice("precision", lambda: ["float16", "bfloat16", "tf32"]), "of the products"
    ),
    Option("device", Text("NAME"), "cpu, or another this machine has"),
    Option(
        "validation_part",
        Number(),
        "part of the training data to hold out, and choose by "
        "(default: 0.2 with one of the next three or reduce_on_plateau, else none)",
    ),
    Option("patience", Count(1), "stop after N epochs without a better loss on what is held out"),
    Option(
        "keep_best", Flag(), "keep the parameters of the epoch that was best on what is held out"
    ),
    Option("target_accuracy", Number(), "stop once the accuracy on what is held out reaches this"),
    Option("time_limit", Number(), "stop after this many seconds"),
)

OPTIMIZER = (
    Option(
        "optimizer",
        Choice("optimizer", lambda: optimizers),
        ", ".join(optimizers)
        + " (default: adamw with --learning-rate 0.004 --weight-decay 0.1 --schedule cosine)",
    ),
    Option("learning_rate", Number(), "(or the optimizer's own usual one)"),
    Option("weight_decay", Number(), "strength of the weight decay"),
    Option("decay", Choice("weight decay", lambda: decays), "its kind: " + ", ".join(decays)),
    Option("momentum", Number(), "(sgd, momentum, nesterov, rmsprop, lars)"),
    Option("nesterov", Flag(), "look ahead (sgd)"),
    Option("beta1", Number(), "how slowly the mean forgets (adam and its kin, lion, lamb)"),
    Option("beta2", Number(), "how slowly the mean square forgets (adam and its kin, lamb)"),
    Option(
        "epsilon",
        Number(),
        "added to divisors (adam and its kin, lamb, adagrad, adadelta, rmsprop)",
    ),
    Option("smoothing", Number(), "how slowly the mean square forgets (adadelta, rmsprop)"),
    Option("centered", Flag(), "divide by the deviation (rmsprop)"),
    Option("trust", Number(), "part of a parameter's length that a step may have (lars)"),
    Option("clip_norm", Number(), "longest that all gradients together may be"),
    Option("clip_value", Number(), "largest that an element of a gradient may be"),
    Option("accumulate", Count(1), "batches whose gradients make one step"),
)

SCHEDULE = (
    Option(
        "schedule",
        Choice("schedule", _rate_schedules),
        "how the learning rate changes: " + ", ".join(_rate_schedules()),
    ),
    Option("schedule_steps", Count(1), "its length (cosine, one_cycle: the whole run)"),
    Option("schedule_factor", Number(), "(step_decay, exponential, reduce_on_plateau)"),
    Option("schedule_every", Count(1), "steps between two changes (step_decay)"),
    Option("schedule_at", Counts(), "steps at which it changes (step_decay)"),
    Option("schedule_warm_up", Count(), "steps in which it rises first (cosine)"),
    Option("schedule_start", Number(), "where it starts (linear_warm_up)"),
    Option("schedule_final", Number(), "where it ends (cosine)"),
    Option("schedule_rising", Number(), "part of the steps in which it rises (one_cycle)"),
    Option("schedule_start_divisor", Number(), "(one_cycle)"),
    Option("schedule_final_divisor", Number(), "(one_cycle)"),
    Option("schedule_patience", Count(), "epochs without progress (reduce_on_plateau)"),
    Option("schedule_monitor", Text("METRIC"), "what should progress (reduce_on_plateau)"),
    Option("schedule_larger_is_better", Flag(), "(reduce_on_plateau)"),
    Option("schedule_threshold", Number(), "(reduce_on_plateau)"),
    Option("schedule_cooldown", Count(), "(reduce_on_plateau)"),
    Option("schedule_minimum", Number(), "(reduce_on_plateau)"),
)

GROUPS: Mapping[str, tuple[Option, ...]] = {
    "data": DATA,
    "augmentation": AUGMENTATION,
    "model": MODEL,
    "training": TRAINING,
    "optimizer": OPTIMIZER,
    "schedule": SCHEDULE,
}
OPTIONS: Mapping[str, Option] = {
    option.name: option for group in GROUPS.values() for option in group
}


def add_options(parser: argparse.ArgumentParser, *groups: str) -> None:
    """Give a command the flags of these groups. What is not given stays away from the result."""
    for group in groups:
        section = parser.add_argument_group(f"{group} options")
        for option in GROUPS[group]:
            add_option(section, option)


def add_option(section: Any, option: Option) -> None:
    """Give a command, or a group of its flags, the flag of an option."""
    default = "" if option.default is None else f" (default: {option.default})"
    settings: dict[str, Any] = {
        "dest": option.name,
        "help": (option.help + default).replace("%", "%%"),
        "default": argparse.SUPPRESS,
    }
    if isinstance(option.kind, Flag):
        section.add_argument(option.flag, action=argparse.BooleanOptionalAction, **settings)
    else:
        section.add_argument(option.flag, metavar=option.kind.placeholder, **settings)


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that were given as flags, read and checked.

    >>> given_options(argparse.Namespace(epochs="3", hidden="8,8", out="out"))
    {'epochs': 3, 'hidden': [8, 8]}
    """
    found = {}
    for name, value in vars(arguments).items():
        option = OPTIONS.get(name)
        if option is None:
            continue
        read = option.kind.from_text if isinstance(value, str) else option.kind.checked
        found[name] = read(value, option.flag)
    return found


def names_of(groups: Iterable[str]) -> list[str]:
    """The names of all options of some groups."""
    return [option.name for group in groups for option in GROUPS[group]]
