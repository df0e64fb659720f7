"""`python -m tools.doc_pictures [PAGE ...]`: the pictures of pages, of what their code does.

The blocks of a page are run as they stand; the names they leave are drawn with the charts of the
package. The tests run the same functions on the same names.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import dmath as dm
from caldera import nn, serve
from caldera.bench.statistics import ratio_of
from caldera.dmath.explain import layout_picture
from caldera.draw.axis import axis_of
from caldera.draw.charts import learning_curve_charts
from caldera.draw.line_chart import HEIGHT, WIDTH, Line, LineChart, draw, figure_svg
from caldera.draw.svg import (
    BETTER,
    CATEGORICAL,
    PAPER,
    QUIET,
    SANS,
    TEXT,
    UNCLEAR,
    WORSE,
    element,
    picture,
    safe,
)
from tests.browser import Browser, find_browser
from tests.markdown_blocks import blocks

PAGES = Path(__file__).parents[1] / "docs"
Names = Mapping[str, Any]
_SEVEN = [(0.25, 0.2), (0.5, 0.2), (0.75, 0.2), (0.65, 0.4), (0.55, 0.6), (0.45, 0.85)]
"""A digit as a hand draws it, on a square of side 1."""


_LARGER = element("style", "@media(max-width:480px){text{font-size:17px}}")
"""For phones, where a picture is shown at two thirds of its size."""


def _figure(charts: Sequence[LineChart]) -> str:
    """Draw one or two charts below each other, so that phones show them as large as possible."""
    if len(charts) > 2:
        return figure_svg(charts).replace("<rect", f"{_LARGER}<rect", 1)
    step = HEIGHT + 16
    parts = [_LARGER, element("rect", width=WIDTH + 16, height=step * len(charts), fill=PAPER)]
    for number, chart in enumerate(charts):
        parts.append(element("g", draw(chart), transform=f"translate(8 {8 + step * number})"))
    label = " and ".join(chart.title for chart in charts)
    size = (WIDTH + 16, step * len(charts))
    return picture(*size, *parts, font_family=SANS, role="img", aria_label=label)


def _line(label: str, x: Iterable[float], y: Iterable[float], place: int, **more: Any) -> Line:
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    return Line(label, points, CATEGORICAL[place], **more)


def _chart(title: str, x_label: str, lines: Sequence[Line], most: float = np.inf) -> LineChart:
    across = [x for line in lines for x, _ in line.points]
    x_axis = axis_of(across, most=max(across))
    y_axis = axis_of([y for line in lines for _, y in line.points], most=most)
    return LineChart(title, x_label, lines, x_axis, y_axis)


def _imbalance(names: Names) -> str:
    samples, actual = names["parts"].test.x, names["actual"]
    charts = []
    for title, model in (("as it is", names["plain"]), ("with weights", names["weighted"])):
        chance = model.schema.decode(model.predict(samples), probabilities=True)[
            "probability of faulty"
        ]
        thresholds = np.linspace(0.02, 0.98, 49)
        called = [chance > each for each in thresholds]
        recall = [actual[each].sum() / actual.sum() for each in called]
        precision = [actual[each].mean() if each.any() else np.nan for each in called]
        lines = [
            _line("found of the faulty (recall)", thresholds, recall, 0, bare=True),
            _line("faulty of those found (precision)", thresholds, precision, 1, bare=True),
        ]
        charts.append(_chart(f"trained {title}", "called faulty above", lines, most=1.0))
    return _figure(charts)


def _transfer(names: Names) -> str:
    counts = names["counts"]
    lines = [
        _line("trained further", counts, names["known"], 0),
        _line("new network", counts, names["new"], 1),
        _line("as it was", counts, [names["as_it_is"]] * len(counts), 6, dashed=True, bare=True),
    ]
    return _figure([_chart("accuracy on images of the new camera", "samples", lines, most=1.0)])


def _physics(names: Names) -> str:
    times = names["times"].ravel()
    lines = [
        _line("exact", times, names["exact"].ravel(), 6, bare=True),
        _line("network", times, names["found"].ravel(), 0, dots_only=True),
    ]
    losses = names["losses"][::10]
    left = [_line("mean square", range(0, 10 * len(losses), 10), losses, 1, bare=True)]
    charts = [_chart("the pendulum", "time", lines), _chart("left of the equation", "step", left)]
    return _figure(charts)


def _export(names: Names) -> str:
    times = names["step"] * np.arange(len(names["observed"]))
    found = {"full model": "observed", "with the network": "fitted", "without it": "plain"}
    lines = [
        _line(label, times, [state[0] for state in names[key]], place, bare=True)
        for (label, key), place in zip(found.items(), (6, 0, 1), strict=True)
    ]
    return _figure([_chart("the first slow variable", "time", lines)])


def _generative(names: Names) -> str:
    kinds = {
        "the data": names["ring"],
        "VAE": names["made_by_vae"],
        "GAN": names["made_by_gan"],
        "diffusion": names["points"],
    }
    edge = axis_of([-1.6, 1.6])
    charts = []
    for place, (title, points) in enumerate(kinds.items()):
        seen = [(x, y) for x, y in points[:160].tolist() if max(abs(x), abs(y)) < 1.6]
        line = Line("seen" if place == 0 else "made", seen, CATEGORICAL[place], dots_only=True)
        charts.append(LineChart(title, "", [line], edge, edge))
    return _figure(charts)


def _series(names: Names) -> str:
    test, model = names["found"].test, names["again"]
    real, forecast = test.batch(range(len(test)))[1][::7], model.predict(test.x)[::7]
    days = np.arange(real.size)
    lines = [
        _line("visitors", days, real.ravel(), 6, bare=True),
        _line("forecast a week ahead", days, forecast.ravel(), 0, bare=True),
    ]
    return _figure([_chart("what came, and what was forecast", "days to test with", lines)])


def _tables(names: Names) -> str:
    test, model = names["homes"].test, names["model"]
    real, predicted = test.y.ravel(), model.predict(test.x).ravel()
    ends = [min(real), max(real)]
    lines = [
        _line("as it should be", ends, ends, 6, bare=True),
        _line("a home to test with", real, predicted, 0, dots_only=True),
    ]
    return _figure([_chart("price as predicted", "price", lines)])


def _curves(names: Names) -> str:
    return _figure(learning_curve_charts(*names["history"].curves()))


def _troubleshooting(names: Names) -> str:
    return str(names["rates"].plot().svg)


RESULTS = Path(__file__).parents[1] / "benchmarks/results/training-processes-x86_64.json"
_RUN, _PEER, _OURS = "second run", "torch eager", "caldera strict"
_WIDTH = 400.0


def _words(content: str, x: float, y: float, fill: str = TEXT, anchor: str = "start") -> str:
    rim = {"stroke": PAPER, "stroke_width": 4, "paint_order": "stroke", "stroke_linejoin": "round"}
    at = {"x": x, "y": y, "font_size": 13, "text_anchor": anchor}
    return element("text", safe(content), fill=fill, **at, **rim)


def _speed(_: Names) -> str:
    """Draw the ratio of each work of a result file, with its 95% interval."""
    rows = []
    for work, times in json.loads(RESULTS.read_text())[_RUN].items():
        peers = [each["turns"] for name, each in times.items() if name.startswith(_PEER)]
        if work.endswith("float32") and peers:
            ratios = [ratio_of(times[_OURS]["turns"], turns) for turns in peers]
            rows.append((work.removesuffix(", float32"), min(ratios, key=lambda each: each.value)))
    rows.sort(key=lambda row: row[1].value)
    across = axis_of([0.0, 1.0, *(found.high for _, found in rows)], log=False, count=5)
    place = {each: 12 + across.place(each) * (_WIDTH - 24) for each in (0.0, 1.0)}
    height = 40.0 + 44 * len(rows)
    line = f"M{place[1.0]:.1f} 24V{height - 24}"
    parts = [
        element("rect", width=_WIDTH, height=height, fill=PAPER),
        element("path", d=line, stroke=TEXT, stroke_dasharray="3 3"),
    ]
    for number, (work, found) in enumerate(rows):
        top = 20.0 + 44 * number
        low, end, high = (
            12 + across.place(each) * (_WIDTH - 24) for each in (found.low, found.value, found.high)
        )
        said = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
        colour = BETTER if found.low > 1 else WORSE if found.high < 1 else UNCLEAR
        bar = {"x": 12.0, "y": top + 6, "height": 12.0, "rx": 2, "fill": colour, "opacity": 0.85}
        parts += [
            _words(work, 12, top),
            _words(said, _WIDTH - 12, top, QUIET, "end"),
            element("rect", width=end - 12, **bar),
            element("path", d=f"M{low:.1f} {top + 12}H{high:.1f}", stroke=TEXT, stroke_width=2),
        ]
    parts.append(_words("as fast as PyTorch", place[1.0], height - 8, QUIET, "middle"))
    label = "Time of a training step of PyTorch divided by Caldera's"
    return picture(_WIDTH, height, *parts, font_family=SANS, role="img", aria_label=label)


KERNEL_TIMES = RESULTS.with_name("cost-model-resnet20-x86_64.json")
_OPS = {"conv2d": "", "conv2d_input": ", gradient of x", "conv2d_weight": ", gradient of w"}


def _kernels(_: Names) -> str:
    """Draw the measured times of the kernels of ResNet-20's convolutions, the fastest in colour."""
    nodes = json.loads(KERNEL_TIMES.read_text())["resnet20"]["exhaustive"][0]
    nodes = sorted(
        (each for each in nodes if len(each[2]) > 2), key=lambda each: list(_OPS).index(each[0])
    )
    longest = max(max(times.values()) for _, _, times, _ in nodes)
    parts, top = [], 8.0
    for op, (images, weights), times, _ in nodes:
        size = " x ".join(map(str, images[1:]))
        if op == "conv2d_weight":
            size = f"{size} and {' x '.join(map(str, weights[1:]))}"
        parts.append(_words(f"{size}{_OPS[op]}", 12, top + 14))
        top += 20
        for place, (name, seconds) in enumerate(sorted(times.items(), key=lambda each: each[1])):
            width = seconds / longest * (_WIDTH - 190)
            fill = CATEGORICAL[0] if place == 0 else QUIET
            bar = {"x": 108.0, "y": top + 3, "width": width, "height": 11.0, "rx": 2, "fill": fill}
            parts += [
                _words(name, 100, top + 13, TEXT if place == 0 else QUIET, "end"),
                element("rect", opacity=0.85 if place == 0 else 0.45, **bar),
                _words(f"{seconds * 1e6:.0f} us", 114 + width, top + 13, QUIET),
            ]
            top += 18
        top += 8
    parts.insert(0, element("rect", width=_WIDTH, height=top, fill=PAPER))
    label = "Times of the kernels of ResNet-20's convolutions, measured; the fastest is chosen"
    return picture(_WIDTH, top, *parts, font_family=SANS, role="img", aria_label=label)


def _layouts(_: Names) -> str:
    """Draw the owners of the elements of a matrix in four layouts."""
    kinds = {
        "dm.Rows()": dm.Rows(),
        "dm.Columns()": dm.Columns(),
        "dm.Grid(2, 2)": dm.Grid(2, 2),
        "dm.BlockCyclic(64, grid=(2, 2))": dm.BlockCyclic(64, grid=(2, 2)),
    }
    dm.disconnect()
    parts = [element("rect", width=_WIDTH, height=_WIDTH + 40, fill=PAPER)]
    with dm.connect(threads=4):
        for number, (name, layout) in enumerate(kinds.items()):
            drawn = layout_picture(dm.zeros((512, 512), layout=layout).layout).svg
            drawn = re.sub(r"<text[^>]*>[(]512, 512[)][^<]*</text>", "", drawn)
            drawn = drawn.replace('font-size="13"', 'font-size="26"')
            x, y = 8.0 + _WIDTH / 2 * (number % 2), 8.0 + (_WIDTH / 2 + 16) * (number // 2)
            parts.append(_words(name, x + 4, y + 14))
            side = _WIDTH / 2 - 16
            opening = f'<svg x="{x}" y="{y + 20}" width="{side}" height="{side}" viewBox='
            parts.append(re.sub(r"<svg [^>]*?viewBox=", opening, drawn, count=1))
    label = "The rank of each element of a matrix in four layouts"
    return picture(_WIDTH, _WIDTH + 40, *parts, font_family=SANS, role="img", aria_label=label)


PICTURES: Mapping[str, Callable[[Names], str]] = {
    "guides/benchmarking": _speed,
    "guides/choosing-kernels": _kernels,
    "guides/dmath": _layouts,
    "guides/export": _export,
    "guides/generative": _generative,
    "guides/imbalance": _imbalance,
    "guides/notebooks": _curves,
    "guides/physics": _physics,
    "guides/series": _series,
    "guides/tables": _tables,
    "guides/transfer": _transfer,
    "guides/troubleshooting": _troubleshooting,
    "index": _curves,
}
"""By their pages; each is a file of `docs/assets`, with the last part of its page's name."""


def file_of(page: str) -> Path:
    """Where the picture of a page is."""
    return PAGES / "assets" / f"{Path(page).name}.svg"


def names_of(page: str) -> dict[str, Any]:
    """What the code of a page leaves."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for block in blocks((PAGES / f"{page}.md").read_text()):
            if block.language == "python" and not block.remark:
                exec(compile(block.code, page, "exec"), names)
    return names


def photograph_service(path: Path) -> None:
    """Draw a digit on the page of a service in a browser, and write a picture of it."""
    program = find_browser()
    assert program is not None, "install Chromium"
    digits = cd.data.digits()
    layers = [nn.Input(digits.shape), nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(10)]
    model = cd.NeuralNetwork(layers, batch_size=64, epochs=15, learning_rate=3e-3)
    model.fit(digits.train, verbose=0)
    app = serve.application(model, name="digits", limits=serve.Limits(drain=0))
    addresses: queue.Queue[str] = queue.Queue()
    service = threading.Thread(
        target=serve.run, args=(app,), kwargs={"port": 0, "ready": addresses.put}
    )
    service.start()
    with tempfile.TemporaryDirectory() as scratch, Browser(program, Path(scratch)) as browser:
        browser.open(addresses.get(), width=900, height=640)
        browser.value("document.querySelector('#pad').scrollIntoView({block: 'center'})")
        left, top, width = browser.value(
            "(b => [b.x, b.y, b.width])(document.querySelector('#pad').getBoundingClientRect())"
        )
        kinds = ["mousePressed", *["mouseMoved"] * len(_SEVEN), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [_SEVEN[0], *_SEVEN, _SEVEN[-1]], strict=True):
            place = {"x": left + x * width, "y": top + y * width}
            browser.call("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, **place)
        browser.wait_until("document.body.innerText.includes('%')")
        browser.picture(path)
    app.end()
    service.join()


def photograph_report() -> None:
    """Draw the report of README's program for computers and phones, light and dark."""
    program = find_browser()
    assert program is not None, "install Chromium"
    readme = PAGES.parent / "README.md"
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        code = next(each.code for each in blocks(readme.read_text()) if each.language == "python")
        exec(compile(code, "README", "exec"), {"__name__": "__main__"})
        subprocess.run([sys.executable, "-m", "caldera", "report", "run"], check=True)
        address = Path("run/report.html").resolve().as_uri()
        with Browser(program, Path(scratch, "browser")) as browser:
            for name, width, height in (("report", 1100, 690), ("report-phone", 390, 980)):
                for scheme, end in (("light", ""), ("dark", "-dark")):
                    browser.colours(scheme)
                    browser.open(address, width=width, height=height)
                    browser.picture(PAGES / f"assets/{name}{end}.png")


def main() -> None:
    """Draw the pictures of the pages given, or all."""
    for page in sys.argv[1:] or (*PICTURES, "guides/serving", "README"):
        if page == "guides/serving":
            photograph_service(PAGES / "assets/serving.png")
            continue
        if page == "README":
            photograph_report()
            continue
        file_of(page).write_text(PICTURES[page](names_of(page)) + os.linesep)


if __name__ == "__main__":
    main()
