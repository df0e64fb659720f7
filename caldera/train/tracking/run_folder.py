"""A folder with the record of a run, for `caldera report` and for other programs.

- `NAME.caldera`: the model, with the names of its columns and classes; NAME is the name of the
  data, as far as it is a valid file name
- `run.json`: settings, seeds, versions, results, time and memory by purpose
- `history.json`: the results of each epoch
- `curves.svg`: the learning curves
- `graph.svg`: the training step as traced and as compiled
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldera.base.arguments import checked, guarded, require
from caldera.base.file_access import file_name
from caldera.base.file_cache import write_file
from caldera.base.plain_data import from_plain, to_plain
from caldera.comm import world
from caldera.data import Dataset
from caldera.errors import DataError
from caldera.train.saving.model_file import save_model
from caldera.train.tracking.history import History
from caldera.train.tracking.measure_run import record_of
from caldera.train.tracking.run_record import FORMAT, ClassesRecord, RunRecord, Setting

if TYPE_CHECKING:
    from caldera.train.model import Model

RUN, HISTORY, CURVES, GRAPH = "run.json", "history.json", "curves.svg", "graph.svg"
REPORT = "report.html"
_MOST_BYTES = 64 << 20
"""Maximum size of each of these files; a larger file is rejected."""


@guarded
class RunFolder:
    """Folder with the record of a run; `caldera report FOLDER` makes an HTML page from it.

    >>> import tempfile
    >>> import caldera as cd
    >>> from caldera import nn
    >>> data = cd.data.digits()
    >>> model = cd.NeuralNetwork([nn.Input(data.shape), nn.Flatten(), nn.Dense(10)])
    >>> history = model.fit(data.train, validation=0.1, verbose=0)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     record = cd.RunFolder(path).write(model, history, data)
    ...     sorted(each.name for each in Path(path).iterdir())
    ['curves.svg', 'digits.caldera', 'graph.svg', 'history.json', 'run.json']
    >>> sorted(record.results)
    ['accuracy', 'loss']
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)

    def write(
        self,
        model: Model,
        history: History,
        data: Dataset,
        *,
        settings: Mapping[str, Setting] | None = None,
        measured: bool = True,
    ) -> RunRecord:
        """Test the model, time its training step, and write all files of the record.

        `settings` are the settings of the run if they exceed those stored in the model. Without
        `measured`, only results that are already known are written.

        Files of an earlier run in the folder are removed. Of several ranks only the first one
        measures and writes; on the remaining ranks the record has only the known results.
        """
        if world().rank:
            return record_of(model, history, data, settings, measured=False)[0]
        self.path.mkdir(parents=True, exist_ok=True)
        # First, so that the trained model is not lost if a later step fails.
        kept = save_model(model, self.model_file(data.name), data.schema)
        self._remove_earlier(kept)
        record, plan = record_of(model, history, data, settings, measured=measured)
        self._write_json(RUN, to_plain(record))
        self._write_json(HISTORY, history.to_dict())
        if history.epochs:
            history.plot(self.path / CURVES, f"{data.name}: learning curves")
        if plan is not None:
            plan.draw(self.path / GRAPH)
        return record

    @checked
    def model_file(self, name: str) -> Path:
        """Return the path of the model that was trained on the data of this name."""
        return self.path / f"{file_name(name)}.caldera"

    def _remove_earlier(self, kept: Path) -> None:
        """Remove the files of an earlier run, which could be mistaken for parts of this one.

        Only files named by its record are removed.
        """
        try:
            name = self.record().name
        except DataError:
            return
        for path in (
            self.model_file(name),
            *(self.path / each for each in (CURVES, GRAPH, REPORT)),
        ):
            if path != kept:
                path.unlink(missing_ok=True)

    # --- reading

    def record(self) -> RunRecord:
        """Return the record that `write` stored."""
        content = self._read_json(RUN)
        require(
            isinstance(content, dict) and content.get("format") == FORMAT,
            str(self.path / RUN),
            f"the format {FORMAT}",
            repr(content.get("format") if isinstance(content, dict) else content)[:80],
            "another version of Caldera may have written it",
            error=DataError,
        )
        record = from_plain(RunRecord, content, RUN)
        _check_shapes(record)
        return record

    def history(self) -> History:
        """Return the results of each epoch."""
        content = self._read_json(HISTORY)
        if not isinstance(content, dict):
            raise DataError.build(HISTORY, expected="a history", got=repr(content)[:80])
        return History.from_dict(content)

    def graph(self) -> str | None:
        """Return the text of the picture of the training step; None if the run has none."""
        return self._text(GRAPH) if (self.path / GRAPH).is_file() else None

    def _write_json(self, name: str, content: Any) -> None:
        text = json.dumps(content, indent=1, allow_nan=False)
        write_file(self.path / name, text + "\n")

    def _read_json(self, name: str) -> Any:
        text = self._text(name)
        try:
            return json.loads(text, parse_int=_whole_number)
        except (ValueError, RecursionError) as problem:
            raise DataError.build(
                str(self.path / name), expected="JSON", got=str(problem)[:200]
            ) from None

    def _text(self, name: str) -> str:
        path = self.path / name
        require(
            path.is_file(),
            str(self.path),
            "the folder of a run",
            f"none that has {name}",
            "`caldera train --out FOLDER` writes one, and so does cd.RunFolder(FOLDER)",
            error=DataError,
        )
        require(
            path.stat().st_size <= _MOST_BYTES,
            str(path),
            f"at most {_MOST_BYTES} bytes",
            path.stat().st_size,
            error=DataError,
        )
        return path.read_text(encoding="utf-8", errors="replace")


def _whole_number(digits: str) -> int:
    """Return an integer of at most 64 bits; longer ones are neither counts nor floats."""
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise ValueError("an integer of more than 64 bits")
    return number


def _check_shapes(record: RunRecord) -> None:
    """Check the sizes of tables, which their types do not define."""
    counts = record.confusion or []
    require(
        all(len(row) == len(counts) for row in counts),
        f"{RUN}.confusion",
        "a square table",
        "another",
        error=DataError,
    )
    require(
        all(len(pair) == 2 for pair in record.predictions or []),
        f"{RUN}.predictions",
        "pairs of values",
        "others",
        error=DataError,
    )
    if record.classes is not None:
        _check_classes(record.classes, len(counts))
    for number, block in enumerate(record.network.blocks or []):
        require(
            all(-1 <= each < number for each in block.reads),
            f"{RUN}.network.blocks[{number}]",
            "blocks that come before it",
            repr(block.reads)[:80],
            error=DataError,
        )


def _check_classes(found: ClassesRecord, classes: int) -> None:
    where = f"{RUN}.classes"
    numbers = [each for wrong in found.mistakes for each in (wrong.true, wrong.predicted)]
    require(
        all(0 <= each < classes for each in numbers),
        f"{where}.mistakes",
        f"classes from 0 to {classes - 1}",
        "others",
        error=DataError,
    )
    require(
        not found.train or (len(found.train) == classes and min(found.train) >= 0),
        f"{where}.train",
        f"{classes} counts",
        repr(found.train)[:80],
        error=DataError,
    )
    require(
        len(found.roc) == (1 if classes == 2 else classes),
        f"{where}.roc",
        "a curve a class",
        len(found.roc),
        error=DataError,
    )
    shares = [each for bin_ in found.calibration for each in (bin_.confidence, bin_.accuracy)]
    for curve in found.roc:
        require(
            len(curve.false_positive) == len(curve.true_positive),
            f"{where}.roc",
            "lists of equal length",
            "others",
            error=DataError,
        )
        shares += [*curve.false_positive, *curve.true_positive]
    # nan is not in that range either.
    require(
        all(0 <= each <= 1 for each in shares),
        where,
        "shares from 0 to 1",
        "others",
        error=DataError,
    )
    require(
        all(each.samples >= 1 for each in found.calibration),
        f"{where}.calibration",
        "samples in each bin",
        error=DataError,
    )


# --- the names of the classes, as they were kept before model files had a schema


def read_class_names(model: Path) -> list[str]:
    """Return the class names stored next to an older model file, one per line, or none."""
    path = model.with_suffix(".classes.txt")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
