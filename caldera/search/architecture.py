"""The network of the best trial: its layers, and its graph as a picture.

Both are kept with the study, so that whoever only reads it sees them without the code that builds
models: the layers as plain data in its record, the picture as a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldera.amounts import flops_text
from caldera.draw.graph import graph_svg
from caldera.draw.html import Safe, card, table, tag
from caldera.file_cache import write_file
from caldera.graph.program import Program
from caldera.report.graph import viewer
from caldera.search.trial import Trial

if TYPE_CHECKING:
    from caldera.search.study import Study
    from caldera.train.model import Model

_NOTE = "network"
_MOST_BYTES = 1 << 24
"""A picture that is larger is not for a page."""


def keep_architecture(study: Study) -> None:
    """Write down what the network of the best trial is, in a study with networks and a folder."""
    best = study.best_or_none()
    if best is None or study.folder is None:
        return
    if study.record.notes().get(_NOTE, {}).get("trial") == best.number:
        return
    model = _untrained(study, best)
    if model is not None:
        study.record.note(_NOTE, {"trial": best.number, **_layers(model)})
        write_file(_path(study.folder, best), network_svg(model))


def _untrained(study: Study, trial: Trial) -> Model | None:
    """A trial's network before it is trained: shapes need no weights."""
    job = study.job
    if job is None or job.samples is None:
        return None
    model = job.model(replace(trial.task(), parent=None))
    model.ensure_built(job.samples.sample())
    return model


def network_svg(model: Model) -> str:
    """The picture of what a network computes for one sample, in evaluation."""
    _, outputs, _ = model.expressions(1)
    return graph_svg({"network": Program(tuple(each.node for each in outputs.values()))})


def _path(folder: Path, trial: Trial) -> Path:
    return folder / f"network-{trial.number}.svg"


def _layers(model: Model) -> dict[str, Any]:
    summary = model.summary(show=False)
    rows = [
        [row.path, row.kind, list(row.shape), row.parameters, row.flops] for row in summary.rows
    ]
    return {"layers": rows, "parameters": summary.parameters, "flops": summary.flops}


def architecture(study: Study, best: Trial) -> Iterator[Safe]:
    """What a page shows of the network of the best trial; nothing if none is known."""
    known = study.record.notes().get(_NOTE, {})
    model = None
    if known.get("trial") != best.number:
        model = _untrained(study, best)
        if model is None:
            return
        known = _layers(model)
    head = ("layer", "kind", "output", "parameters", "work")
    rows = [
        (
            str(path), str(kind), " \u00d7 ".join(map(str, shape)) or "1", f"{parameters:,}",
            flops_text(flops) if flops else "\u2013",
        )
        for path, kind, shape, parameters, flops in known["layers"]
    ]  # fmt: skip
    note = f"{known['parameters']:,} parameters; {flops_text(known['flops'])} for one sample."
    yield card("Its network, for one sample", table(head, rows, numbers=(3, 4)), note=note)
    picture = _read_picture(study, best) if model is None else network_svg(model)
    if picture is not None:
        yield tag("h3", "Its architecture")
        yield viewer(picture)


def _read_picture(study: Study, best: Trial) -> str | None:
    path = None if study.folder is None else _path(study.folder, best)
    if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return None
    return path.read_text(encoding="utf-8")
