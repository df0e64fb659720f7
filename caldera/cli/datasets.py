"""From options to data: a data set by its name, a file or a folder."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caldera import data
from caldera.base.arguments import require
from caldera.base.registry import nearest
from caldera.cli.options import AUGMENTATIONS, names_of
from caldera.data import Dataset, Schema
from caldera.data.datasets.texts import is_text_folder
from caldera.data.tables.reading import SUFFIXES, is_table_file
from caldera.errors import ConfigError, DataError, ShapeError


@dataclass(frozen=True)
class DataSource:
    """Source of samples: the function that makes the data set, and the options it accepts."""

    make: Callable[..., Dataset]
    options: Mapping[str, str]
    """The argument for each option."""
    takes_schema: bool = False
    """True if a model's schema can select the columns."""


_SPLIT = {"test_part": "test", "split_seed": "seed"}
_FOLDER = {"data_folder": "folder"}

NAMED: Mapping[str, DataSource] = {
    "digits": DataSource(data.digits, _SPLIT),
    "mnist": DataSource(data.mnist, _FOLDER),
    "cifar10": DataSource(data.cifar10, _FOLDER),
    "cifar100": DataSource(data.cifar100, _FOLDER),
}
_READING = {
    name: name
    for name in ("delimiter", "header", "decimal", "encoding", "sheet", "query", "missing_values")
}
IMAGES = DataSource(
    data.images,
    {**_SPLIT, "image_size": "size", "channels": "channels", "skip_broken": "skip_broken"},
)
TEXTS = DataSource(
    data.texts,
    {
        **_SPLIT,
        "text_column": "text",
        "target_column": "target",
        "tokenizer": "tokenizer",
        "tokens": "vocabulary",
        "text_length": "length",
    },
    takes_schema=True,
)
TABLE = DataSource(
    data.table,
    {
        **_SPLIT,
        **_READING,
        "target_column": "target",
        "columns": "columns",
        "ignore_columns": "ignore",
        "group_column": "group",
        "time_column": "time",
        "kinds": "kinds",
        "missing": "missing",
        "targets": "classes",
    },
    takes_schema=True,
)
WINDOWS = DataSource(
    data.windows,
    {"past": "past", "future": "future", "target_column": "target", "test_part": "test"},
)
NPZ = DataSource(data.npz, {**_SPLIT, "targets": "classes"})


def load_data(options: Mapping[str, Any], schema: Schema | None = None) -> Dataset:
    """Return the data set that the options name; a table is read as the `schema` of a model says.

    >>> load_data({"data": "digits", "test_part": 0.5})
    Dataset(digits: 899 samples to train, 898 to test, shape (1, 8, 8), 10 classes)
    >>> load_data({"data": "minst"})
    Traceback (most recent call last):
    caldera.errors.ConfigError: data: expected a data set, a file or a folder, got 'minst'; did you mean 'mnist'?
    """  # noqa: E501
    name = options["data"]
    source, leading = _source(options)
    given = [option for option in names_of(["data"])[1:] if option in options]
    for option in given:
        if option not in source.options:
            raise ConfigError.build(
                f"data {name}",
                expected="an option it takes",
                got=repr(option),
                hint=nearest(option, source.options),
            )
    by_name = source in (TEXTS, WINDOWS)
    arguments = {
        source.options[option]: _argument(option, options[option], by_name=by_name)
        for option in given
    }
    if source.takes_schema and schema is not None and (schema.columns or schema.text):
        arguments["schema"] = schema
    with warnings.catch_warnings():
        # The notes of the data set contain these warnings.
        warnings.simplefilter("ignore", UserWarning)
        return source.make(*leading, **arguments)


def show_findings(found: Dataset, *, strict: bool = False) -> None:
    """Print the findings of the data doctor, a line each; with `strict`, faults are an error."""
    for each in found.findings:
        print(f"{'fault' if each.is_fault else 'check':7} {each}", flush=True)
    faults = sum(each.is_fault for each in found.findings)
    require(
        not (strict and faults),
        f"data {found.name}",
        "no faults",
        f"{faults}, listed above",
        "mend the table or name its columns and missing values; without --strict it is used as is",
        error=DataError,
    )


def has_texts(options: Mapping[str, Any]) -> bool:
    """Return True if the data are texts: a column of a table, or folders of text files."""
    if "text_column" in options:
        return True
    path = Path(options["data"]).expanduser() if options.get("data") else None
    return path is not None and path.is_dir() and is_text_folder(path)


def split_seed(options: Mapping[str, Any]) -> dict[str, int]:
    """Return the seed option of the test split, if the data are split here.

    >>> split_seed({"data": "digits"}), split_seed({"data": "mnist"})
    ({'split_seed': 0}, {})
    """
    source, _ = _source(options)
    if "split_seed" not in source.options:
        return {}
    usual = inspect.signature(source.make).parameters["seed"].default
    return {"split_seed": options.get("split_seed", usual)}


def _source(options: Mapping[str, Any]) -> tuple[DataSource, tuple[Path, ...]]:
    name = options["data"]
    if name in NAMED:
        return NAMED[name], ()
    path = Path(name).expanduser()
    if has_texts(options):
        return TEXTS, (path,)
    if "past" in options and path.is_file():
        return WINDOWS, (path,)
    if path.is_dir():
        return IMAGES, (path,)
    if path.suffix.lower() == ".npz":
        return NPZ, (path,)
    if is_table_file(path):
        return TABLE, (path,)
    if path.is_file():
        raise DataError.build(
            name, expected="a file that ends in " + ", ".join((".npz", *SUFFIXES)), got="another"
        )
    raise ConfigError.build(
        "data",
        expected="a data set, a file or a folder",
        got=repr(name),
        hint=nearest(name, NAMED),
    )


def table_input_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `data.table_inputs`; the target column is ignored too.

    >>> table_input_arguments({"target_column": "name", "delimiter": "tab"})
    {'ignore': ['name'], 'delimiter': '\\t'}
    """
    given = [*options.get("ignore_columns", ()), options.get("target_column")]
    ignore = [column_of(each) for each in given if each is not None]
    found = {name: _argument(name, options[name]) for name in _READING if name in options}
    return ({"ignore": ignore} if ignore else {}) | found


def column_of(text: str) -> int | str:
    """Return a column by its number, or else by its name.

    >>> column_of("-1"), column_of("name")
    (-1, 'name')
    """
    return int(text) if text.removeprefix("-").isdecimal() else text


def _kind(text: str) -> tuple[int | str, str]:
    """Parse COLUMN=KIND into a column and its kind.

    >>> _kind("zip=category")
    ('zip', 'category')
    """
    column, equals, kind = text.rpartition("=")
    if not equals or not column:
        raise ConfigError.build(
            "--kinds",
            expected="COLUMN=KIND, such as zip=category",
            got=repr(text),
            hint="kinds are number, category, date, date:%d/%m/%Y, text and ignored",
        )
    return column_of(column), kind


def _columns_of(texts: list[str]) -> list[int | str]:
    return [column_of(each) for each in texts]


def _image_size(value: list[int]) -> tuple[int, int]:
    if len(value) not in (1, 2):
        raise ConfigError.build("image_size", expected="HEIGHT,WIDTH", got=repr(value))
    return (value[0], value[-1])


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "target_column": column_of,
    "group_column": column_of,
    "time_column": column_of,
    "columns": _columns_of,
    "ignore_columns": _columns_of,
    "kinds": lambda value: dict(map(_kind, value)),
    "sheet": column_of,
    "delimiter": lambda value: "\t" if value in ("tab", "\\t") else value,
    "targets": lambda value: value == "classes",
    "image_size": _image_size,
}
"""Options whose argument has a different form."""


def _argument(option: str, value: Any, *, by_name: bool = False) -> Any:
    is_plain = option not in _CONVERSIONS or (option == "target_column" and by_name)
    return value if is_plain else _CONVERSIONS[option](value)


def _named_augmentations(options: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Add the options of each --augment name, except options given explicitly."""
    asked = dict(
        pair for name in options.get("augment", ()) for pair in AUGMENTATIONS[name].items()
    )
    # The default size is an eighth of the image's height.
    size = max(1, shape[-2] // 8) if len(shape) > 1 else 1
    return {name: size if each is None else each for name, each in asked.items()} | dict(options)


def augmented(found: Dataset, options: Mapping[str, Any]) -> Dataset:
    """Return the data set with the random changes to training images that the options ask for.

    >>> digits = load_data({"data": "digits"})
    >>> augmented(digits, {"augment": ["crop", "flip"], "rotate": 10.0}).train
    Pipeline(1438 samples, shape (1, 8, 8), float32: Rotate, Crop, Mirror)
    """
    options = _named_augmentations(options, found.shape)
    asked = [name for name in names_of(["augmentation"]) if options.get(name)]
    if not asked:
        return found
    if len(found.shape) != 3:
        raise ShapeError.build(
            f"augmentation {', '.join(asked)}",
            expected="images",
            got=f"samples of shape {found.shape}",
        )
    channels, height, width = found.shape
    makers: Mapping[str, Callable[[Any], data.Stage]] = {
        "rotate": data.Rotate,
        "colour": lambda amount: data.Colour(*[amount] * (3 if channels == 3 else 2)),
        "crop": lambda padding: data.Crop((height, width), padding=padding),
        "mirror": lambda _: data.Mirror(),
        "cutout": data.Cutout,
    }
    stages = [make(options[name]) for name, make in makers.items() if options.get(name)]
    return found.transformed(train=stages)
