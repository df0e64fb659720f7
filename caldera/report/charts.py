"""Charts of the page: panels of their own, in colours that know light and dark."""

from __future__ import annotations

from caldera.draw.html import Safe, section, tag
from caldera.draw.learning_curves import learning_curve_charts
from caldera.draw.line_chart import HEIGHT, WIDTH, LineChart, draw
from caldera.draw.svg import SANS, element, number
from caldera.draw.theme import named
from caldera.train.tracking.history import History


def chart(panel: LineChart) -> Safe:
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
    panels = learning_curve_charts([epoch + 1 for epoch in history.epochs], columns)
    return section(
        "curves",
        "Learning curves",
        tag("div", *[chart(panel) for panel in panels], class_="columns"),
    )
