"""Charts of the page: panels of their own, in colours that know light and dark."""

from __future__ import annotations

from caldera.graph.picture.svg import SANS, element, number
from caldera.report.colours import named
from caldera.report.html import Safe, section, tag
from caldera.train.curves import curve_panels
from caldera.train.history import History
from caldera.train.panel import HEIGHT, WIDTH, Panel, draw


def chart(panel: Panel) -> Safe:
    """A panel as a picture that fills its column."""
    return Safe(
        named(
            element(
                "svg", draw(panel), viewBox=f"0 0 {number(WIDTH)} {number(HEIGHT)}",
                class_="chart", font_family=SANS, role="img", aria_label=panel.title,
            )
        )
    )  # fmt: skip


def curves_section(history: History) -> Safe:
    """Loss and metrics over the epochs."""
    if not history.epochs:
        return section("curves", "Learning curves", note="No epoch was finished.")
    columns = {name: history[name] for name in history.numbers()}
    panels = curve_panels([epoch + 1 for epoch in history.epochs], columns)
    return section(
        "curves",
        "Learning curves",
        tag("div", *[chart(panel) for panel in panels], class_="columns"),
    )
