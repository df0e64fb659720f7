"""The most confident mistakes of a classifier on the report page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caldera.base.formatting import percent_text
from caldera.draw.page import Safe, card, image, table, tag
from caldera.train.tracking.run_record import MistakeRecord

_PNG = re.compile(r"iVBORw0KGgo[A-Za-z0-9+/]*={0,2}")
"""Pattern of a PNG file in base64; no other text is used as the address of a picture."""


def mistakes_card(mistakes: Sequence[MistakeRecord], names: Sequence[str], wrong: int) -> Safe:
    """Return a card with the most confident of `wrong` mistakes."""
    title = "Most confident mistakes"
    if not mistakes:
        return card(title, tag("p", "There are none.", class_="quiet"))
    note = (
        f"{len(mistakes)} of {wrong:,} misclassified samples, the most certain first. Look for "
        "wrong labels and for common properties."
    )
    if all(_PNG.fullmatch(each.picture) for each in mistakes):
        return card(
            title,
            tag("ul", *[_figure(each, names) for each in mistakes], class_="mistakes"),
            note=note,
        )
    columns = list(mistakes[0].row)
    rows = [
        (
            *([each.row.get(name, "") for name in columns] or [f"{each.sample}"]),
            names[each.true],
            names[each.predicted],
            percent_text(each.confidence),
            percent_text(each.probability),
        )
        for each in mistakes
    ]
    head = (*(columns or ["sample"]), "is", "taken for", "certainty", "for the true class")
    return card(title, table(head, rows, numbers=(len(head) - 2, len(head) - 1)), note=note)


def _figure(each: MistakeRecord, names: Sequence[str]) -> Safe:
    true, said = names[each.true], names[each.predicted]
    words = tag(
        "span",
        tag("b", said),
        f", {percent_text(each.confidence)}",
        tag("small", f"is {true}"),
    )
    shown = image(
        f"data:image/png;base64,{each.picture}",
        f"test sample {each.sample}: {true}, predicted as {said}",
    )
    return tag("li", shown, words)
