"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from caldera.bench.charts import depth_chart, ratio_chart, ratio_rows
from caldera.bench.contestants import PEERS
from caldera.bench.formatting import columns_of, facts, mean_text, row, title_of
from caldera.bench.results import OURS, Entry, Report
from caldera.bench.workloads import WORKLOADS
from caldera.draw.palette import CARD, LINE, PAPER, QUIET, TEXT
from caldera.draw.svg import SANS

_STYLE = f"""
:root {{ color-scheme: light; }}
body {{ margin: 0; background: {PAPER}; color: {TEXT}; font: 14px/1.5 {SANS}; }}
main {{ max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }}
h1 {{ font-size: 24px; margin: 0 0 8px; }}
h2 {{ font-size: 18px; margin: 36px 0 2px; }}
h3 {{ font-size: 14px; margin: 18px 0 6px; }}
p.quiet, li {{ color: {QUIET}; }}
p.quiet {{ margin: 0 0 10px; }}
ul {{ margin: 0 0 8px; padding-left: 18px; }}
.card {{ background: {CARD}; border: 1px solid {LINE}; border-radius: 8px; overflow-x: auto;
  margin: 0 0 14px; }}
.figure {{ padding: 10px; }}
.figure svg {{ width: 100%; max-width: 940px; height: auto; }}
.figure svg[aria-label=chart] {{ max-width: 720px; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: 7px 10px; border-top: 1px solid {LINE}; }}
th {{ border-top: none; color: {QUIET}; font-weight: 600; white-space: nowrap; }}
td:not(:nth-child(4)):not(:last-child):not([colspan]) {{ white-space: nowrap; }}
tr.ours td {{ background: #eef4fb; }}
tr.ours td:not(:last-child) {{ font-weight: 600; }}
tr.out td {{ color: {QUIET}; }}
tr.out td:nth-child(2) {{ text-decoration: line-through; }}
tr.failed td {{ color: #a3194e; }}
footer {{ color: {QUIET}; margin-top: 36px; }}
"""

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
    body = [
        "<h1>caldera bench</h1>",
        f'<p class="quiet">{escape(str(machine.get("card", machine["cpu"])))} · '
        f"{machine['threads']} threads · "
        f"{escape(str(machine['time']))}</p>",
        _list(facts(report)),
        *(_work(report, work) for work in report.works()),
        _means(report),
        f"<footer><p>{escape(_EXPLAINED)}</p></footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>caldera bench</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _work(report: Report, work: str) -> str:
    parts = [f"<h2>{escape(work)}</h2>"]
    if work in WORKLOADS:
        parts.append(f'<p class="quiet">{escape(WORKLOADS[work].summary)}</p>')
    for figure in (depth_chart(report, work), ratio_chart(ratio_rows(report, work))):
        if figure:
            parts.append(f'<div class="card figure">{figure}</div>')
    for case, entries in report.cases(work).items():
        title = title_of(case, entries)
        if title != work:
            parts.append(f"<h3>{escape(title)}</h3>")
        parts.append(_table(report, entries))
    return "".join(parts)


def _table(report: Report, entries: Sequence[Entry]) -> str:
    columns = columns_of(entries)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = []
    for entry in entries:
        cells = "".join(f"<td>{_cell(cell)}</td>" for cell in row(report, entry, columns))
        rows.append(f'<tr class="{_class_of(entry)}">{cells}</tr>')
    rows += [_missing_row(peer, report, len(columns)) for peer in report.missing]
    return f'<div class="card"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _cell(text: str) -> str:
    # No line is broken inside a number such as 3e-07.
    return escape(text.replace("e-", "e\u2011"))


def _class_of(entry: Entry) -> str:
    if entry.error:
        return "failed"
    if entry.rounds and not entry.counts:
        return "out"
    return "ours" if entry.framework == OURS else ""


def _missing_row(peer: str, report: Report, columns: int) -> str:
    text = f"{PEERS.get(peer, peer)} is not installed: {report.missing[peer]}"
    return f'<tr class="out"><td>{escape(peer)}</td><td colspan="{columns - 1}">{escape(text)}</td></tr>'  # noqa: E501


def _means(report: Report) -> str:
    means = report.means()
    return f"<h2>Geometric means</h2>{_list(mean_text(mean) for mean in means)}" if means else ""


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
