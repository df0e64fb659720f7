"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from caldera.bench.charts import depth_chart, ratio_bars
from caldera.bench.contestants import PEERS
from caldera.bench.formatting import columns_of, facts, mean_text, row, title_of
from caldera.bench.results import OURS, Entry, Report
from caldera.bench.workloads import WORKLOADS
from caldera.draw.bar_chart import bar_chart
from caldera.draw.html import Safe, scrolled, section, tag
from caldera.draw.line_chart import inline
from caldera.draw.page import document

_EXPLAINED = (
    "Times are medians over all turns; the interval is a 95% bootstrap over turns. A ratio says "
    "how many times as long the best setting of a peer takes as Caldera. Memory is the peak of "
    "the process, and in brackets what of it came after importing. On a card a ratio is to the "
    "best setting of the same precision or a stricter one, and memory is the card's: the peak in "
    "the framework's own books, and in brackets what its process holds. Every contestant "
    "has a process of its own, and one computes at a time, in turns. A result that is not equal to "
    "that of PyTorch (eager) is struck out and does not count."
)


def page(report: Report) -> str:
    """The text of the page."""
    machine = report.machine
    works = report.works()
    device = machine.get("card", machine["cpu"])
    index = {work: work for work in works}
    means = report.means()
    told = []
    if means:
        # What most people came for.
        index = {"means": "Geometric means", **index}
        told.append(section("means", "Geometric means", _list(map(mean_text, means))))
    parts = [
        tag("h1", "caldera bench"),
        tag("p", f"{device} · {machine['threads']} threads · {machine['time']}", class_="quiet"),
        _list(facts(report)),
        *told,
        *(_work(report, work) for work in works),
    ]
    parts.append(tag("footer", _EXPLAINED))
    return document("caldera bench", index, parts)


def _work(report: Report, work: str) -> Safe:
    note = WORKLOADS[work].summary if work in WORKLOADS else ""
    return section(work, work, *_charts(report, work), *_tables(report, work), note=note)


def _charts(report: Report, work: str) -> Iterator[Safe]:
    depths = depth_chart(report, work)
    if depths is not None:
        yield tag("div", inline(depths), class_="columns")
    bars = ratio_bars(report, work)
    if bars:
        yield scrolled(bar_chart(bars, "ratios"), "chart of ratios", class_="card wider")


def _tables(report: Report, work: str) -> Iterator[Safe]:
    for case, entries in report.cases(work).items():
        title = title_of(case, entries)
        if title != work:
            yield tag("h3", title, class_="case")
        yield _table(report, entries)


def _table(report: Report, entries: Sequence[Entry]) -> Safe:
    columns = columns_of(entries)
    rows = []
    for entry in entries:
        cells = [tag("td", _unbroken(cell)) for cell in row(report, entry, columns)]
        rows.append(tag("tr", *cells, class_=_class_of(entry)))
    for peer, hint in report.missing.items():
        text = f"{PEERS.get(peer, peer)} is not installed: {hint}"
        cells = [tag("td", peer), tag("td", text, colspan=len(columns) - 1)]
        rows.append(tag("tr", *cells, class_="missing"))
    head = tag("thead", tag("tr", *[tag("th", column, scope="col") for column in columns]))
    whole = tag("table", head, tag("tbody", *rows))
    return scrolled(whole, f"times of {len(entries)} contestants", class_="card results")


def _unbroken(text: str) -> str:
    # No line is broken inside a number such as 3e-07.
    return text.replace("e-", "e\u2011")


def _class_of(entry: Entry) -> str:
    if entry.error:
        return "failed"
    if entry.rounds and not entry.counts:
        return "out"
    return "ours" if entry.framework == OURS else ""


def _list(lines: Iterable[str]) -> Safe:
    return tag("ul", *[tag("li", line) for line in lines], class_="quiet")
