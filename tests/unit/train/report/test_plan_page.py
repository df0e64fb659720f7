"""The page about a plan: what is on it, and that a real browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

import caldera as cd
from caldera import nn, parallel
from caldera.parallel.planner.report import plan_page
from tests.browser import Browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = cd.NeuralNetwork(nn.models.lenet5(), batch_size=64)
    found = parallel.plan(model, ranks=32, link="10Gb", speed="100G")
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    path.write_text(plan_page(found, "<lenet5>"), encoding="utf-8")
    return path


def test_names_are_escaped_and_every_way_is_there(page: Path) -> None:
    text = page.read_text()
    assert "<lenet5>" not in text
    assert "&lt;lenet5&gt; on 32 ranks" in text
    for way in ("DataParallel, torus", "Sharded, stage 3", "Gossip, ring", "Ensemble of 32 models"):
        assert way in text


def test_it_is_shown_as_it_is(browser: Browser, page: Path) -> None:
    for width in (390, 1280):
        browser.open(page.as_uri(), width=width)
        assert browser.requests() == [page.as_uri()]
        assert browser.complaints() == []
        assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.querySelectorAll('svg.chart').length") == 4
    # A path without length would be a curve without points.
    assert browser.value(
        "[...document.querySelectorAll('.chart path[stroke-width=\"2\"]')]"
        ".every(e => e.getTotalLength() > 10)"
    )
