"""The page in a real browser: a drawn digit, a row, an array, on a desktop and on a phone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import caldera as cd
from caldera import data, nn, serve
from tests.browser import Browser, find_browser
from tests.unit.serve.test_server import served

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine")
_SAID = "document.getElementById('said').textContent"
_ANSWERED = "document.querySelectorAll('.bar').length > 0"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def ports(digits_model: cd.Model, table_model: cd.Model) -> Iterator[dict[str, int]]:
    """Where three models are served; they are told to end together, which takes a moment."""
    array_model = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)], loss="mean_squared")
    models = {"digits": digits_model, "boxes": table_model, "</script><b>": array_model}
    limits = serve.Limits(batch_size=1, drain=0)
    apps = [serve.application(each, name=name, limits=limits) for name, each in models.items()]
    with ExitStack() as stack:
        found = [stack.enter_context(served(app)) for app in apps]
        yield dict(zip(models, found, strict=True))
        for app in apps:
            app.end()


def _draw(browser: Browser, points: list[tuple[float, float]]) -> None:
    """Draw a line in the field; points are parts of its width and height."""
    left, top, width, height = browser.value(
        "(b => [b.left, b.top, b.width, b.height])"
        "(document.getElementById('pad').getBoundingClientRect())"
    )
    for number, (x, y) in enumerate([*points, points[-1]]):
        kind = {0: "mousePressed", len(points): "mouseReleased"}.get(number, "mouseMoved")
        browser.call(
            "Input.dispatchMouseEvent",
            type=kind,
            x=left + x * width,
            y=top + y * height,
            button="left",
            buttons=1,
            clickCount=1,
        )


def _fits(browser: Browser) -> bool:
    return bool(browser.value("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_drawn_digit_and_an_image(
    ports: dict[str, int], browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    port = ports["digits"]
    browser.colours(scheme)
    browser.open(f"http://127.0.0.1:{port}/", width, 900)
    assert browser.value(_SAID) == "No prediction yet."
    angles = np.linspace(0, 2 * math.pi, 16)
    _draw(browser, [(0.5 + 0.22 * math.cos(a), 0.5 + 0.36 * math.sin(a)) for a in angles])
    browser.wait_until(_ANSWERED)
    assert browser.value(_SAID) == "0"
    browser.value("document.getElementById('clear').click()")
    assert browser.value(_SAID) == "No prediction yet."
    # A file is chosen as a person does it.
    digits = data.digits()
    one = int(np.flatnonzero(digits.test.y == 4)[0])
    pixels = (digits.test.x[one, 0] * 255).round().astype("uint8")
    file = tmp_path / "four.png"
    Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST).save(file)
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    field = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=field, files=[str(file)])
    browser.wait_until(_ANSWERED)
    assert browser.value(_SAID) == "4"
    assert _fits(browser)
    assert not browser.complaints()
    assert all(
        f":{port}/" in each or each.startswith(("data:", "blob:")) for each in browser.requests()
    )


def test_a_row_and_what_is_wrong_with_it(ports: dict[str, int], browser: Browser) -> None:
    port = ports["boxes"]
    browser.open(f"http://127.0.0.1:{port}/", 390, 800)
    fill = "document.getElementById('column{}').value = '{}'"
    browser.value(fill.format(0, " 3.5 "))
    browser.value(fill.format(1, "1e-1"))
    browser.value("document.querySelector('form button').click()")
    browser.wait_until(_ANSWERED)
    assert browser.value(_SAID) == "wide"
    labels = browser.value("[...document.querySelectorAll('input')].map(e => e.labels.length)")
    assert labels == [1, 1]
    browser.value(fill.format(1, "much"))
    browser.value("document.querySelector('form button').click()")
    browser.wait_until("document.querySelector('#said.wrong') !== null")
    assert "expected a number in column 1 ('height'), got 'much'" in browser.value(_SAID)
    assert _fits(browser)


def test_sliders_over_the_training_range_answer_at_once(
    homes_model: cd.Model, browser: Browser
) -> None:
    app = serve.application(homes_model, name="homes", limits=serve.Limits(batch_size=1, drain=0))
    with served(app) as port:
        browser.open(f"http://127.0.0.1:{port}/", 390, 800)
        slider = "document.querySelector('input[type=range]')"
        low, high = browser.value(f"[{slider}.min, {slider}.max].map(Number)")
        seen = homes_model.schema.columns[0].seen
        assert (low, high) == pytest.approx((seen[0], seen[-1]), abs=2)
        assert browser.value("document.getElementById('column0').value") == f"{seen[2]:.6g}"
        move = f"{slider}.value = 120, {slider}.dispatchEvent(new Event('input'))"
        browser.value(move)
        browser.wait_until(f"{_SAID} !== 'No prediction yet.'")
        first = browser.value(_SAID)
        assert browser.value("document.getElementById('column0').value") == "120"
        browser.value(
            "(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')) })"
            "(document.querySelector('select'))"
        )
        browser.wait_until(f"{_SAID} !== '{first}'")
        example = browser.value("document.getElementById('curl').textContent")
        assert '"area": ' in example
        assert "\"it'\\''s\": " in example
        assert _fits(browser)
        assert not browser.complaints()
        app.end()


def test_an_array(ports: dict[str, int], browser: Browser) -> None:
    port = ports["</script><b>"]
    browser.open(f"http://127.0.0.1:{port}/")
    assert browser.value("document.querySelector('h1').textContent") == "</script><b>"
    browser.value("document.querySelector('form button').click()")
    browser.wait_until(f"{_SAID}.startsWith('[')")
    assert browser.value(_SAID) == "[0,0]"
    assert not browser.complaints()
