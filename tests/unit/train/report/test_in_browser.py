"""The page of a run in a real browser: it is quiet, self-contained, light and dark, and usable."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import caldera as cd
from caldera.train.report import compare_page, run_page
from tests.browser import Browser, axe_violations
from tests.unit.train.report.conftest import written


@pytest.fixture(scope="module")
def address(digits_run: cd.RunFolder) -> str:
    return written(digits_run, run_page(digits_run)).as_uri()


def mean_brightness(path: Path) -> float:
    with Image.open(path) as picture:
        grey = picture.convert("L").resize((1, 1))
        return float(grey.getpixel((0, 0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["digits_run", "values_run", "ended_run"])
def test_nothing_is_loaded_and_nobody_complains(
    browser: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    run: cd.RunFolder = request.getfixturevalue(name)
    address = written(run, run_page(run)).as_uri()
    browser.open(address)
    # Pictures are a part of the page.
    assert [each for each in browser.requests() if not each.startswith("data:")] == [address]
    assert browser.complaints() == []
    assert browser.value("document.title").endswith("a run of Caldera")


@pytest.mark.parametrize("width", [390, 800, 1280, 1920])
def test_it_fits_every_width(browser: Browser, address: str, width: int) -> None:
    browser.open(address, width=width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    # Whatever is wider than its place can be scrolled there.
    wide = browser.value(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('svg') &&"
        " !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert wide == 0


def test_charts_and_tables_are_really_drawn(browser: Browser, address: str) -> None:
    browser.open(address)
    sizes = browser.value(
        "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.width, r.height])"
    )
    assert len(sizes) == 8
    assert all(width > 100 and height > 150 for width, height in sizes)
    # Pictures of samples have arrived: what the page may load has not shut them out.
    assert browser.value(
        "[...document.images].length > 4 && [...document.images].every(e => e.naturalWidth > 0)"
    )
    # A path without length would be a curve without points.
    assert browser.value(
        "[...document.querySelectorAll('.chart path[stroke-width=\"2\"]')]"
        ".every(e => e.getTotalLength() > 10)"
    )
    overlap = browser.value(
        "(() => { const cells = [...document.querySelectorAll('.tile')]"
        ".map(e => e.getBoundingClientRect());"
        " return cells.some((a, i) => cells.some((b, j) => i < j && a.left < b.right - 1 &&"
        " b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)); })()"
    )
    assert overlap is False


def test_light_and_dark(browser: Browser, address: str, tmp_path: Path) -> None:
    seen = {}
    for scheme in ("dark", "light"):
        browser.colours(scheme)
        browser.open(address)
        seen[scheme] = mean_brightness(browser.picture(tmp_path / f"{scheme}.png"))
    assert seen["dark"] < 60
    assert seen["light"] > 200
    browser.value("document.getElementById('theme').click()")
    switched = mean_brightness(browser.picture(tmp_path / "switched.png"))
    assert switched == pytest.approx(seen["dark"], abs=5)
    assert browser.value("document.getElementById('theme').textContent") == "Light"


def test_no_mark_of_the_graph_keeps_a_light_colour_in_the_dark(
    browser: Browser, address: str
) -> None:
    browser.colours("dark")
    browser.open(address)
    fixed = browser.value(
        "[...new Set([...document.querySelectorAll('svg [fill], svg [stroke]')]"
        ".flatMap(e => [e.getAttribute('fill'), e.getAttribute('stroke')])"
        ".filter(v => v && v.startsWith('#')))]"
    )
    browser.colours("light")
    assert fixed == []


def test_the_graph_can_be_moved_about(browser: Browser, address: str) -> None:
    browser.open(address)
    view = "document.querySelector('.graph svg').getAttribute('viewBox').split(' ').map(Number)"
    opened = browser.value(view)
    browser.value("document.querySelector('[data-panel=\"-1\"]').click()")
    whole = browser.value(view)
    # It opens on the graph as it runs, which is on the right, large enough to be read.
    assert opened[0] > whole[0] + 100
    assert opened[2] < whole[2]
    browser.value("document.querySelector('[data-panel=\"1\"]').click()")
    right = browser.value(view)
    assert right[0] > whole[0] + 100
    assert right[2] < whole[2]
    browser.value("document.querySelector('[data-zoom=in]').click()")
    assert browser.value(view)[2] == pytest.approx(0.7 * right[2], rel=0.01)
    browser.value("document.querySelector('[data-panel=\"-1\"]').click()")
    assert browser.value(view) == whole
    # Dragging moves it, by as much as the hand moves.
    x, y = browser.value(
        "(() => { const r = document.querySelector('.graph').getBoundingClientRect();"
        " scrollBy({top: r.top - 200, behavior: 'instant'}); return [r.left + 300, 400]; })()"
    )
    for kind, dx in (("mousePressed", 0), ("mouseMoved", 40), ("mouseReleased", 40)):
        browser.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=x + dx,
            y=y,
            button="left",
            buttons=1,
            clickCount=1,
        )
    assert browser.value(view)[0] < whole[0]
    assert browser.complaints() == []


def test_a_dashed_mark_leads_to_where_its_value_is_made(browser: Browser, address: str) -> None:
    browser.open(address)
    assert browser.value(
        "(() => { const link = document.querySelector('.graph a');"
        " location.hash = link.getAttribute('href'); return true; })()"
    )
    found = browser.value(
        "getComputedStyle(document.querySelector('.mark:target .shape')).strokeWidth"
    )
    assert found == "4px"


def test_tables_unfold(browser: Browser, address: str) -> None:
    browser.open(address)
    closed = browser.value("document.documentElement.scrollHeight")
    browser.value("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert browser.value("document.documentElement.scrollHeight") > closed + 100


def test_the_graph_obeys_the_keyboard(browser: Browser, address: str) -> None:
    browser.open(address)
    view = "document.querySelector('.graph svg').getAttribute('viewBox').split(' ').map(Number)"
    before = browser.value(view)
    browser.value("document.querySelector('.graph').focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    moved = browser.value(view)
    assert moved[0] == pytest.approx(before[0] + 0.1 * before[2], abs=0.2)
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
    assert browser.value(view)[2] == pytest.approx(0.7 * before[2], rel=0.01)


@pytest.mark.parametrize("name", ["digits_run", "values_run", "ended_run"])
def test_nobody_is_shut_out(browser: Browser, name: str, request: pytest.FixtureRequest) -> None:
    """Labels, contrast, order of headings, what the keyboard reaches: axe-core finds nothing."""
    run: cd.RunFolder = request.getfixturevalue(name)
    # Where it is narrow, more has to be scrolled.
    browser.open(written(run, run_page(run)).as_uri(), width=390)
    assert axe_violations(browser) == []


def test_runs_that_are_compared(
    browser: Browser, digits_run: cd.RunFolder, values_run: cd.RunFolder, tmp_path: Path
) -> None:
    path = tmp_path / "compared.html"
    path.write_text(compare_page([digits_run, values_run]), encoding="utf-8")
    for width in (390, 1280):
        browser.open(path.as_uri(), width=width)
        assert browser.complaints() == []
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert axe_violations(browser) == []
