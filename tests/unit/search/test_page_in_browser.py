"""The page of a study in a real browser: quiet, self-contained, drawn, at every width."""

from __future__ import annotations

from pathlib import Path

from caldera import search
from tests.browser import Browser
from tests.unit.search import made_up


def test_the_page_loads_nothing_fits_and_is_drawn(browser: Browser, tmp_path: Path) -> None:
    goal = search.pareto("val_accuracy", "seconds")
    address = made_up.study(objective=goal, stop=None).page(tmp_path / "study.html").as_uri()
    browser.open(address)
    assert browser.requests() == [address]
    assert browser.complaints() == []
    assert browser.value("document.title").endswith("a study of Caldera")
    links = "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))"
    assert browser.value(links)
    sizes = browser.value(
        "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.width, r.height])"
    )
    # Front, two histories, curves, bars, parallel coordinates, five slices.
    assert len(sizes) == 11
    assert all(width > 300 and height > 100 for width, height in sizes)
    assert browser.value(
        "[...document.querySelectorAll('.wide path[fill=none]')]"
        ".every(e => e.getTotalLength() > 500)"
    )
    for width in (390, 1920):
        browser.resize(width, 900)
        assert browser.value("document.documentElement.scrollWidth") <= width
