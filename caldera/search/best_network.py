"""The network of the best trial: its layers, and its graph as a picture.

Both are stored with the study, so that a reader sees them without the code that builds the models.
The record contains the layers as plain data. The picture is a separate file in the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from caldera.base.file_cache import write_file
from caldera.base.formatting import flops_text
from caldera.base.plain_data import from_plain, to_plain
from caldera.core.graph.program import Program
from caldera.draw.graph import graph_svg
from caldera.draw.page import Safe, card, table, tag
from caldera.search.trial import Trial
from caldera.train.report.step import viewer
from caldera.train.tracking.measure_run import network_record
from caldera.train.tracking.run_record import NetworkRecord

if TYPE_CHECKING:
    from caldera.search.study import Study
    from caldera.train.model import Model

_NOTE = "network"
_MOST_BYTES = 1 << 24
"""A picture that is larger is not for a page."""


def keep_network(study: Study) -> None:
    """Store the network of the best trial if the study has models and a folder."""
    best = study.best_or_none()
    if best is None or study.folder is None:
        return
    if study.record.notes().get(_NOTE, {}).get("trial") == best.number:
        return
    model = _untrained(study, best)
    if model is not None:
        kept = {"trial": best.number, "network": to_plain(network_record(model))}
        study.record.note(_NOTE, kept)
        write_file(_path(study.folder, best), network_svg(model))


def _untrained(study: Study, trial: Trial) -> Model | None:
    """Return a trial's network before it is trained: shapes need no weights."""
    job = study.job
    if job is None or job.samples is None:
        return None
    model = job.model(replace(trial.task(), parent=None))
    model.ensure_built(job.samples.sample())
    return model


def network_svg(model: Model) -> str:
    """Draw the graph of a network for one sample, in evaluation mode."""
    _, outputs, _ = model.expressions(1)
    return graph_svg({"network": Program(tuple(each.node for each in outputs.values()))})


def _path(folder: Path, trial: Trial) -> Path:
    return folder / f"network-{trial.number}.svg"


def network_cards(study: Study, best: Trial) -> Iterator[Safe]:
    """Yield the page elements for the best trial's network; none if it is unknown."""
    known = study.record.notes().get(_NOTE, {})
    is_known = known.get("trial") == best.number
    model = None if is_known else _untrained(study, best)
    if model is not None:
        network = network_record(model)
    elif is_known:
        where = f"study in {study.folder}, network"
        network = from_plain(NetworkRecord, known.get("network"), where)
    else:
        return
    head = ("layer", "kind", "output", "parameters", "work")
    rows = [
        (
            layer.path,
            layer.kind,
            " \u00d7 ".join(map(str, layer.shape)) or "1",
            f"{layer.parameters:,}",
            flops_text(layer.flops) if layer.flops else "\u2013",
        )
        for layer in network.layers
    ]
    note = f"{network.parameters:,} parameters; {flops_text(network.flops)} for one sample."
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
