"""Inputs and outputs of `predict`: files, tables and text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sized
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caldera import data, io
from caldera.base.registry import nearest
from caldera.data import Schema, Tokenizer
from caldera.data.datasets.tables import table_rows
from caldera.data.datasets.texts import SUFFIXES as TEXT_SUFFIXES
from caldera.data.datasets.texts import read_text, text_columns, text_files
from caldera.data.datasets.windows import number_columns
from caldera.data.series import Series
from caldera.data.sources.file_formats import LARGEST_FILE, SUFFIXES, LabelledImage
from caldera.data.tables.reading import TableFormat, is_table_file
from caldera.data.tables.table import TableRows
from caldera.data.transforms.decode import ImageSize, decode_all
from caldera.errors import DataError
from caldera.io.files import read_bounded
from caldera.train.tracking.history import shown_number

STRICT = "refuse rows with missing or unknown values, or values far outside the training range"


class PredictionInputs(NamedTuple):
    """Samples to predict, their names, and the rows of the table that they come from."""

    names: list[str]
    x: np.ndarray
    rows: TableRows | None = None


def read_inputs(
    path: Path,
    shape: tuple[int, ...],
    dtype: str,
    schema: Schema | None = None,
    table: Mapping[str, Any] | None = None,
) -> PredictionInputs:
    """Return the names of samples, and the samples in the shape that a model takes.

    The columns of a table are found with the schema of the model. `table` has the options of
    `data.table_inputs`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("1,2,3,4\\n5,6,7,8\\n")
    >>> names, x, _ = read_inputs(path, (2, 2), "float32")
    >>> names, x.tolist()
    (['0', '1'], [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    """
    suffix = path.suffix.lower()
    if not path.exists():
        raise DataError.build("predict", expected="a file or folder", got=f"none at {path}")
    if table and not is_table_file(path):
        raise DataError.build(", ".join(table), expected="a table", got=path.name)
    if schema is not None and schema.text is not None and suffix != ".npy":
        return PredictionInputs(*_texts(path, schema.text))
    rows = None
    if path.is_dir() or suffix in SUFFIXES:
        names, array = _images(path, shape)
    elif is_table_file(path) and schema is not None and schema.series is not None:
        names, array = ["forecast"], _last_steps(path, schema.series)
    elif is_table_file(path):
        rows = _table_rows(path, schema, table or {})
        names, array = [], rows.x
    elif suffix == ".npy":
        names, array = [], io.load_npy(path).host_array()
        array = array[None] if array.shape == shape else array
    else:
        raise DataError.build(
            "predict",
            expected="a table (.csv, .parquet, ...), an .npy file, an image or a folder of images",
            got=path.name,
        )
    samples = _shaped(data.ArrayData(array).x, shape, path.name)
    if not np.issubdtype(dtype, np.floating) and (samples != np.floor(samples)).any():
        raise DataError.build(
            f"predict {path.name}",
            expected=f"integers, as the model takes ({dtype})",
            got="fractions",
        )
    return PredictionInputs(names or _numbered(samples), samples.astype(dtype), rows)


def _table_rows(path: Path, schema: Schema | None, table: Mapping[str, Any]) -> TableRows:
    """Return the rows of a table, read with arguments of `data.table_inputs`."""
    given = dict(table)
    named = {name: given.pop(name) for name in ("ignore", "decimal", "strict") if name in given}
    found = table_rows(path, schema, TableFormat(**given), **named)
    for each in found.notes:
        warnings.warn(each, stacklevel=2)
    return found


def _numbered(samples: Sized) -> list[str]:
    return list(map(str, range(len(samples))))


def _last_steps(path: Path, series: Series) -> np.ndarray:
    """Return the last steps of a series, from which those after them are forecast."""
    names, found = number_columns(path)
    missing = [name for name in series.columns if name and name not in names]
    if missing or (not any(series.columns) and found.shape[1] != len(series.columns)):
        wanted = ", ".join(filter(None, series.columns)) or f"{len(series.columns)} of numbers"
        raise DataError.build(
            f"predict {path.name}",
            expected=f"the columns {wanted}",
            got=", ".join(names),
            hint=nearest(missing[0], names) if missing else "",
        )
    if len(found) < series.past:
        raise DataError.build(
            f"predict {path.name}",
            expected=f"at least {series.past} steps to forecast from",
            got=f"{len(found)} rows",
        )
    if any(series.columns):
        found = found[:, [names.index(name) for name in series.columns]]
    last = found[-series.past :]
    if not np.isfinite(last).all():
        raise DataError.build(
            f"predict {path.name}",
            expected=f"a number in each of the last {series.past} rows",
            got="a gap",
            hint="fill it in, for example with np.interp between the neighbouring steps",
        )
    return last[None]


def _texts(path: Path, tokenizer: Tokenizer) -> tuple[list[str], np.ndarray]:
    """Return names and tokens of texts from a folder, a text file or a table column."""
    if path.is_dir() or path.suffix.lower() in TEXT_SUFFIXES:
        files = text_files(path) if path.is_dir() else [path]
        if not files:
            raise DataError.build(f"predict {path}", expected="a folder with texts", got="none")
        names, found = [each.name for each in files], [read_text(each) for each in files]
    else:
        columns = text_columns(path)
        if tokenizer.column not in columns and len(columns) > 1:
            raise DataError.build(
                f"predict {path.name}",
                expected=f"the column {tokenizer.column!r} of texts",
                got=", ".join(columns),
                hint=nearest(tokenizer.column, columns),
            )
        found = columns.get(tokenizer.column) or next(iter(columns.values()))
        names = _numbered(found)
    return names, tokenizer.transform(found)


def _shaped(array: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    size = int(np.prod(shape))
    if array.shape[1:] in (shape, (size,)):
        return array.reshape(-1, *shape)
    given = f"{array.shape[1]} columns" if array.ndim == 2 else f"samples of {array.shape[1:]}"
    wanted = f"samples of {shape}, or rows of {size} numbers"
    hint = ""
    if array.shape[1:] == (size + 1,):
        hint = "if the file has the answers, name their column with --target-column"
    raise DataError.build(f"predict {name}", expected=wanted, got=given, hint=hint)


def _images(path: Path, shape: tuple[int, ...]) -> tuple[list[str], np.ndarray]:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError.build(
            f"predict {path.name}",
            expected=f"samples of shape {shape}, as the model takes them",
            got="images",
        )
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError.build(f"predict {path}", expected="a folder with images", got="none in it")
    names = [str(each.relative_to(path)) if each != path else each.name for each in files]
    images = [
        LabelledImage(name, "", partial(read_bounded, each, LARGEST_FILE, "predict"))
        for name, each in zip(names, files, strict=True)
    ]
    size = ImageSize(*shape[1:])
    pixels, _ = decode_all(images, [""], shape[0], size, resize=True, where="predict")
    return names, pixels


def results_line(results: Mapping[str, Any]) -> str:
    """Return losses and metrics on one line; the accuracy, if there is one, first and in per cent.

    >>> results_line({"loss": 0.0712, "accuracy": 0.98333})
    'accuracy 98.33%  loss 0.0712'
    """
    singles = {name: float(value) for name, value in results.items() if np.ndim(value) == 0}
    parts = []
    if "accuracy" in singles:
        parts.append(f"accuracy {singles.pop('accuracy'):.2%}")
    parts += [f"{name} {shown_number(value)}" for name, value in singles.items()]
    return "  ".join(parts)


def tables(results: Mapping[str, Any]) -> str:
    """Return the results that are tables, such as a confusion matrix, each under its name."""
    found = {name: np.asarray(value) for name, value in results.items() if np.ndim(value) > 0}
    return "\n".join(f"{name}\n{value}" for name, value in found.items())
