"""Reports in the terminal and on a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from caldera.bench import report as table
from caldera.bench.equality import Equality
from caldera.bench.report import page, plain_lines, print_report
from caldera.bench.results import Report
from tests.browser import Browser, axe_violations
from tests.unit.bench.reports import entry, report

VOID = {"meta", "br"}


def _mixed() -> Report:
    return report(
        entry("torch", "eager", 0.02, loss=0.5, loss_steps=100, first_cold_s=0.4),
        entry(
            "caldera",
            "strict",
            0.01,
            loss=0.5,
            loss_steps=100,
            first_cold_s=0.2,
            peak_bytes=3 << 20,
            growth_bytes=1 << 20,
            accuracy=0.975,
        ),
        entry("caldera", "fast", 0.005, equality=Equality(first_loss=1.0, broken=["loss <b> 1"])),
        entry(
            "jax",
            "jit",
            0.03,
            error="jax jit: got a worker that died: <Segmentation fault>",
            rounds=[],
        ),
    )


class _Tags(HTMLParser):
    """Every tag is closed by its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def _text_of(html: str) -> str:
    parser = _Tags()
    parser.feed(html)
    assert not parser.open
    return parser.text


def test_the_table_has_times_ratios_and_what_does_not_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_report(_mixed())
    out = " ".join(capsys.readouterr().out.split())
    assert "10.0 ms" in out
    assert "2.00 [2.00, 2.00]" in out
    assert "NO, does not" in out
    assert "Segmentation" in out
    assert "a note" in out


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    html = page(_mixed())
    text = _text_of(html)
    for expected in (
        "a <processor>",
        "caldera strict",
        "2.00 [2.00, 2.00] torch eager",
        "test 97.50%",
        "3.0 MiB (+1.0 MiB)",
        "0.500000 after 100",
        "NO, does not count: loss <b> 1",
        "<Segmentation fault>",
        "JAX is not installed: pip install jax",
    ):
        assert expected in text
    assert "://" not in html
    assert html.count("<script") == 1
    assert "default-src 'none'" in html


def test_a_browser_shows_the_page_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bench.html"
    path.write_text(page(_mixed()), encoding="utf-8")
    for width in (390, 1280):
        browser.open(path.as_uri(), width=width)
        assert browser.requests() == [path.as_uri()]
        assert browser.complaints() == []
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert axe_violations(browser) == []
    ground = "getComputedStyle(document.querySelector('.results')).backgroundColor"
    light = browser.value(ground)
    browser.value("document.getElementById('theme').click()")
    assert browser.value(ground) != light


def _on_card() -> Report:
    found = report(
        entry(
            "torch",
            "eager",
            0.2,
            precision="float32",
            batch=256,
            images=True,
            rounds=[],
            first_cold_s=1.0,
        ),
        entry(
            "caldera",
            "fit",
            0.1,
            precision="bfloat16",
            batch=256,
            images=True,
            loss=0.5,
            loss_steps=16,
            loss_mean_of=8,
            card_peak_bytes=3 << 30,
            card_bytes=4 << 30,
        ),
        entry("jax", "jit", 0.15, precision="bfloat16", batch=256, images=True),
    )
    found.machine |= {"card": "a <card>", "card memory": 100 << 30, "card driver": "9"}
    return found


def test_a_card_has_images_a_second_its_own_memory_and_precisions() -> None:
    expected = (
        "net, batch 256",
        "a <card>, 100.0 GiB, driver 9",
        "caldera fit, bfloat16",
        "2,560",
        "1.50 [1.50, 1.50] jax jit, bfloat16",
        "3.0 GiB (process 4.0 GiB)",
        "images/s",
        "0.500000 mean of the last 8 of 16",
        "not timed",
    )
    text, lines = _text_of(page(_on_card())), "\n".join(plain_lines(_on_card()))
    for each in expected:
        assert each in text
        assert each in lines


def test_without_rich_a_report_is_printed_in_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    print_report(_mixed())
    out = capsys.readouterr().out
    assert "caldera strict | 10.0 ms | " in out
    assert "images/s" not in out


def test_time_against_layers_is_drawn_for_every_framework() -> None:
    entries = [
        entry(framework, "s", depth * factor, case=f"{depth} layers", depth=depth)
        for framework, factor in (("caldera", 1e-3), ("torch", 2e-3))
        for depth in (2, 4, 8)
    ]
    html = page(report(*entries))
    assert "Milliseconds of a training step" in html
    assert html.count("<title>caldera s, layers") == 3
    assert html.count("<title>torch s, layers") == 3
    _text_of(html)
