"""`python -m tools.doc_pictures [PAGE ...]`: the pictures of pages, of what their code does.

The blocks of a page are run as they stand; the names they leave are drawn with the charts of the
package. The tests run the same functions on the same names.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, serve
from caldera.draw.axis import axis_of
from caldera.draw.line_chart import Line, LineChart, figure_svg
from caldera.draw.svg import CATEGORICAL
from tests.browser import Browser, find_browser
from tests.markdown_blocks import blocks

PAGES = Path(__file__).parents[1] / "docs"
Names = Mapping[str, Any]
_SEVEN = [(0.25, 0.2), (0.5, 0.2), (0.75, 0.2), (0.65, 0.4), (0.55, 0.6), (0.45, 0.85)]
"""A digit as a hand draws it, on a square of side 1."""


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
        chance = names["probability"](model, samples)
        thresholds = np.linspace(0.02, 0.98, 49)
        called = [chance > each for each in thresholds]
        recall = [actual[each].sum() / actual.sum() for each in called]
        precision = [actual[each].mean() if each.any() else np.nan for each in called]
        lines = [
            _line("found of the faulty (recall)", thresholds, recall, 0, bare=True),
            _line("faulty of those found (precision)", thresholds, precision, 1, bare=True),
        ]
        charts.append(_chart(f"trained {title}", "called faulty above", lines, most=1.0))
    return figure_svg(charts, "Faulty parts")


def _transfer(names: Names) -> str:
    counts = names["counts"]
    lines = [
        _line("trained further", counts, names["known"], 0),
        _line("new network", counts, names["new"], 1),
        _line("as it was", counts, [names["as_it_is"]] * len(counts), 6, dashed=True, bare=True),
    ]
    return figure_svg([_chart("accuracy on images of the new camera", "samples", lines, most=1.0)])


def _physics(names: Names) -> str:
    times = names["times"].ravel()
    lines = [
        _line("exact", times, names["exact"].ravel(), 6, bare=True),
        _line("network", times, names["found"].ravel(), 0, dots_only=True),
    ]
    losses = names["losses"][::10]
    left = [_line("mean square", range(0, 10 * len(losses), 10), losses, 1, bare=True)]
    charts = [_chart("the pendulum", "time", lines), _chart("left of the equation", "step", left)]
    return figure_svg(charts)


def _export(names: Names) -> str:
    times = names["step"] * np.arange(len(names["observed"]))
    found = {"full model": "observed", "with the network": "fitted", "without it": "plain"}
    lines = [
        _line(label, times, [state[0] for state in names[key]], place, bare=True)
        for (label, key), place in zip(found.items(), (6, 0, 1), strict=True)
    ]
    return figure_svg([_chart("the first slow variable", "time", lines)])


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
    return figure_svg(charts)


def _series(names: Names) -> str:
    test, model = names["found"].test, names["again"]
    real, forecast = test.batch(range(len(test)))[1][::7], model.predict(test.x)[::7]
    days = np.arange(real.size)
    lines = [
        _line("visitors", days, real.ravel(), 6, bare=True),
        _line("forecast a week ahead", days, forecast.ravel(), 0, bare=True),
    ]
    return figure_svg([_chart("what came, and what was forecast", "days to test with", lines)])


def _tables(names: Names) -> str:
    test, model = names["homes"].test, names["model"]
    real, predicted = test.y.ravel(), model.predict(test.x).ravel()
    ends = [min(real), max(real)]
    lines = [
        _line("as it should be", ends, ends, 6, bare=True),
        _line("a home to test with", real, predicted, 0, dots_only=True),
    ]
    return figure_svg([_chart("price as predicted", "price", lines)])


def _curves(names: Names) -> str:
    return str(names["history"].plot().svg)


def _troubleshooting(names: Names) -> str:
    return str(names["rates"].plot().svg)


PICTURES: Mapping[str, Callable[[Names], str]] = {
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
    """What a browser shows of a service; here alone a browser is needed."""
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


def main() -> None:
    """What the command does."""
    for page in sys.argv[1:] or (*PICTURES, "guides/serving"):
        if page == "guides/serving":
            photograph_service(PAGES / "assets/serving.png")
            continue
        file_of(page).write_text(PICTURES[page](names_of(page)) + os.linesep)


if __name__ == "__main__":
    main()
