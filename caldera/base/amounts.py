"""Bytes, operations and seconds as people write them, and texts cut to a length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def bytes_text(amount: float) -> str:
    """A number of bytes.

    >>> bytes_text(96), bytes_text(5 * 2**20)
    ('96 B', '5.0 MiB')
    """
    return _scaled(amount, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def flops_text(amount: float) -> str:
    """A number of floating-point operations.

    >>> flops_text(180), flops_text(2.5e9)
    ('180 FLOP', '2.5 GFLOP')
    """
    return _scaled(amount, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"))


def seconds_text(amount: float) -> str:
    """A time.

    >>> seconds_text(0.0000123), seconds_text(2.0)
    ('12.3 us', '2.0 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        # 0.9996 ms reads as 1.0 ms, not as 999.6 us.
        if amount >= 0.9995 * scale:
            return f"{amount / scale:.1f} {unit}"
    return f"{amount / 1e-6:.1f} us"


def percent_text(share: float) -> str:
    """A share of one, in percent; small ones keep a decimal.

    >>> percent_text(0.42), percent_text(0.004)
    ('42%', '0.4%')
    """
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def shortened(text: str, most: int) -> str:
    """The text, cut with an ellipsis if it has more than `most` characters.

    >>> shortened("broadcast", 6)
    'broad…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def table_lines(rows: Sequence[Sequence[str]], left: Iterable[int] = ()) -> list[str]:
    """The rows of a table as lines whose columns stand below each other.

    Columns whose index is in `left` begin at the same place; all others, numbers mostly, end there.

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
