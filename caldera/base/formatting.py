"""Text and HTML formatting: bytes, operations, seconds, tables and notebook output.

All text in HTML is escaped. Tables set no colours: a notebook has its own style sheet, light or
dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def bytes_text(amount: float) -> str:
    """Return a number of bytes.

    >>> bytes_text(96), bytes_text(5 * 2**20)
    ('96 B', '5.0 MiB')
    """
    return _scaled(amount, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def flops_text(amount: float) -> str:
    """Return a number of floating-point operations.

    >>> flops_text(180), flops_text(2.5e9)
    ('180 FLOP', '2.5 GFLOP')
    """
    return _scaled(amount, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"))


def seconds_text(amount: float) -> str:
    """Return a time.

    >>> seconds_text(0.0000123), seconds_text(2.0)
    ('12.3 us', '2.0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        # 0.9996 ms reads as 1.0 ms, not as 999.6 us.
        if amount >= 0.9995 * scale:
            return f"{amount / scale:.1f} {unit}"
    return f"{amount / 1e-6:.1f} us"


def percent_text(share: float) -> str:
    """Return a fraction as a percentage; small ones keep a decimal.

    >>> percent_text(0.42), percent_text(0.004)
    ('42%', '0.4%')
    """
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def shortened(text: str, most: int) -> str:
    """Return the text, cut with an ellipsis if it has more than `most` characters.

    >>> shortened("broadcast", 6)
    'broad…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def table_lines(rows: Sequence[Sequence[str]], left: Iterable[int] = ()) -> list[str]:
    """Return the rows of a table as lines with aligned columns.

    Columns whose index is in `left` are left-aligned; all other columns, mostly numbers, are
    right-aligned.

    >>> table_lines([("op", "bytes"), ("add", "8")], left=(0,))
    ['op   bytes', 'add      8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    on_left = set(left)
    align = [str.ljust if i in on_left else str.rjust for i in range(len(widths))]
    lines = []
    for row in rows:
        columns = zip(align, row, widths, strict=True)
        cells = [place(cell, width) for place, cell, width in columns]
        lines.append("  ".join(cells).rstrip())
    return lines


def _scaled(amount: float, step: int, units: tuple[str, ...]) -> str:
    if amount < step:
        return f"{amount:.0f} {units[0]}"
    for unit in units[1:-1]:
        amount /= step
        if amount < step:
            return f"{amount:.1f} {unit}"
    return f"{amount / step:.1f} {units[-1]}"


MOST_ROWS = 60
"""Rows of a table; of more, the first and the last."""


def note(text: str, *, strong: bool = False) -> str:
    """Return a line of text.

    >>> note("a < b")
    '<p>a &lt; b</p>'
    """
    inside = f"<b>{escape(text)}</b>" if strong else escape(text)
    return f"<p>{inside}</p>"


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()
) -> str:
    """Return a table; columns whose index is in `numbers` are set to the right.

    >>> html_table(["a"], [[1]], numbers=[0]).count("text-align:right")
    2
    """
    right = set(numbers)
    lines = [list(map(str, row)) for row in rows]
    if len(lines) > MOST_ROWS:
        half = MOST_ROWS // 2
        lines = [*lines[:half], ["\u2026"] * len(head), *lines[-half:]]

    def cell(kind: str, place: int, content: str) -> str:
        side = "right" if place in right else "left"
        return f'<{kind} style="text-align:{side}">{escape(content)}</{kind}>'

    def line(kind: str, row: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(kind, i, each) for i, each in enumerate(row))}</tr>"

    body = "".join(line("td", row) for row in lines)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def html_facts(values: Mapping[str, object]) -> str:
    """Return names with their values.

    >>> html_facts({"a": 1}).startswith("<table>")
    True
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(str(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def html_text(text: str) -> str:
    """Return a text in lines, as a terminal would show it.

    >>> html_text("a & b")
    '<pre>a &amp; b</pre>'
    """
    return f"<pre>{escape(text)}</pre>"
