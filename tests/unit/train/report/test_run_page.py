"""The page of a run: what is on it, and that nothing else can get in."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import caldera as cd
from caldera.base.plain_data import to_plain
from caldera.draw.svg import DARK, LIGHT
from caldera.errors import DataError
from caldera.train.report import run_page
from caldera.train.report.step import trusted

VOID = ("meta", "br", "hr", "img", "link", "input")
PARTS = ("curves", "predictions", "network", "settings", "graph", "time", "memory")


class Reader(HTMLParser):
    """Elements of a page: that they are closed in order, and what they hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script") and data.strip():
            self.texts.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(digits_run: cd.RunFolder) -> str:
    return run_page(digits_run)


@pytest.fixture(scope="module")
def read(text: str) -> Reader:
    return Reader(text)


# --- what is on it


def test_every_part_is_there_and_in_the_index(read: Reader) -> None:
    assert [each["id"] for each in read.all("section")] == list(PARTS)
    links = [each["href"] for each in read.all("a")]
    assert links[: len(PARTS)] == [f"#{part}" for part in PARTS]


def test_ids_are_given_once_and_links_lead_to_them(read: Reader) -> None:
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all((each["href"] or "")[1:] in ids for each in read.all("a"))


def test_results_settings_seeds_and_versions(digits_run: cd.RunFolder, read: Reader) -> None:
    record = digits_run.record()
    for shown in (
        f"{record.results['accuracy']:.2%}",
        "3 of 3",
        f"{record.network.parameters:,}",
        "Adam",
        "optimizer/learning_rate",
        "0.01",
        cd.__version__,
        "numpy",
        "llvmlite",
        "blas",
    ):
        assert shown in read.texts, shown
    seeds = read.texts.index("weights, order of the samples, dropout")
    assert read.texts[seeds + 1] == "7"


def test_the_confusion_matrix_has_every_count(digits_run: cd.RunFolder, read: Reader) -> None:
    counts = digits_run.record().confusion
    assert counts is not None
    assert sum(map(sum, counts)) == len(cd.data.digits().test)
    titles = [each.get("title") for each in read.all("td")]
    for true in range(10):
        for taken in range(10):
            assert f"{true} as {taken}: {counts[true][taken]}" in titles


def test_curves_of_loss_and_accuracy(read: Reader) -> None:
    charts = [each["aria-label"] for each in read.all("svg") if each.get("class") == "chart"]
    assert charts == [
        "loss",
        "accuracy",
        "ROC curves, each class against the rest",
        "calibration: accuracy by confidence",
        "seconds an epoch",
        "arena in use, KiB",
    ]


def test_the_graph_before_and_after(digits_run: cd.RunFolder, read: Reader) -> None:
    panels = [each["id"] for each in read.all("g") if each.get("class") == "panel"]
    assert panels == ["panel0", "panel1"]
    assert {"as written", "as it runs"} <= set(read.texts)
    profile = digits_run.record().profile
    assert profile is not None
    assert any(
        f"{profile.nodes_as_written} operations as written, {profile.nodes_optimised}" in each
        for each in read.texts
    )


def test_every_kernel_call_with_its_time(digits_run: cd.RunFolder, read: Reader) -> None:
    profile = digits_run.record().profile
    assert profile is not None
    # A bar for each of the ten classes, and for each call.
    assert len([each for each in read.all("span") if each.get("class") == "share"]) == (
        10 + len(profile.steps) + min(12, len(profile.steps))
    )
    assert {"optimizer", "parameters", "activations and gradients", "batch"} <= set(read.texts)


def test_values_are_shown_beside_the_truth(values_run: cd.RunFolder) -> None:
    read = Reader(run_page(values_run))
    record = values_run.record()
    assert record.confusion is None
    assert len(record.predictions or []) == 40
    assert "predicted over true values" in read.texts


def test_a_run_that_was_ended_says_what_is_missing(ended_run: cd.RunFolder) -> None:
    texts = " ".join(Reader(run_page(ended_run)).texts)
    assert "The run was ended: the time limit of 0 s." in texts
    assert "The training step was not timed" in texts
    assert "has no picture of its graph" in texts


# --- nothing from elsewhere


def test_nothing_is_loaded_from_anywhere(text: str, read: Reader) -> None:
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"[a-z]+://[^\s\"'<>)]+", text)) <= allowed
    for name, attributes in read.elements:
        assert name not in ("link", "iframe", "object", "embed", "base")
        assert not {"srcset", "action", "data", "poster"} & set(attributes)
        assert (attributes.get("src") or "data:image/png;base64,").startswith("data:image/png;")
    (policy,) = [e["content"] for e in read.all("meta") if "http-equiv" in e]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert len(read.all("script")) == 1


def changed(run: cd.RunFolder, folder: Path, **values: Any) -> cd.RunFolder:
    """A copy of a run, with other values in its record."""
    shutil.copytree(run.path, folder, dirs_exist_ok=True)
    record = to_plain(replace(run.record(), **values))
    (folder / "run.json").write_text(json.dumps(record))
    return cd.RunFolder(folder)


def test_texts_of_a_run_cannot_become_html(digits_run: cd.RunFolder, tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    run = digits_run.record()
    hostile = changed(
        digits_run,
        tmp_path,
        name=evil,
        stopped=evil,
        settings={evil: evil},
        machine={evil: {evil: evil}},
        seeds={evil: 1},
        results={evil: 0.5},
        data=replace(run.data, name=evil, class_names=[evil] * 10),
    )
    read = Reader(run_page(hostile))
    assert len(read.all("script")) == 1
    assert all((each["src"] or "").startswith("data:image/png;") for each in read.all("img"))
    assert not any(key.startswith("on") for _, found in read.elements for key in found)


def test_pictures_are_taken_apart(digits_run: cd.RunFolder, tmp_path: Path) -> None:
    shutil.copytree(digits_run.path, tmp_path, dirs_exist_ok=True)
    (tmp_path / "graph.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)" viewBox="0 0 9 9">'
        "<script>alert(1)</script><foreignObject><b>x</b></foreignObject>"
        '<a href="javascript:alert(1)"><rect fill="url(http://a.example/x)" id="fine"/></a>'
        '<style>@import "http://a.example/x"</style><image href="http://a.example/x"/></svg>'
    )
    text = run_page(cd.RunFolder(tmp_path))
    assert "a.example" not in text
    assert "javascript:" not in text
    assert "alert(1)" not in text
    assert '<rect id="fine"/>' in text


def test_a_picture_of_ours_loses_nothing_but_its_style(digits_run: cd.RunFolder) -> None:
    picture = digits_run.graph()
    assert picture is not None
    for name in ("rect", "path", "text", "polygon", "marker", "title", "a "):
        assert trusted(picture).count(f"<{name}") == picture.count(f"<{name}"), name
    assert trusted(picture).count("marker-end") == picture.count("marker-end")


@pytest.mark.parametrize(
    ("text", "said"), [("<svg", "expected SVG"), ("<html></html>", "expected SVG")]
)
def test_what_is_no_picture_is_refused(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        trusted(text)


def test_deep_pictures_are_refused() -> None:
    deep = "<g>" * 5000 + "</g>" * 5000
    with pytest.raises(DataError, match="inside each other"):
        trusted(f'<svg xmlns="http://www.w3.org/2000/svg">{deep}</svg>')


# --- colours


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_can_be_read_on_what_it_stands_on(colours: dict[str, str]) -> None:
    for name in ("text", "quiet", *(f"line{i}" for i in range(7))):
        for ground in ("card", "paper"):
            assert _contrast(colours[name], colours[ground]) > 4.5, (name, ground)
    assert _contrast(colours["text"], colours["chosen"]) > 4.5
    strong = [name for name in colours if name.startswith("strong-")]
    for name in (*strong, "update", "text"):
        assert _contrast(colours["on-strong"], colours[name]) > 4.5, name


def test_both_sets_name_the_same_colours() -> None:
    assert set(LIGHT) == set(DARK)
    # Colours that are one in the light are one in the dark: pictures are drawn in light ones.
    for name, colour in LIGHT.items():
        for other in LIGHT:
            if LIGHT[other] == colour and {name, other} != {"card", "on-strong"}:
                assert DARK[other] == DARK[name], (name, other)
