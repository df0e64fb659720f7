"""Which columns of a table matter to a model: their permutation importance."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.base.formatting import percent_text
from caldera.draw.page import Safe, card, folded, section, table, tag
from caldera.train.tracking.run_record import ColumnRecord

_SHOWN = 15


def columns_section(columns: Sequence[ColumnRecord], measure: str) -> Safe:
    """The columns, the most important ones first; `measure` is what is lost without one."""
    parts = [_table(columns[:_SHOWN], columns[0].loss, measure)]
    if len(columns) > _SHOWN:
        parts.append(
            folded(f"All {len(columns)} columns", _table(columns, columns[0].loss, measure))
        )
    note = (
        f"How much {measure} is lost on the test data if the values of a column are shuffled "
        "(permutation importance, mean and deviation of five times). Columns that say the same "
        "share their importance; one of no importance can be left out."
    )
    return section("columns", "Columns", card("Importance of the columns", *parts), note=note)


def _table(columns: Sequence[ColumnRecord], most: float, measure: str) -> Safe:
    rows = []
    for each in columns:
        share = max(each.loss, 0.0) / most if most > 0 else 0.0
        bar = tag(
            "span",
            tag("i", style=f"width:{100 * share:.1f}%"),
            class_="share long",
            title=percent_text(share),
        )
        rows.append((each.name, f"{each.loss:.4f}", f"\u00b1 {each.deviation:.4f}", bar))
    return table(
        ("column", f"{measure} lost", "deviation", "beside the largest"), rows, numbers=(1, 2)
    )
