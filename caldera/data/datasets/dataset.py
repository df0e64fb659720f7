"""Data sets of a training and a test part: from arrays, from npz files, and their HTML page."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from caldera.base.arguments import guard_methods, require, shown
from caldera.base.formatting import html_facts, html_table, note
from caldera.core.tensor.dtype import real_array_of, refuse_masked
from caldera.data.datasets.splits import split
from caldera.data.loading.pipeline import Pipeline
from caldera.data.schema import Schema, listed
from caldera.data.sources.base import SCALE, Array, Data
from caldera.data.sources.indexed_data import ArrayData
from caldera.data.tables.column_checks import TableFinding
from caldera.data.transforms.stage import StagesLike
from caldera.draw.charts import thumbnail
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError
from caldera.io.files import PathLike, named
from caldera.io.numpy_files import npz_arrays

_PICTURES = 10
_MOST_NAMES = 12
_MOST_COLUMNS = 40


def dataset_html(data: Dataset) -> str:
    """Its size and shape, the names of classes and columns, and the first samples if these are
    images."""
    facts = {"samples to train": f"{len(data.train):,}"}
    if data.validation is not None:
        facts["samples to choose by"] = f"{len(data.validation):,}"
    facts["samples to test"] = f"{len(data.test):,}"
    facts["shape of a sample"] = " \u00d7 ".join(map(str, data.shape)) or "1"
    if data.classes:
        facts["classes"] = f"{data.classes}: {listed(data.class_names, str, _MOST_NAMES)}"
    if data.dropped:
        facts["rows dropped"] = f"{data.dropped:,}"
    said = "".join(note(each) for each in (*data.notes, *map(str, data.findings)))
    facts_shown = note(data.name, strong=True) + html_facts(facts) + said
    return facts_shown + _columns(data) + _pictures(data)


def _columns(data: Dataset) -> str:
    """Return an HTML table of the columns of a table."""
    if data.schema is None or not data.schema.columns:
        return ""
    rows = data.schema.described()
    more = note(f"and {len(rows) - _MOST_COLUMNS} more") if len(rows) > _MOST_COLUMNS else ""
    return html_table(("column", "kind", "learnt"), rows[:_MOST_COLUMNS]) + more


def _pictures(data: Dataset) -> str:
    if len(data.shape) != 3 or not len(data.train):
        return ""
    x, *rest = data.train.batch(np.arange(min(_PICTURES, len(data.train))))
    found = []
    for place, sample in enumerate(x):
        are_classes = data.classes and rest and np.ndim(rest[-1][place]) == 0
        label = escape(data.class_names[int(rest[-1][place])]) if are_classes else ""
        text = thumbnail(np.asarray(sample))
        if text:
            found.append(
                '<figure style="display:inline-block;margin:4px;text-align:center">'
                f'<img src="data:image/png;base64,{text}" alt="{label}" '
                'style="width:64px;image-rendering:pixelated"/>'
                f"<figcaption>{label}</figcaption></figure>"
            )
    return "".join(found)


_TEXT_KINDS = "US"


def _labels(given: Any, where: str) -> Array:
    """Return labels as an array, of numbers or of text."""
    refuse_masked(given, where)
    try:
        return np.asarray(given)
    except ValueError:
        raise DataError.build(where, expected="one label a sample", got=shown(given)) from None


@dataclass(frozen=True, repr=False)
class Dataset:
    """Data set with training and test samples.

    - `train`, `test`: the samples.
    - `validation`: training samples held out for model selection; see `hold_out`.
    - `classes`: number of classes, 0 for targets that are values.
    - `class_names`: a name for each class.
    - `shape`: shape of x of a single sample.
    - `dropped`: number of rows of a table left out because a value was missing.
    - `notes`: decisions taken while reading, such as the size of images.
    - `findings`: faults of a table that training would not notice; see `data.table`.

    >>> from caldera import data
    >>> digits = data.digits()
    >>> digits
    Dataset(digits: 1438 samples to train, 359 to test, shape (1, 8, 8), 10 classes)
    >>> digits.train.batch([0, 1])[0].shape
    (2, 1, 8, 8)
    """

    train: Data
    test: Data
    classes: int
    class_names: tuple[str, ...]
    name: str
    dropped: int = 0
    validation: Data | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[TableFinding, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))
        require(
            len(self.class_names) == self.classes,
            f"data set {self.name}",
            f"{self.classes} names of classes",
            len(self.class_names),
        )
        require(
            not len(self.test) or self.train.shape == self.test.shape,
            f"data set {self.name}",
            f"test samples of shape {self.train.shape}",
            self.test.shape,
            error=ShapeError,
        )
        for part in ("train", "test", "validation"):
            samples = getattr(self, part)
            if samples is None:
                continue
            known, is_test = samples.schema or Schema(), part == "test"
            if known.classes != self.class_names or samples.is_test != is_test:
                named = copy(samples)
                named.schema = replace(known, classes=self.class_names)
                named.is_test = is_test
                object.__setattr__(self, part, named)

    @property
    def schema(self) -> Schema | None:
        """Columns and classes of the samples; stored in a model that is trained on them.

        >>> from caldera import data
        >>> data.digits().schema.classes[:3]
        ('0', '1', '2')
        """
        return self.train.schema

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of x of a single sample."""
        return self.train.shape

    @property
    def outputs(self) -> int:
        """Number of network outputs per sample: the number of classes or of values.

        >>> from caldera import data
        >>> data.digits().outputs
        10
        """
        return self.classes or int(np.prod(self.train.batch(np.arange(1))[-1].shape[1:]))

    def transformed(self, train: StagesLike = (), test: StagesLike = ()) -> Dataset:
        """Return the same samples, through these stages: `train` and `test` become pipelines.

        >>> from caldera import data
        >>> digits = data.digits()
        >>> normalise = data.Normalise.of(digits.train)
        >>> digits = digits.transformed(train=[data.Crop(8, 1), normalise], test=normalise)
        >>> bool(abs(digits.test.x.mean()) < 0.1)
        True
        """
        held = None if self.validation is None else Pipeline(self.validation, test)
        return replace(
            self, train=Pipeline(self.train, train), test=Pipeline(self.test, test), validation=held
        )

    def hold_out(self, part: float = 0.2, seed: int = 0) -> Dataset:
        """Return the data set with a part of the training samples as `validation`.

        Choices (an epoch, a learning rate) should be based on these samples and not on the test
        samples: test results are unbiased only if no choice depended on them.

        >>> from caldera import data
        >>> digits = data.digits().hold_out(0.25)
        >>> len(digits.train), len(digits.validation), len(digits.test)
        (1078, 360, 359)
        """
        if isinstance(part, bool) or not isinstance(part, float) or not 0 < part < 1:
            raise ConfigError.build(
                "hold_out", expected="a part of the training data, between 0 and 1", got=repr(part)
            )
        train, validation = split(self.train, test=part, seed=seed)
        return replace(self, train=train, validation=validation)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error that explains how to get the samples."""
        raise ConfigError.build(
            f"data set {self.name}",
            expected="samples",
            got="a data set",
            hint="pass its .train or .test",
        )

    def _repr_html_(self) -> str:
        return dataset_html(self)

    def __repr__(self) -> str:
        target = f", {self.classes} classes" if self.classes else ""
        dropped = f", {self.dropped} rows dropped" if self.dropped else ""
        held = "" if self.validation is None else f"{len(self.validation)} to choose by, "
        return (
            f"Dataset({self.name}: {len(self.train)} samples to train, {held}"
            f"{len(self.test)} to test, "
            f"shape {self.shape}{target}{dropped})"
        )


class Targets(NamedTuple):
    """Targets as used in training, and the names of their classes."""

    values: Array
    class_names: tuple[str, ...]


def arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test: float | tuple[ArrayLike, ArrayLike] = 0.2,
    seed: int = 0,
    classes: bool | None = None,
    scale: float | None = SCALE,
    name: str = "arrays",
) -> Dataset:
    """Return a data set of arrays, whose first axis counts the samples.

    `test` is a fraction or number of samples to hold out, or the pair (x, y) of test samples.
    float64 becomes float32. Texts and integers are classes, other numbers are values to predict;
    `classes` overrides this. Integers that start at 0 keep their number; other classes are numbered
    in sorted order, and `class_names` contains the original values.

    >>> import numpy as np
    >>> from caldera import data
    >>> flowers = data.arrays(np.eye(4), ["rose", "iris", "rose", "iris"], test=0.5)
    >>> flowers.class_names, len(flowers.train), flowers.train.dtype.name
    (('iris', 'rose'), 2, 'float32')
    """
    where = f"data.{name}"
    inputs = _compact(real_array_of(x, where))
    labels = _labels(y, where)
    if not isinstance(test, tuple):
        values, names = as_targets(labels, classes, where)
        samples = ArrayData(inputs, values, scale=scale)
        return Dataset(*split(samples, test=test, seed=seed), len(names), names, name)
    test_inputs = _compact(real_array_of(test[0], where))
    test_labels = _labels(test[1], where)
    kinds = {(each.dtype.kind in _TEXT_KINDS, each.shape[1:]) for each in (labels, test_labels)}
    require(
        len(kinds) <= 1 and labels.ndim and test_labels.ndim,
        where,
        "the same type of targets for training and test",
        f"{labels.dtype} {labels.shape} and {test_labels.dtype} {test_labels.shape}",
        error=ShapeError,
    )
    # Both parts are numbered together: a class may be missing from either part.
    values, names = as_targets(np.concatenate([labels, test_labels]), classes, where)
    return Dataset(
        ArrayData(inputs, values[: len(labels)], scale=scale),
        ArrayData(test_inputs, values[len(labels) :], scale=scale),
        len(names),
        names,
        name,
    )


def as_targets(labels: Array, classes: bool | None, where: str) -> Targets:
    """Return labels as class numbers (int64), or as values to predict; see `arrays`.

    >>> as_targets(np.array(["b", "a", "b"]), None, "data.arrays")
    Targets(values=array([1, 0, 1]), class_names=('a', 'b'))
    """
    if labels.dtype == object:
        # Columns of other libraries hold their texts as objects.
        are_texts = all(isinstance(each, str) for each in labels.flat)
        labels = labels.astype(str) if are_texts else labels
    is_text = labels.dtype.kind in _TEXT_KINDS
    if classes is None:
        classes = is_text or labels.dtype.kind in "iub"
    if not classes:
        require(not is_text, where, "numbers to predict", "texts", error=DataError)
        return Targets(_compact(real_array_of(labels, where)), ())
    if not is_text and labels.dtype.kind not in "iub":
        labels = real_array_of(labels, where)
    if labels.dtype.kind in "iu" and labels.size and labels.min() == 0:
        count = int(labels.max()) + 1
        # Far larger numbers are names, such as catalogue numbers.
        if count <= max(labels.size, 2):
            return Targets(labels.astype(np.int64), tuple(str(each) for each in range(count)))
    require(
        labels.dtype.kind != "f" or not np.isnan(labels).any(),
        where,
        "a class for every sample",
        "nan",
        error=DataError,
    )
    values, numbers = np.unique(labels, return_inverse=True)
    names = tuple(map(_name, values))
    return Targets(numbers.reshape(labels.shape).astype(np.int64), names)


def _name(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    # The fewest digits that distinguish a number from its neighbours; 2.0 is called 2.
    return str(value).removesuffix(".0") if isinstance(value, np.floating) else str(value)


def _compact(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def npz(
    path: PathLike,
    *,
    test: float = 0.2,
    seed: int = 0,
    classes: bool | None = None,
    scale: float | None = SCALE,
) -> Dataset:
    """Load a data set from an npz file with x and y, or x_train, y_train, x_test, y_test.

    `test` is the part of x and y to set aside; for the rest see `arrays`.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from caldera import data
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "points.npz"
    >>> np.savez(path, x=np.zeros((10, 3)), y=np.arange(10) % 2)
    >>> data.npz(path)
    Dataset(points: 8 samples to train, 2 to test, shape (3,), 2 classes)
    """
    where = named("data.npz", path)
    found = npz_arrays(path)
    stem = Path(path).stem
    held_out: float | tuple[Array, Array]
    if set(found) == {"x", "y"}:
        x, y, held_out = found["x"], found["y"], test
    elif set(found) == {"x_train", "y_train", "x_test", "y_test"}:
        x, y = found["x_train"], found["y_train"]
        held_out = (found["x_test"], found["y_test"])
    else:
        raise DataError.build(
            where,
            expected="the arrays x and y, or x_train, y_train, x_test and y_test",
            got=", ".join(sorted(found)) or "none",
        )
    try:
        return arrays(x, y, test=held_out, seed=seed, classes=classes, scale=scale, name=stem)
    except (ShapeError, DtypeError) as error:
        raise DataError.build(
            where, expected="arrays that belong together", got=str(error)
        ) from None


guard_methods(Dataset, "hold_out")
