"""What a notebook shows of a data set."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from caldera.base.formatting import html_facts, html_table, note
from caldera.draw.charts import thumbnail

if TYPE_CHECKING:
    from caldera.data.datasets.dataset import Dataset

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
        facts["classes"] = f"{data.classes}: {_listed(data.class_names)}"
    if data.dropped:
        facts["rows dropped"] = f"{data.dropped:,}"
    said = "".join(note(each) for each in data.notes)
    facts_shown = note(data.name, strong=True) + html_facts(facts) + said
    return facts_shown + _columns(data) + _pictures(data)


def _columns(data: Dataset) -> str:
    """What became of the columns of a table."""
    if data.schema is None or not data.schema.columns:
        return ""
    rows = data.schema.described()
    more = [note(f"and {len(rows) - _MOST_COLUMNS} more")] if len(rows) > _MOST_COLUMNS else []
    return html_table(("column", "kind", "learnt"), rows[:_MOST_COLUMNS]) + "".join(more)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _pictures(data: Dataset) -> str:
    if len(data.shape) != 3 or not len(data.train):
        return ""
    x, *rest = data.train.batch(np.arange(min(_PICTURES, len(data.train))))
    found = []
    for place, sample in enumerate(x):
        label = _label(data, rest[-1][place]) if rest else ""
        text = thumbnail(np.asarray(sample))
        if text:
            found.append(
                '<figure style="display:inline-block;margin:4px;text-align:center">'
                f'<img src="data:image/png;base64,{text}" alt="{escape(label)}" '
                'style="width:64px;image-rendering:pixelated"/>'
                f"<figcaption>{escape(label)}</figcaption></figure>"
            )
    return "".join(found)


def _label(data: Dataset, target: np.ndarray) -> str:
    if data.classes and np.ndim(target) == 0:
        return data.class_names[int(target)]
    return ""
