"""Bars with their intervals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from caldera.draw.charts import Bar, bar_chart


def bars(*values: float) -> list[ElementTree.Element]:
    text = bar_chart([Bar(f"<{v}>", v, 0.9 * v, 1.1 * v) for v in values], "ratios")
    return list(ElementTree.fromstring(text).iter("rect"))


@pytest.mark.parametrize("values", [(1.5, 0.5), (40.0, 1.0, 7.0), (0.001,), (300.0,)])
def test_bars_are_as_long_as_their_values(values: tuple[float, ...]) -> None:
    widths = [float(bar.attrib["width"]) for bar in bars(*values)]
    longest = max(values)
    for value, width in zip(values, widths, strict=True):
        assert width == pytest.approx(max(widths) * value / longest, abs=0.11)
    assert max(widths) <= 940 - 300 - 170


def test_only_an_interval_that_leaves_out_1_is_better_or_worse() -> None:
    better, worse, unclear = (bar.attrib["fill"] for bar in bars(1.5, 0.5, 1.0))
    assert len({better, worse, unclear}) == 3
    # The page knows them by name, in the light and in the dark.
    assert all(re.fullmatch(r"var\(--[\w-]+\)", each) for each in (better, worse, unclear))
