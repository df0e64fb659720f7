"""All training options, each with its recipe key, flag, type and help text.

`learning_rate` in a recipe is `--learning-rate` on the command line. Which models or optimizers
accept an option is decided where these are built; see `build`.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caldera.cli.command import AddFlags, flag, flags, group
from caldera.cli.option_types import (
    CountOption,
    CountsOption,
    Flag,
    NameOption,
    Names,
    Number,
    OptionType,
    TextOption,
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
class RecipeOption:
    """A key of recipes and a flag of the command line.

    >>> RecipeOption("batch_size", CountOption(1), "samples in a step").flag
    '--batch-size'
    """

    name: str
    kind: OptionType
    help: str
    default: Any = None

    @property
    def flag(self) -> str:
        """Flag on the command line."""
        return "--" + self.name.replace("_", "-")

    def read(self, value: Any) -> Any:
        """Return the value of the flag: a text, or true or false."""
        read = self.kind.from_text if isinstance(value, str) else self.kind.checked
        return read(value, self.flag)


CONSTANT = "constant"
"""The schedule that is none."""


def _rate_schedules() -> list[str]:
    rules = (
        name
        for name in epoch_rules
        if getattr(epoch_rules[name], "controls", "") == "learning_rate"
    )
    return [CONSTANT, *schedules, *rules]


DATA = (
    RecipeOption(
        "data",
        TextOption("NAME"),
        "digits, mnist, cifar10, cifar100, a table (.csv, .tsv, .parquet, "
        ".xlsx, .jsonl, .sqlite, .csv.gz ...), an .npz file, or a folder with a folder of "
        "images or texts for each class",
        "digits",
    ),
    RecipeOption("data_folder", TextOption("FOLDER"), "folder of the files of mnist or cifar"),
    RecipeOption(
        "test_part", Number(), "part of the samples to test with (where the data do not say)"
    ),
    RecipeOption("split_seed", CountOption(), "seed of the selection of these samples"),
    RecipeOption(
        "target_column", TextOption("COLUMN"), "name or number of the column to predict (the last)"
    ),
    RecipeOption(
        "columns",
        Texts("COLUMN,..."),
        "names or numbers of the columns to learn from (default: all except the target)",
    ),
    RecipeOption(
        "group_column",
        TextOption("COLUMN"),
        "column, such as the patient, whose rows stay together in test data and folds",
    ),
    RecipeOption(
        "time_column",
        TextOption("COLUMN"),
        "column of dates or numbers; the latest rows are test data",
    ),
    RecipeOption("ignore_columns", Texts("COLUMN,..."), "names or numbers of columns to leave out"),
    RecipeOption(
        "kinds",
        Texts("COLUMN=KIND,..."),
        "types of columns that are detected wrongly: "
        "number, category, date, date:%d/%m/%Y, text, ignored",
    ),
    RecipeOption(
        "missing",
        NameOption("way with missing values", lambda: MISSING),
        "fill in what rows lack, or drop or refuse such rows (default: fill)",
    ),
    RecipeOption(
        "missing_values",
        Texts("TEXT,..."),
        "additional texts that mean a missing value",
    ),
    RecipeOption(
        "decimal",
        NameOption("decimal mark", lambda: [".", ","]),
        "decimal separator of numbers (default: detected)",
    ),
    RecipeOption(
        "header", Flag(), "the first line of a text file holds names (default: if it has no number)"
    ),
    RecipeOption(
        "delimiter",
        TextOption("CHARACTER"),
        "separator of the columns of a text file (default: detected)",
    ),
    RecipeOption(
        "encoding", TextOption("NAME"), "the encoding of a text file (default: UTF-8, or Windows)"
    ),
    RecipeOption(
        "sheet", TextOption("SHEET"), "name or number of the sheet of a workbook (the first)"
    ),
    RecipeOption("query", TextOption("SQL"), "query of a database, such as SELECT * FROM name"),
    RecipeOption(
        "targets",
        NameOption("kind of target", lambda: ["classes", "values"]),
        "meaning of numeric targets: classes or values",
    ),
    RecipeOption(
        "image_size", CountsOption("HEIGHT,WIDTH"), "resize the images of a folder to this size"
    ),
    RecipeOption(
        "channels", CountOption(1), "3 for colours, 1 for shades of grey (folders of images)"
    ),
    RecipeOption("skip_broken", Flag(), "leave out images that cannot be read, and list them"),
    RecipeOption(
        "past", CountOption(1), "steps to forecast from, where the rows of a table are a series"
    ),
    RecipeOption("future", CountOption(1), "steps to forecast (1)"),
    RecipeOption(
        "text_column", TextOption("COLUMN"), "name of the CSV column of texts to classify"
    ),
    RecipeOption(
        "tokenizer",
        NameOption("tokenizer", lambda: TOKENIZERS),
        "tokens of texts: " + ", ".join(TOKENIZERS) + " (words)",
    ),
    RecipeOption("tokens", CountOption(1), "maximum size of the vocabulary (20000)"),
    RecipeOption(
        "text_length",
        CountOption(1),
        "maximum number of tokens of a text (default: enough for 95% of texts, at most 256 words)",
    ),
)

AUGMENTATIONS: Mapping[str, Mapping[str, Any]] = {
    "flip": {"mirror": True},
    "crop": {"crop": None},
    "cutout": {"cutout": None},
    "rotate": {"rotate": 15.0},
    "colour": {"colour": 0.2},
}
"""Options for each name of --augment; None stands for a size derived from the data."""

AUGMENTATION = (
    RecipeOption(
        "augment",
        Names("augmentation", lambda: AUGMENTATIONS),
        "change training images at random, by usual amounts: " + ", ".join(AUGMENTATIONS),
    ),
    RecipeOption("crop", CountOption(1), "shift training images by up to N pixels, at random"),
    RecipeOption("mirror", Flag(), "mirror training images left to right, at random"),
    RecipeOption("cutout", CountOption(1), "blank a square of N pixels in each training image"),
    RecipeOption("rotate", Number(), "turn training images by up to X degrees, at random"),
    RecipeOption(
        "colour", Number(), "change brightness, contrast and saturation by up to this part"
    ),
)

MODEL = (
    RecipeOption(
        "model",
        NameOption("model", lambda: ZOO),
        "a network of the zoo: "
        + ", ".join(ZOO)
        + " (default: an mlp with --hidden 256,256 --dropout 0.3)",
    ),
    RecipeOption("hidden", CountsOption(), "units of the hidden layers (mlp)"),
    RecipeOption(
        "activation",
        NameOption("activation", lambda: activations),
        "activation function (mlp, lenet5)",
    ),
    RecipeOption(
        "normalise",
        Flag(),
        "scale the inputs with batch normalisation (default: for tables)",
    ),
    RecipeOption(
        "embedding",
        CountOption(1),
        "embed each category and word of a table in a vector of N numbers (default: embeddings "
        "by rule for columns of more than 30 categories, one-hot features otherwise)",
    ),
    RecipeOption("dropout", Number(), "part of the units to leave out in each step"),
    RecipeOption("pooling", NameOption("kind of pooling", lambda: ["max", "average"]), "(lenet5)"),
    RecipeOption("auxiliary", Flag(), "with auxiliary heads (googlenet, inception3)"),
    RecipeOption("batch_norm", Flag(), "with batch normalisation (googlenet)"),
    RecipeOption("rescale_input", Flag(), "for torchvision's weights (googlenet, inception3)"),
    RecipeOption(
        "vocabulary",
        CountOption(1),
        "number of different words (gpt, lstm_classifier, text_classifier)",
    ),
    RecipeOption(
        "width", CountOption(1), "size of a word's vector (gpt, lstm_classifier, text_classifier)"
    ),
    RecipeOption("units", CountOption(1), "units of an LSTM layer (lstm_classifier)"),
    RecipeOption("depth", CountOption(1), "number of layers (gpt, lstm_classifier)"),
    RecipeOption("heads", CountOption(1), "heads of attention (gpt)"),
    RecipeOption("bidirectional", Flag(), "read both ways (lstm_classifier)"),
)

TRAINING = (
    RecipeOption("epochs", CountOption(), "passes over the training data", 30),
    RecipeOption("batch_size", CountOption(1), "samples in a step", 64),
    RecipeOption(
        "batch_growth",
        Number(),
        "multiply the batch size by this every --batch-growth-every epochs",
    ),
    RecipeOption("batch_growth_every", CountOption(1), "epochs between two changes (1)"),
    RecipeOption("batch_growth_limit", CountOption(1), "maximum batch size"),
    RecipeOption(
        "loss",
        NameOption("loss", lambda: losses),
        "loss function (cross_entropy for classes, mean_squared for values)",
    ),
    RecipeOption("metrics", Names("metric", lambda: metrics), "further metrics to measure"),
    RecipeOption(
        "label_smoothing", Number(), "part of a target that all classes share (cross_entropy)"
    ),
    RecipeOption(
        "class_weights",
        Texts("CLASS=X,..."),
        "weights of samples by class; or balanced, for equal total weight of all classes",
    ),
    RecipeOption(
        "folds",
        CountOption(2),
        "cross-validate in this number of folds: by group if one is given; with a time column, "
        "each fold tests on later rows than it trains on",
    ),
    RecipeOption(
        "threshold",
        TextOption("best-f1|X"),
        "probability from which the rarer of two classes is predicted; or best-f1, chosen on the "
        "validation data",
    ),
    RecipeOption(
        "interval",
        Number(),
        "probability of intervals around predicted values, such as 0.9, learnt from errors on "
        "rows that were not trained on",
    ),
    RecipeOption(
        "seed", CountOption(), "of the initial weights, the order of the samples and dropout", 0
    ),
    RecipeOption(
        "dtype", NameOption("dtype", lambda: ["float32", "float64"]), "of the parameters", "float32"
    ),
    RecipeOption(
        "precision",
        NameOption("precision", lambda: ["float16", "bfloat16", "tf32", "float8"]),
        "of the products",
    ),
    RecipeOption("device", TextOption("NAME"), "cpu, or another device of this machine"),
    RecipeOption(
        "validation_part",
        Number(),
        "fraction of the training data held out for validation "
        "(default: 0.2 with one of the next three or reduce_on_plateau, else none)",
    ),
    RecipeOption(
        "patience",
        CountOption(1),
        "stop after N epochs without a better loss on the validation data",
    ),
    RecipeOption(
        "keep_best", Flag(), "keep the parameters of the epoch with the best validation result"
    ),
    RecipeOption(
        "target_accuracy", Number(), "stop once the accuracy on the validation data reaches this"
    ),
    RecipeOption("time_limit", Number(), "stop after this many seconds"),
    RecipeOption("time", Number(), "train for this long, in seconds; a blend uses the whole time"),
    RecipeOption("fast", Flag(), "train a table with one network, without a blend"),
)

OPTIMIZER = (
    RecipeOption(
        "optimizer",
        NameOption("optimizer", lambda: optimizers),
        ", ".join(optimizers)
        + " (default: adamw with --learning-rate 0.004 --weight-decay 0.1 --schedule cosine)",
    ),
    RecipeOption("learning_rate", Number(), "(or the optimizer's own usual one)"),
    RecipeOption("weight_decay", Number(), "strength of the weight decay"),
    RecipeOption(
        "decay", NameOption("weight decay", lambda: decays), "its kind: " + ", ".join(decays)
    ),
    RecipeOption("momentum", Number(), "(sgd, momentum, nesterov, rmsprop, lars)"),
    RecipeOption("nesterov", Flag(), "look ahead (sgd)"),
    RecipeOption(
        "beta1", Number(), "decay rate of the running mean (adam and its kin, lion, lamb)"
    ),
    RecipeOption(
        "beta2", Number(), "decay rate of the running mean square (adam and its kin, lamb)"
    ),
    RecipeOption(
        "epsilon",
        Number(),
        "added to divisors (adam and its kin, lamb, adagrad, adadelta, rmsprop)",
    ),
    RecipeOption(
        "smoothing", Number(), "decay rate of the running mean square (adadelta, rmsprop)"
    ),
    RecipeOption("centered", Flag(), "divide by the deviation (rmsprop)"),
    RecipeOption("amsgrad", Flag(), "divide by the largest mean square so far (adam, adamw)"),
    RecipeOption("momentum_decay", Number(), "growth rate of the momentum (nadam)"),
    RecipeOption("power", Number(), "exponent of the decay over steps (adafactor, asgd)"),
    RecipeOption("least_size", Number(), "smallest size of a parameter that counts (adafactor)"),
    RecipeOption("most_change", Number(), "largest change of a parameter (adafactor)"),
    RecipeOption("shrinkage", Number(), "decay of the step size (asgd)"),
    RecipeOption("iterations", CountOption(1), "Newton-Schulz iterations (muon)"),
    RecipeOption("scale", TextOption("NAME"), "of steps: original or match_rms_adamw (muon)"),
    RecipeOption("history", CountOption(1), "number of stored steps (lbfgs)"),
    RecipeOption("line_search", TextOption("NAME"), "strong_wolfe, or none (lbfgs)"),
    RecipeOption("most_trials", CountOption(1), "evaluations of a line search (lbfgs)"),
    RecipeOption("tolerance", Number(), "gradient at which it stops (lbfgs)"),
    RecipeOption("least_change", Number(), "change at which it stops (lbfgs)"),
    RecipeOption("trust", Number(), "part of a parameter's length that a step may have (lars)"),
    RecipeOption("clip_norm", Number(), "maximum norm of all gradients together"),
    RecipeOption("clip_value", Number(), "maximum absolute value of an element of a gradient"),
    RecipeOption(
        "accumulate", CountOption(1), "number of batches whose gradients are accumulated for a step"
    ),
)

SCHEDULE = (
    RecipeOption(
        "schedule",
        NameOption("schedule", _rate_schedules),
        "learning-rate schedule: " + ", ".join(_rate_schedules()),
    ),
    RecipeOption("schedule_steps", CountOption(1), "its length (cosine, one_cycle: the whole run)"),
    RecipeOption("schedule_factor", Number(), "(step_decay, exponential, reduce_on_plateau)"),
    RecipeOption("schedule_every", CountOption(1), "steps between two changes (step_decay)"),
    RecipeOption("schedule_at", CountsOption(), "steps at which it changes (step_decay)"),
    RecipeOption("schedule_warm_up", CountOption(), "steps in which it rises first (cosine)"),
    RecipeOption("schedule_start", Number(), "initial learning rate (linear_warm_up)"),
    RecipeOption("schedule_final", Number(), "final learning rate (cosine)"),
    RecipeOption("schedule_rising", Number(), "part of the steps in which it rises (one_cycle)"),
    RecipeOption("schedule_start_divisor", Number(), "(one_cycle)"),
    RecipeOption("schedule_final_divisor", Number(), "(one_cycle)"),
    RecipeOption("schedule_patience", CountOption(), "epochs without progress (reduce_on_plateau)"),
    RecipeOption(
        "schedule_monitor", TextOption("METRIC"), "monitored quantity (reduce_on_plateau)"
    ),
    RecipeOption("schedule_larger_is_better", Flag(), "(reduce_on_plateau)"),
    RecipeOption("schedule_threshold", Number(), "(reduce_on_plateau)"),
    RecipeOption("schedule_cooldown", CountOption(), "(reduce_on_plateau)"),
    RecipeOption("schedule_minimum", Number(), "(reduce_on_plateau)"),
    RecipeOption("schedule_least_change", Number(), "(reduce_on_plateau)"),
)

GROUPS: Mapping[str, tuple[RecipeOption, ...]] = {
    "data": DATA,
    "augmentation": AUGMENTATION,
    "model": MODEL,
    "training": TRAINING,
    "optimizer": OPTIMIZER,
    "schedule": SCHEDULE,
}
OPTIONS: Mapping[str, RecipeOption] = {
    option.name: option for group in GROUPS.values() for option in group
}


def option_flags(*groups: str, without: Collection[str] = ()) -> AddFlags:
    """Return the flags of these groups; flags that are not given are absent from the result.

    `without` names options that the command does not take.
    """
    taken = {name: [each for each in GROUPS[name] if each.name not in without] for name in groups}
    return flags(*(group(f"{name} options", *map(option_flag, own)) for name, own in taken.items()))


def option_flag(option: RecipeOption) -> AddFlags:
    """Return the flag of an option, for a command or a group of its flags."""
    default = "" if option.default is None else f" (default: {option.default})"
    kind: dict[str, Any] = {"metavar": option.kind.placeholder}
    if isinstance(option.kind, Flag):
        kind = {"action": argparse.BooleanOptionalAction}
    return flag(
        option.flag,
        dest=option.name,
        help=(option.help + default).replace("%", "%%"),
        default=argparse.SUPPRESS,
        **kind,
    )


def given_options(
    arguments: argparse.Namespace, names: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the options given as flags, parsed and checked, restricted to `names`.

    >>> given_options(argparse.Namespace(epochs="3", hidden="8,8", out="out"))
    {'epochs': 3, 'hidden': [8, 8]}
    """
    known = OPTIONS if names is None else names
    given = {name: value for name, value in vars(arguments).items() if name in known}
    return {name: OPTIONS[name].read(value) for name, value in given.items()}


def names_of(groups: Iterable[str]) -> list[str]:
    """Return the names of all options of some groups."""
    return [option.name for group in groups for option in GROUPS[group]]
